"""The clients and the command against the server as it ships, over its fake model."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import treadle
from treadle import AsyncClient, ChatMessage, Client, FinishReason, Health, RetryPolicy

from tests.client.cli.command import Command, end, interrupt
from tests.client.scripted import PATIENCE

ONCE = RetryPolicy(max_attempts=1)


@dataclass
class ServerProcess:
    popen: "subprocess.Popen[str]"
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @classmethod
    def start(cls, *flags: str) -> "ServerProcess":
        """Once it listens, which is before its model is there."""
        command = [sys.executable, "-m", "tests.server.serve_fake", "--port=0", "--log-format=json", *flags]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([".", "client"])}
        pipe = subprocess.PIPE
        popen = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=pipe, env=variables, text=True)
        assert popen.stderr is not None
        for line in popen.stderr:
            logged = json.loads(line)
            if logged["event"].startswith("listening"):
                return cls(popen, logged["port"])
        raise AssertionError("the server ended without listening")

    def stop(self) -> None:
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ServerProcess.start()
    wait_until_serving(server.address)
    yield server.address
    server.stop()


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, retry=ONCE) as client:
        yield client


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_until_serving(address: str) -> None:
    with Client(address) as client:
        wait_until(lambda: client.health(timeout=PATIENCE) is Health.SERVING)


def wait_until_idle(client: Client) -> None:
    wait_until(lambda: client.load().running == 0)


def test_stream_and_completion_are_the_same_generation(client: Client) -> None:
    stream = client.generate("hello", max_new_tokens=20, ignore_eos=True)
    text = "".join(stream.text())
    completion = client.complete("hello", max_new_tokens=20, ignore_eos=True)
    assert completion.text == text
    assert len(completion.token_ids) == 20
    assert stream.result.finish_reason is completion.result.finish_reason is FinishReason.MAX_NEW_TOKENS
    assert stream.result.usage.prompt_tokens == 6
    assert stream.started is not None
    assert stream.started.request_id


def test_the_same_seed_is_the_same_text(client: Client) -> None:
    texts = {client.complete("hello", temperature=1, seed=5, max_new_tokens=20).text for _ in range(3)}
    assert len(texts) == 1


def test_a_stop_token_and_a_time_limit_end_a_generation(client: Client) -> None:
    first, *_ = client.complete("hello", max_new_tokens=1, ignore_eos=True).token_ids
    result = client.complete("hello", stop_token_ids=[first]).result
    assert (result.finish_reason, result.stop_token_id) == (FinishReason.STOP_TOKEN, first)
    assert client.complete("hello", time_limit=0.1, ignore_eos=True).result.finish_reason is FinishReason.TIME_LIMIT


def test_break_frees_the_slot(client: Client) -> None:
    stream = client.generate("hello", ignore_eos=True)
    for _ in stream:
        break
    wait_until_idle(client)
    with pytest.raises(RuntimeError, match="no result yet"):
        _ = stream.result


def test_async_break_frees_the_slot(address: str, client: Client) -> None:
    async def run() -> None:
        async with AsyncClient(address) as other:
            async for _ in other.generate("hello", ignore_eos=True):
                break
            await asyncio.to_thread(wait_until_idle, client)
            assert await other.health() is Health.SERVING
            assert (await other.model()).id == "fake"
            tokenization = await other.tokenize("hé")
            assert await other.detokenize(tokenization.token_ids) == "hé"

    asyncio.run(run())


def test_ctrl_c_of_the_command_frees_the_slot(address: str, client: Client) -> None:
    process = Command(address).start("generate", "hello", "--ignore-eos", "--json")
    assert process.stdout is not None
    process.stdout.readline()
    interrupt(process)
    process.communicate()
    assert process.returncode == 130
    wait_until_idle(client)


def test_the_timeout_ends_the_generation(client: Client) -> None:
    with pytest.raises(treadle.DeadlineExceeded):
        list(client.generate("hello", ignore_eos=True, timeout=0.3))
    wait_until_idle(client)


def test_what_is_refused_names_the_field(client: Client) -> None:
    with pytest.raises(treadle.InvalidRequest, match="from 0 to 100") as raised:
        client.complete("hello", temperature=1000)
    assert [violation.field for violation in raised.value.violations] == ["generate.sampling.temperature"]
    assert raised.value.request_id
    with pytest.raises(treadle.InvalidRequest, match="a user must begin"):
        client.complete(chat=[ChatMessage("assistant", "hi")])


def test_a_request_id_in_flight_is_a_duplicate(client: Client) -> None:
    with client.generate("hello", ignore_eos=True, request_id="mine") as stream:
        events = iter(stream)
        next(events)
        with pytest.raises(treadle.DuplicateRequestId, match="mine"):
            client.complete("hello", request_id="mine")


def test_a_message_over_the_servers_limit_is_too_large(client: Client) -> None:
    with pytest.raises(treadle.MessageTooLarge):
        client.complete("x" * (17 << 20))


def test_the_server_describes_itself(client: Client) -> None:
    model, load = client.model(), client.load()
    assert (model.context_length, model.vocabulary_size, model.special_tokens.eos_token_ids) == (128, 260, (256,))
    assert model.special_tokens.pad_token_id is None
    assert model.defaults.max_new_tokens is None
    assert (load.slots, load.kv_blocks_total) == (model.limits.max_slots, 64)
    assert load.since.tzinfo is not None
    assert client.tokenize(chat=[ChatMessage("user", "hi")]).tokens[0] == "u"
    with pytest.raises(treadle.NotSupported):
        client.health("nobody")


def test_a_server_that_dies_in_a_stream_is_unavailable_and_not_asked_again() -> None:
    server = ServerProcess.start()
    try:
        with Client(server.address, retry=RetryPolicy(max_attempts=20, max_backoff=10)) as client:
            stream = iter(client.generate("hello", ignore_eos=True))
            next(stream)
            server.popen.kill()
            with pytest.raises(treadle.Unavailable):
                list(stream)
    finally:
        server.stop()


def test_a_server_that_dies_under_the_command_is_one_plain_line() -> None:
    server = ServerProcess.start()
    try:
        process = Command(server.address).start("generate", "hello", "--ignore-eos", "--json")
        assert process.stdout is not None
        process.stdout.readline()
        server.popen.kill()
        ended = end(process)
    finally:
        server.stop()
    assert ended.status == 4
    assert ended.err.count("\n") == 1
    assert json.loads(ended.err)["error"] == "Unavailable"


def test_a_server_whose_model_still_loads_is_unavailable_for_now() -> None:
    server = ServerProcess.start("--model=endless")
    try:
        with Client(server.address, retry=ONCE) as client:
            assert client.health() is Health.NOT_SERVING
            with pytest.raises(treadle.Unavailable) as raised:
                client.complete("hello")
        assert (raised.value.reason, raised.value.retry_after) == ("NOT_READY", 5)
        ended = Command(server.address).run("health")
        assert Command(server.address).run("health", "liveness").out == "serving\n"
        assert (ended.status, ended.out) == (4, "not serving\n")
    finally:
        server.stop()


@pytest.mark.parametrize("flag", ["--json", ""])
def test_every_question_has_an_answer_for_people_and_machines(address: str, flag: str) -> None:
    flags = [flag] if flag else []
    for question, expected in (("model", "fake"), ("load", "kv"), ("health", "serving"), ("tokenize", "104")):
        ended = Command(address).run(question, *(["h"] if question == "tokenize" else []), *flags)
        assert (ended.status, ended.err) == (0, "")
        assert expected in ended.out
        if flag:
            json.loads(ended.out)


PATIENT = RetryPolicy(max_attempts=1000, initial_backoff=0.05, max_backoff=PATIENCE, multiplier=1.0)


def complete(address: str, retry: RetryPolicy) -> str:
    with Client(address, retry=retry) as client:
        return client.complete("hello", ignore_eos=True, timeout=PATIENCE).text


def complete_async(address: str, retry: RetryPolicy) -> str:
    async def run() -> str:
        async with AsyncClient(address, retry=retry) as client:
            return (await client.complete("hello", ignore_eos=True, timeout=PATIENCE)).text

    return asyncio.run(run())


@pytest.mark.parametrize("complete", [complete, complete_async])
def test_a_completion_whose_server_dies_is_not_asked_of_the_one_that_follows(
    complete: Callable[[str, RetryPolicy], str],
) -> None:
    server = ServerProcess.start()
    wait_until_serving(server.address)
    with ThreadPoolExecutor() as pool:
        completion = pool.submit(complete, server.address, PATIENT)
        with Client(server.address) as client:
            wait_until(lambda: client.load().running == 1)
        server.stop()
        follower = ServerProcess.start(f"--port={server.port}")
        try:
            with pytest.raises(treadle.Unavailable) as raised:
                completion.result(PATIENCE)
        finally:
            follower.stop()
    assert not raised.value.is_refusal


@pytest.mark.parametrize("complete", [complete, complete_async])
def test_a_completion_asked_before_there_is_a_server_is_answered_once_there_is_one(
    complete: Callable[[str, RetryPolicy], str],
) -> None:
    gone = ServerProcess.start()
    gone.stop()
    with pytest.raises(treadle.Unavailable) as raised:
        complete(gone.address, ONCE)
    assert raised.value.is_refusal
    with ThreadPoolExecutor() as pool:
        completion = pool.submit(complete, gone.address, PATIENT)
        server = ServerProcess.start(f"--port={gone.port}")
        try:
            assert completion.result(PATIENCE)
        finally:
            server.stop()


@pytest.mark.parametrize("complete", [complete, complete_async])
def test_a_name_that_cannot_be_looked_up_is_a_refusal(complete: Callable[[str, RetryPolicy], str]) -> None:
    with pytest.raises(treadle.Unavailable) as raised:
        complete("no..name:1", ONCE)  # malformed, so that no name server is asked
    assert raised.value.is_refusal
