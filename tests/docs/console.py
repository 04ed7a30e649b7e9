"""The commands of a document, and what it says they print."""

import shlex
from dataclasses import dataclass
from pathlib import Path

PROMPT = "$ "
FENCES = ("```console", "```")


@dataclass(frozen=True, slots=True)
class Example:
    """A command in a fenced block of a document, with its output as it stands there."""

    line: int
    """Where the command begins, from 1."""
    command: str
    output: str


def examples(document: Path) -> list[Example]:
    """Every command of the document's console blocks, first to last."""
    found: list[Example] = []
    begins, end = FENCES
    is_inside = is_open = False
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if not is_inside:
            is_inside = line == begins
        elif line == end:
            is_inside = False
        elif is_open:
            found[-1] = Example(found[-1].line, f"{found[-1].command}\n{line}", "")
            is_open = _goes_on(found[-1].command)
        elif line.startswith(PROMPT):
            found.append(Example(number, line.removeprefix(PROMPT), ""))
            is_open = _goes_on(found[-1].command)
        else:
            found[-1] = Example(found[-1].line, found[-1].command, f"{found[-1].output}{line}\n")
    return found


def _goes_on(command: str) -> bool:
    """Whether a shell would read another line: after a backslash, or within quotes."""
    if command.endswith("\\"):
        return True
    try:
        shlex.split(command)
    except ValueError:
        return True
    return False
