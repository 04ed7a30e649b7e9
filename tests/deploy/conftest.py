"""The distributions, built once."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.deploy.distributions import Distributions
from tests.deploy.dockerfile import REPOSITORY, Copy, copies

RELEASED = ("protos", "CHANGELOG.md", "MANIFEST.in")
"""What the source distribution has beside what the image is built of."""


@pytest.fixture(scope="session")
def open_directory() -> Iterator[Path]:
    """One that other users may enter, unlike pytest's."""
    with TemporaryDirectory(prefix="treadle-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture(scope="session")
def distributions(open_directory: Path) -> Distributions:
    """Built of a copy, as the build leaves files behind; the wheel is built of the source distribution."""
    wanted = [*(copy.source for copy in copies()), *RELEASED]
    copy = lay_out(open_directory / "source", [Copy(name, name) for name in wanted])
    return build(copy, open_directory / "dist")


@pytest.fixture(scope="session")
def image_wheel(open_directory: Path) -> Path:
    """The wheel of nothing but what the Dockerfile copies."""
    return build(lay_out(open_directory / "context", copies()), open_directory / "image").wheel


def lay_out(directory: Path, wanted: list[Copy]) -> Path:
    for copy in wanted:
        source, target = REPOSITORY / copy.source, directory / copy.target
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return directory


def build(source: Path, target: Path) -> Distributions:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(source)]
    built = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (archive,), (wheel,) = target.glob("*.tar.gz"), target.glob("*.whl")
    return Distributions(archive, wheel, built.stdout + built.stderr)
