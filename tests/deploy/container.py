"""The image's root file system and its process, by the kernel's means alone: namespaces, mounts and a change of root.

What the image takes from its base (the interpreter, the C library) is the test machine's; the rest is as the Dockerfile
has it. Every mount is read-only but /tmp and the model cache; there are no capabilities and no other processes.
"""

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from tests.deploy.dockerfile import stages

CACHE = "/var/cache/treadle"
HOME = "/opt/treadle"
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc", "/sys", "/dev")
ENTER = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")


def reason_to_skip() -> str | None:
    """Why this machine cannot make a container; None where it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root on Linux can enter namespaces and change its user"
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return "util-linux is not installed"
    tried = subprocess.run([*ENTER, "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


def make_environment(directory: Path, wheel: Path, extras: frozenset[str]) -> Path:
    """A virtual environment with the wheel and what it and its extras require, and nothing else; its interpreter.

    The required packages are links to those that the tests run with: nothing is downloaded.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True)
    (site,) = directory.glob("lib/python*/site-packages")
    (information,) = site.glob("treadle-*.dist-info")
    installed = importlib.metadata.Distribution.at(information)
    for distribution in required(installed, extras, seen=set()):
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    return python


def required(
    distribution: importlib.metadata.Distribution, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]
) -> Iterator[importlib.metadata.Distribution]:
    for requirement in map(Requirement, distribution.requires or []):
        wanted = any(
            requirement.marker is None or requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras}
        )
        key = (requirement.name, frozenset(requirement.extras))
        if wanted and key not in seen:
            seen.add(key)
            needed = importlib.metadata.distribution(requirement.name)
            yield needed
            yield from required(needed, frozenset(requirement.extras), seen)


@dataclass(frozen=True, slots=True)
class Container:
    root: Path
    """An empty directory that anybody may enter."""
    environment: Path
    """The virtual environment, to be seen where the image has it."""
    model: Path
    """A directory with a model, to be seen as /model."""

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        """The image's process, by its own ENTRYPOINT, USER, WORKDIR and ENV: process 1 of its container."""
        stage = stages()[-1]
        user, group = stage.only("USER").split(":")
        variables = stage.environment({"PATH": "/usr/local/bin:/usr/bin:/bin"}) | environment
        process = [*stage.entrypoint(), *arguments]
        script = "\n".join(
            [
                "set -e",
                *self._mounts(int(user), int(group)),
                shlex.join(
                    [
                        *("exec", "chroot", str(self.root)),
                        *("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"),
                        *("--bounding-set=-all", "--inh-caps=-all"),
                        *("env", "-i", f"--chdir={stage.only('WORKDIR')}"),
                        *(f"{name}={value}" for name, value in variables.items()),
                        *process,
                    ]
                ),
            ]
        )
        pipe = subprocess.PIPE
        return subprocess.Popen([*ENTER, "sh", "-c", script], stdout=pipe, stderr=pipe, text=True)

    def _mounts(self, user: int, group: int) -> Iterator[str]:
        """The script's lines that lay the file system out, all of it read-only but two directories."""
        yield f"mount --bind {self.root} {self.root}"
        for path in SYSTEM:
            if Path(path).is_symlink():
                yield f"ln -sfn {Path(path).readlink()} {self.root}{path}"
            elif Path(path).exists():
                yield from self._mount(path, path)
        for path in ("/tmp", CACHE):  # before the packages, which may lie below /tmp here
            options = f"mode=0700,uid={user},gid={group}"
            yield f"mkdir -p {self.root}{path} && mount -t tmpfs -o {options} tmpfs {self.root}{path}"
        packages = str(Path(str(importlib.metadata.distribution("pytest").locate_file(""))).resolve())
        for path in dict.fromkeys((sys.base_prefix, packages)):
            yield from self._mount(path, path)
        yield from self._mount(str(self.environment), HOME)
        yield from self._mount(str(self.model), "/model")
        yield f"mkdir -p {self.root}/proc && mount -t proc proc {self.root}/proc"
        yield f"mount -o remount,bind,ro {self.root}"
        for path in ("", HOME, "/etc"):
            yield f"if touch {self.root}{path}/written 2>/dev/null; then echo {path}/ can be written >&2; exit 1; fi"

    def _mount(self, source: str, target: str) -> Iterator[str]:
        seen = shlex.quote(f"{self.root}{target}")
        yield f"mkdir -p {seen} && mount --rbind {shlex.quote(source)} {seen} && mount -o remount,bind,ro {seen}"
