"""The port that Prometheus scrapes: HTTP, one path, on the event loop.

Everything a client can make grow is bounded: the connections at once, the size of a request and the time for it.
"""

import asyncio
import contextlib
from http import HTTPStatus

from server.observe.metrics import Metrics

PATH = "/metrics"
MAX_CONNECTIONS = 16
MAX_HEAD_BYTES = 16 << 10
EXCHANGE_TIME = 10.0
"""Seconds for a request and its answer."""


class CannotServeMetrics(Exception):
    """The address cannot be bound."""


class MetricsServer:
    """One exchange a connection."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        """A `port` of 0 takes any free one."""
        self.metrics, self._host, self._port = metrics, host, port
        self.open_count = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listens, and returns the port. Raises CannotServeMetrics."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=MAX_HEAD_BYTES)
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise CannotServeMetrics(f"cannot listen on {where} for metrics (--metrics-port): {error}") from error
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_count += 1
        try:
            if self.open_count <= MAX_CONNECTIONS:
                # Who sends no request, sends too much of it or leaves early gets no answer.
                with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    async with asyncio.timeout(EXCHANGE_TIME):
                        head = await reader.readuntil(b"\r\n\r\n")
                        writer.write(await self._answer(head.decode("latin-1")))
                        await writer.drain()
        finally:
            self.open_count -= 1
            writer.close()

    async def _answer(self, head: str) -> bytes:
        request_line, *headers = head.split("\r\n")
        method, _, rest = request_line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if path != PATH:
            return _response(HTTPStatus.NOT_FOUND, "text/plain", f"the metrics are at {PATH}\n".encode())
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"GET reads the metrics\n")
        exposition = await asyncio.to_thread(self.metrics.exposition, _header("accept", headers))
        return _response(HTTPStatus.OK, exposition.content_type, exposition.body, with_body=method == "GET")


def _header(name: str, headers: list[str]) -> str:
    """The value of the first of that name; empty where there is none."""
    for header in headers:
        key, _, value = header.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""


def _response(status: HTTPStatus, content_type: str, body: bytes, *, with_body: bool = True) -> bytes:
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + (body if with_body else b"")
