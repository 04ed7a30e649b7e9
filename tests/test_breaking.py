"""`make breaking`: the API against the last release's, in a repository of its own."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

VENV = Path(sys.prefix)
PROTO = Path("protos/treadle/v1/generation.proto")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command in a repository that has the API and nothing else."""
    for tool in ("make", "git", "tar"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if not (VENV / "bin/buf").exists():
        pytest.skip("buf is not installed beside this Python")
    shutil.copy("Makefile", tmp_path)
    shutil.copytree("protos", tmp_path / "protos")

    def in_repository(*command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert in_repository("git", "init", "--quiet").returncode == 0
    _commit(in_repository)
    return in_repository


def _commit(run: Run) -> None:
    assert run("git", "add", "--all").returncode == 0
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false")
    assert run("git", *identity, "commit", "--quiet", "--message=API").returncode == 0


def _breaking(run: Run) -> "subprocess.CompletedProcess[str]":
    installed = VENV / "installed"
    return run("make", "--no-print-directory", f"VENV={VENV}", f"--assume-old={installed}", "breaking")


def _replace(tmp_path: Path, old: str, new: str) -> None:
    proto = tmp_path / PROTO
    assert old in proto.read_text()
    proto.write_text(proto.read_text().replace(old, new))


def test_without_a_release_it_says_so_and_passes(run: Run) -> None:
    ended = _breaking(run)
    assert (ended.returncode, ended.stdout.count("there is no release")) == (0, 1)


def test_what_only_adds_to_the_last_release_passes(run: Run, tmp_path: Path) -> None:
    run("git", "tag", "v0.1.0")
    _replace(tmp_path, "message GetLoadRequest {}", "message GetLoadRequest {\n  // New.\n  bool new = 1;\n}")
    ended = _breaking(run)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "v0.1.0" in ended.stdout


def test_a_change_that_breaks_clients_of_the_last_release_fails_and_names_the_field(run: Run, tmp_path: Path) -> None:
    run("git", "tag", "v0.1.0")
    _replace(tmp_path, "string cache_salt = 8;", "string cache_salt = 80;")
    ended = _breaking(run)
    assert ended.returncode != 0
    assert "cache_salt" in ended.stdout


def test_the_last_release_counts_and_not_an_earlier_one(run: Run, tmp_path: Path) -> None:
    run("git", "tag", "v0.1.0")
    _replace(tmp_path, "string cache_salt = 8;", "string cache_salt = 80;")
    _commit(run)
    run("git", "tag", "v0.2.0")
    ended = _breaking(run)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "v0.2.0" in ended.stdout
