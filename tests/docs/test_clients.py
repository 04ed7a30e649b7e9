"""docs/CLIENTS.md: each of its commands makes the stubs of its language."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.client.examples import preparing
from tests.docs.console import examples

COMMANDS = examples(Path("docs/CLIENTS.md"))
NODE_MODULES = "client/examples/node/node_modules"
MADE = {
    "--python_out": {"generation_pb2.py", "generation_pb2.pyi", "generation_pb2_grpc.py"},
    "--go_out": {"generation.pb.go", "generation_grpc.pb.go"},
    "proto-loader-gen-types": {"generation.ts", "GenerationService.ts", "SamplingParams.ts"},
    "--java_out": {"Generation.java", "GenerationServiceGrpc.java"},
}
TOOLS = {
    "--python_out": (),
    "--go_out": ("protoc", "protoc-gen-go", "protoc-gen-go-grpc"),
    "proto-loader-gen-types": ("node", "npm"),
    "--java_out": ("protoc", "grpc_java_plugin"),
}


@pytest.mark.parametrize("what", MADE)
def test_the_command_makes_the_stubs(what: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    (command,) = (each.command for each in COMMANDS if what in each.command)
    preparing.need(*TOOLS[what])
    command = command.replace("build/stubs", str(tmp_path))
    if NODE_MODULES in command:
        assert pytestconfig.cache is not None
        node = preparing.node(pytestconfig.cache.mkdir("node-example"))
        command = command.replace(NODE_MODULES, str(node.folder / "node_modules"))
    environment = {**os.environ, "PATH": preparing.PATH}
    ended = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert {path.name for path in tmp_path.rglob("*")} >= MADE[what]


def test_every_command_of_the_document_is_tested() -> None:
    assert len(COMMANDS) == len(MADE)
    assert all(any(what in example.command for what in MADE) for example in COMMANDS)
