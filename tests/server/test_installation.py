"""The server in an environment of its own that lacks what it needs."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from server.installation import missing_packages

METADATA = """\
Metadata-Version: 2.4
Name: treadle
Version: 0.1.0
Requires-Dist: grpcio<2,>=1.81
Provides-Extra: server
Requires-Dist: torch<3,>=2.9; extra == "server"
Requires-Dist: structlog<27,>=24.4; extra == 'server'
Provides-Extra: dev
Requires-Dist: pytest<10,>=9; extra == "dev"
"""


def install(site_packages: Path, name: str, metadata: str) -> None:
    """What pip leaves of a package where its metadata is concerned."""
    directory = site_packages / f"{name}-1.dist-info"
    directory.mkdir(parents=True)
    (directory / "METADATA").write_text(metadata)


def start_server(environment: Path) -> "subprocess.CompletedProcess[str]":
    """With nothing of this checkout in sight but the server's code."""
    code = environment / "code"
    code.mkdir()
    (code / "server").symlink_to(Path("server").resolve())
    command = [str(environment / "bin" / "python"), "-m", "server", "--help"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=code)


def test_where_only_the_client_is_installed_the_server_says_in_a_line_what_to_install(tmp_path: Path) -> None:
    venv.create(tmp_path)
    site_packages = next(tmp_path.glob("lib/python*/site-packages"))
    install(site_packages, "treadle", METADATA)
    install(site_packages, "grpcio", "Name: grpcio\nVersion: 1.81\n")
    ended = start_server(tmp_path)
    line = "treadle: error: the server needs torch, structlog: install with pip install '.[server]'\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", line)


def test_where_nothing_is_installed_it_says_so_too(tmp_path: Path) -> None:
    venv.create(tmp_path)
    ended = start_server(tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == "treadle: error: the server needs treadle: install with pip install '.[server]'\n"


def test_an_installed_package_is_found_under_any_spelling_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "treadle", 'Name: treadle\nVersion: 1\nRequires-Dist: Some-Package_a>=1; extra == "server"\n')
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert missing_packages() == ("Some-Package_a",)
    install(tmp_path, "some_package_a", "Name: some_package.a\nVersion: 1\n")
    assert missing_packages() == ()
