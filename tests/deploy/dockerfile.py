"""What the final stage of the Dockerfile says, for tests that do the same without a container engine."""

import json
import re
import shlex
import string
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Stage:
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def of(self, instruction: str) -> list[str]:
        return [arguments for name, arguments in self.instructions if name == instruction]

    def only(self, instruction: str) -> str:
        (arguments,) = self.of(instruction)
        return arguments

    def environment(self, outer: dict[str, str]) -> dict[str, str]:
        """What ENV sets, over `outer`."""
        environment = dict(outer)
        for arguments in self.of("ENV"):
            for assignment in shlex.split(arguments):
                name, value = assignment.split("=", 1)
                environment[name] = string.Template(value).substitute(environment)
        return environment

    def entrypoint(self) -> list[str]:
        """Raises ValueError for the shell form."""
        words: list[str] = json.loads(self.only("ENTRYPOINT"))
        return words


@dataclass(frozen=True, slots=True)
class Copy:
    source: str
    target: str


def stages() -> list[Stage]:
    text = (REPOSITORY / "Dockerfile").read_text()
    lines = re.sub(r"\\\n\s*", " ", re.sub(r"(?m)^\s*#.*\n", "", text)).splitlines()
    found: list[Stage] = []
    for line in filter(str.strip, lines):
        name, arguments = line.split(maxsplit=1)
        if name == "FROM":
            found.append(Stage(arguments))
        elif found:
            found[-1].instructions.append((name, arguments))
    return found


def copies() -> list[Copy]:
    """What the build copies from its context."""
    found = []
    for words in (shlex.split(arguments) for stage in stages() for arguments in stage.of("COPY")):
        *sources, target = words
        if not words[0].startswith("--from"):
            found += [Copy(name, f"{target}{name}" if target.endswith("/") else target) for name in sources]
    return found
