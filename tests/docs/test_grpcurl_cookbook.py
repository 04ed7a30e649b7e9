"""docs/GRPCURL.md: each of its commands does what it says there, with the real tool against the real server."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.answers import nearly, parsed
from tests.docs.console import Example, examples
from tests.server_process import REAL, serving

COOKBOOK = Path("docs/GRPCURL.md")
ADDRESS = "127.0.0.1:50051"
"""The server's, in the document."""
PATIENCE = 120
"""Seconds a command may take; they pass only where it fails."""
EXAMPLES = examples(COOKBOOK)
STATUSES = {"NotFound": 5, "InvalidArgument": 3, "DeadlineExceeded": 4}


@pytest.fixture(scope="module")
def tools() -> str:
    """A PATH with grpcurl, which is beside this Python where `make` has installed it, or anywhere else."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if shutil.which("grpcurl", path=path) is None:
        pytest.skip("grpcurl is not installed")
    return path


@pytest.fixture(scope="module")
def address(tools: str) -> Iterator[str]:
    with serving(REAL, "--device=cpu", "--kv-memory=256MiB") as address:
        yield address


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"line{example.line}")
def test_the_command_prints_what_the_document_says(example: Example, address: str, tools: str) -> None:
    for tool in ("buf", "jq"):
        if f"{tool} " in example.command and shutil.which(tool, path=tools) is None:
            pytest.skip(f"{tool} is not installed")
    ended = subprocess.run(
        ["bash", "-c", example.command.replace(ADDRESS, address)],
        env={**os.environ, "PATH": tools},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    printed, documented = parsed(ended.stdout), parsed(example.output)
    assert printed.messages == nearly(documented.messages)
    assert printed.lines == documented.lines
    assert ended.returncode == _exit_status(example)


def _exit_status(example: Example) -> int:
    """As the document says: 64 and the number of the status code."""
    codes = [code for name, code in STATUSES.items() if f"Code: {name}" in example.output]
    if "-format-error" in example.command:
        codes = [parsed(example.output).messages[0]["code"]]
    return 64 + codes[0] if codes else 0


@pytest.mark.parametrize(
    "subject",
    [
        " list",
        " describe ",
        "/Generate",
        "/Complete",
        '"chat"',
        '"json_schema"',
        '"logprobs"',
        '"stop"',
        "/Tokenize",
        "/Detokenize",
        "/GetModel",
        "/GetLoad",
        "/Check",
        "/Watch",
        " -max-time ",
        "x-request-id",
        " -format-error ",
    ],
)
def test_the_document_has_a_command_for(subject: str) -> None:
    assert any(subject in example.command and example.output for example in EXAMPLES)
