"""What must be done once before an example in another language runs, or the reason why it cannot be run here."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

EXAMPLES = Path("client/examples")
PROTOS = Path("protos").resolve()
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
"""With what `make` has installed beside this Python."""
GOCODE = Path("/usr/share/gocode")
"""Where Debian's Go packages are."""
MOST_SECONDS = 240
"""Preparing may take: a registry may be slow, and so may a compiler."""


@dataclass(frozen=True)
class Prepared:
    """Where an example's commands run, and what stands for what in them."""

    folder: Path
    command: str = ""
    instead: str = ""

    def run(self, command: str, address: str) -> "subprocess.CompletedProcess[str]":
        """Standard output and standard error as one, as on a terminal."""
        return subprocess.run(
            ["bash", "-c", command.replace(self.command, self.instead) if self.command else command],
            cwd=self.folder,
            env={**os.environ, "PATH": PATH, "TREADLE_ADDRESS": address},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MOST_SECONDS,
            check=False,
        )


def node(cache: Path) -> Prepared:
    """The example with its packages in the cache, where they are installed once."""
    need("node", "npm")
    folder = cache / EXAMPLES / "node"
    manifest = (EXAMPLES / "node/package.json").read_text()
    is_installed = (folder / "node_modules").is_dir() and (folder / "package.json").read_text() == manifest
    shutil.copytree(EXAMPLES / "node", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules"))
    if not (cache / "protos").exists():
        (cache / "protos").symlink_to(PROTOS)
    if not is_installed:
        shutil.rmtree(folder / "node_modules", ignore_errors=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--fetch-retries=0", "--loglevel=error"]
        installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=MOST_SECONDS)
        if installed.returncode:
            shutil.rmtree(folder / "node_modules", ignore_errors=True)
            pytest.skip(f"npm cannot install the example's packages: {installed.stderr.strip().splitlines()[:1]}")
    return Prepared(folder)


def go(workspace: Path) -> Prepared:
    """The example, built with the libraries that are packages of the system, in a workspace of its own."""
    need("go", "gofmt", "buf", "protoc-gen-go", "protoc-gen-go-grpc")
    for library in ("google.golang.org/grpc", "google.golang.org/protobuf"):
        if not (GOCODE / "src" / library).is_dir():
            pytest.skip(f"{library} is not installed as a package of the system")
    folder = workspace / "src/treadle.example"
    shutil.copytree(EXAMPLES / "go", folder)
    _do(["buf", "generate", str(PROTOS)], folder)
    _do(["go", "build", "-tags", "grpcdial", "-o", "generate", "treadle.example"], folder, workspace)
    return Prepared(folder, "go run .", "./generate")


def shell() -> Prepared:
    need("bash", "grpcurl", "jq")
    return Prepared(EXAMPLES / "shell")


def need(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool, path=PATH) is None:
            pytest.skip(f"{tool} is not installed")


def _do(command: list[str], folder: Path, workspace: Path | None = None) -> None:
    variables = {**os.environ, "PATH": PATH}
    if workspace is not None:
        variables |= {"GO111MODULE": "off", "GOPATH": f"{workspace}{os.pathsep}{GOCODE}"}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=MOST_SECONDS)
    assert done.returncode == 0, done.stderr
