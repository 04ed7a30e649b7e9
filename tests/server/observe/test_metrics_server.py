import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from server.observe import metrics_server
from server.observe.metrics_server import CannotServeMetrics, MetricsServer
from tests.server.observe.scraping import Observed
from tests.server.rpc.serving import PATIENCE, Start, eventually


@dataclass
class Port:
    server: MetricsServer
    number: int

    async def exchange(self, request: bytes) -> bytes:
        """All that the server sends before it closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        return answer


@pytest.fixture
async def port(start: Start) -> AsyncIterator[Port]:
    serving = Observed()
    await (await start(serving)).ready()
    server = MetricsServer(serving.metrics, "127.0.0.1", 0)
    yield Port(server, await server.start())
    await server.stop()


async def test_the_path_answers_with_all_metrics(port: Port) -> None:
    head, _, body = (await port.exchange(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"text/plain" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"treadle_num_requests_running 0.0\n" in body


async def test_openmetrics_is_answered_to_who_accepts_it(port: Port) -> None:
    accept = b"Accept: application/openmetrics-text; version=1.0.0; q=0.8, text/plain; q=0.5"
    answer = await port.exchange(b"GET /metrics?x=y HTTP/1.1\r\n" + accept + b"\r\n\r\n")
    assert b"Content-Type: application/openmetrics-text" in answer
    assert answer.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("request_line", "status"), [("GET / HTTP/1.1", 404), ("POST /metrics HTTP/1.1", 405), ("nonsense", 404)]
)
async def test_anything_else_is_an_error(port: Port, request_line: str, status: int) -> None:
    answer = await port.exchange(f"{request_line}\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_head_has_no_body(port: Port) -> None:
    answer = await port.exchange(b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")


async def test_a_request_that_is_too_long_gets_no_answer(port: Port) -> None:
    with pytest.raises((ConnectionResetError, AssertionError)):
        assert await port.exchange(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n")


async def test_who_asks_for_nothing_is_left_and_holds_up_nobody(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "EXCHANGE_TIME", 0.05)
    silent = [await asyncio.open_connection("127.0.0.1", port.number) for _ in range(3)]
    assert (await port.exchange(b"GET /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    for reader, writer in silent:
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()


async def test_connections_beyond_the_limit_are_closed_until_others_end(port: Port) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", port.number) for _ in range(metrics_server.MAX_CONNECTIONS)]
    await eventually(lambda: port.server.open_count == metrics_server.MAX_CONNECTIONS)
    reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
    assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    writer.close()
    for _, each in silent:
        each.close()
    await eventually(lambda: port.server.open_count == 0)
    assert (await port.exchange(b"GET /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_a_port_in_use_is_said_with_the_setting_that_names_it(port: Port) -> None:
    other = MetricsServer(port.server.metrics, "127.0.0.1", port.number)
    with pytest.raises(CannotServeMetrics, match=f"127.0.0.1:{port.number} .*--metrics-port"):
        await other.start()
