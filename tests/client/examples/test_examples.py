"""The examples in other languages against the server as it ships: each does what their README says it prints."""

import re
import time
from collections.abc import Iterator

import pytest
from treadle import Client

from tests.client.examples import preparing
from tests.client.examples.preparing import EXAMPLES, Prepared
from tests.docs.console import Example, examples
from tests.server_process import REAL, serving

ANYTHING = "…"
PATIENCE = 30.0
"""Seconds a test waits for what must happen; they pass only where it fails."""
NODE, GO, SHELL = "node", "go", "./generate.sh"
SHOWN = [
    pytest.param(example.command.split()[0], example, id=example.command)
    for example in examples(EXAMPLES / "README.md")
]

each_client = pytest.mark.parametrize(
    ("prepared", "start"),
    [(NODE, "node generate.mjs"), (GO, "go run ."), (SHELL, "./generate.sh")],
    indirect=["prepared"],
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(REAL, "--device=cpu", "--kv-memory=256MiB") as address:
        yield address


@pytest.fixture(scope="module")
def prepared(
    request: pytest.FixtureRequest, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Prepared:
    match request.param:
        case "node":
            assert pytestconfig.cache is not None
            return preparing.node(pytestconfig.cache.mkdir("node-example"))
        case "go":
            return preparing.go(tmp_path_factory.mktemp("go"))
        case _:
            return preparing.shell()


@pytest.mark.parametrize(("prepared", "example"), SHOWN, indirect=["prepared"])
def test_the_example_prints_what_the_readme_says(prepared: Prepared, example: Example, address: str) -> None:
    ended = prepared.run(example.command, address)
    pattern = re.escape(example.output.strip()).replace(ANYTHING, ".*")
    assert re.fullmatch(pattern, ended.stdout.strip(), re.DOTALL), ended.stdout
    is_error = "--deadline" in example.command or "--temperature" in example.command
    assert ended.returncode == (1 if is_error else 0)


@each_client
def test_leaving_the_call_stops_the_servers_work(prepared: Prepared, start: str, address: str) -> None:
    asked = 2000
    with Client(address) as client:
        before = client.load().tokens_generated
        ended = prepared.run(f'{start} --cancel-after 2 --max-new-tokens {asked} "One, two, three,"', address)
        deadline = time.monotonic() + PATIENCE
        while (load := client.load()).running:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert ended.stdout.endswith("\n[cancelled]\n")
    assert 0 < load.tokens_generated - before < asked


@each_client
def test_a_server_that_is_not_there_is_said_and_is_an_error(prepared: Prepared, start: str) -> None:
    ended = prepared.run(f"{start} hello", "127.0.0.1:1")
    assert "refused" in ended.stdout.lower()
    assert ended.returncode == 1


@pytest.mark.parametrize("client", [NODE, GO, SHELL])
@pytest.mark.parametrize("flag", ["", "--cancel-after ", "--deadline ", "--temperature "])
def test_the_readme_shows_of_each_client_how_it(client: str, flag: str) -> None:
    assert any(
        example.command.startswith(client) and flag in example.command for example in examples(EXAMPLES / "README.md")
    )
