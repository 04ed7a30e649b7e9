"""What is released: the source distribution, the wheel, and their version."""

import re
import subprocess
import tomllib
from pathlib import Path

from tests.deploy.container import make_environment
from tests.deploy.distributions import Distributions
from tests.deploy.dockerfile import REPOSITORY

VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]


def files_under(directory: Path, *suffixes: str) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.suffix in suffixes}


def test_the_wheel_has_the_client_the_server_and_their_types_and_nothing_else(distributions: Distributions) -> None:
    expected = files_under(REPOSITORY / "client", ".py", ".pyi", ".typed")
    expected |= {f"server/{name}" for name in files_under(REPOSITORY / "server", ".py", ".pyi", ".typed")}
    information = {name for name in distributions.packed() if name.startswith(f"treadle-{VERSION}.dist-info/")}
    assert distributions.packed() - information == {name for name in expected if not name.startswith("examples/")}
    assert f"treadle-{VERSION}.dist-info/licenses/LICENSE" in information


def test_the_source_distribution_has_the_api_and_what_a_build_needs(distributions: Distributions) -> None:
    needed = {"pyproject.toml", "constraints.txt", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO"}
    assert needed | {"protos/treadle/v1/generation.proto"} <= distributions.archived()
    packed = {name for name in distributions.packed() if name.startswith("server/")}
    assert packed <= distributions.archived()


def test_the_build_warns_of_nothing(distributions: Distributions) -> None:
    assert not re.findall(r"(?i).*(?:warning|deprecat).*", distributions.build_log)


def test_the_client_of_the_wheel_runs_without_torch_and_says_its_version(
    distributions: Distributions, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "client", distributions.wheel, extras=frozenset())

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([python, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run("-c", "import torch").returncode == 1
    assert run("-c", "import treadle; print(treadle.__version__)").stdout == f"{VERSION}\n"
    said = subprocess.run([python.parent / "treadle", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"treadle {VERSION}\n"
    server = run("-m", "server")
    assert server.returncode == 1
    assert "pip install '.[server]'" in server.stderr


def test_the_newest_entry_of_the_changelog_is_of_the_version() -> None:
    newest = re.search(r"(?m)^## (\S+)", (REPOSITORY / "CHANGELOG.md").read_text())
    assert newest is not None
    assert newest[1] == VERSION


def test_the_version_is_written_in_pyproject_and_the_tags_of_images_alone() -> None:
    written = re.compile(rb"(?<![\d.])" + re.escape(VERSION.encode()) + rb"(?![\d.])")
    directories = ("server", "client/treadle", "protos", "deploy", ".github")
    texts = [path for name in directories for path in (REPOSITORY / name).rglob("*") if path.is_file()]
    found = {
        path.relative_to(REPOSITORY) for path in texts if path.suffix != ".pyc" and written.search(path.read_bytes())
    }
    tagged = {path.relative_to(REPOSITORY) for path in (REPOSITORY / "deploy").rglob("kustomization.yaml")}
    assert found <= tagged
