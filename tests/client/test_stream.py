"""Leaving a stream of the synchronous client, in every way, ends the server's work."""

import gc
import threading
from collections.abc import Iterator

import pytest
import treadle
from treadle import Client, Event

from tests.client.scripted import PATIENCE, REFUSES, RESULT, STARTED, ScriptedServer, endless, of, says, silent


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[Client]:
    server.play(endless)
    with Client(server.address) as client:
        yield client


def ended(server: ScriptedServer) -> bool:
    return server.asked[0].ended.wait(PATIENCE)


def test_break_ends_the_work_even_while_the_stream_is_held(client: Client, server: ScriptedServer) -> None:
    stream = client.generate("hi")
    for _ in stream:
        break
    assert ended(server)
    assert stream.started is not None


def test_break_out_of_the_text_ends_the_work(client: Client, server: ScriptedServer) -> None:
    stream = client.generate("hi")
    for piece in stream.text():
        assert piece == "again "
        break
    assert ended(server)


def test_an_exception_in_the_loop_ends_the_work(client: Client, server: ScriptedServer) -> None:
    stream = client.generate("hi")

    def read() -> None:
        for _ in stream:
            raise KeyError("mine")

    with pytest.raises(KeyError):
        read()
    del read
    assert ended(server)


def test_leaving_the_with_block_ends_the_work(client: Client, server: ScriptedServer) -> None:
    with client.generate("hi") as stream:
        events = iter(stream)
        next(events)
    assert ended(server)
    with pytest.raises(treadle.Cancelled):
        list(events)


def test_dropping_the_stream_unread_ends_the_work(client: Client, server: ScriptedServer) -> None:
    stream = client.generate("hi")
    server.wait_for_call()
    del stream
    gc.collect()
    assert ended(server)


def test_cancel_from_another_thread_ends_the_reading(client: Client, server: ScriptedServer) -> None:
    server.play(silent)
    stream = client.generate("hi")
    threading.Timer(0.1, stream.cancel).start()
    with pytest.raises(treadle.Cancelled):
        list(stream)
    assert ended(server)


def test_cancel_ends_the_wait_for_another_attempt(server: ScriptedServer) -> None:
    server.play(REFUSES)
    patient = treadle.RetryPolicy(initial_backoff=PATIENCE, max_backoff=PATIENCE)
    with Client(server.address, retry=patient) as client:
        stream = client.generate("hi")
        threading.Timer(0.3, stream.cancel).start()
        with pytest.raises(treadle.Cancelled):
            list(stream)
    assert len(server.asked) == 1


def test_the_result_is_there_after_the_end_and_not_before(server: ScriptedServer) -> None:
    with Client(server.address) as client:
        stream = client.generate("hi")
        with pytest.raises(RuntimeError, match="no result yet"):
            _ = stream.result
        events: list[Event] = list(stream)
        assert stream.result is events[-1]


def test_a_stream_is_read_once(server: ScriptedServer) -> None:
    with Client(server.address) as client:
        stream = client.generate("hi")
        assert "".join(stream.text()) == "Hello world"
        with pytest.raises(RuntimeError, match="read already"):
            iter(stream)


def test_each_of_several_generations_has_its_result_after_the_end(server: ScriptedServer) -> None:
    server.play(says(of(1, STARTED), of(1, RESULT), STARTED, RESULT))
    with Client(server.address) as client:
        stream = client.generate("hi", n=2)
        with pytest.raises(RuntimeError, match="no result yet"):
            _ = stream.results
        list(stream)
        assert stream.started == treadle.Started(0, "r1", 7, 3, 1)
        assert [result.index for result in stream.results] == [0, 1]
        with pytest.raises(RuntimeError, match="has 2 generations, and `result` is for one: use `results`"):
            _ = stream.result
