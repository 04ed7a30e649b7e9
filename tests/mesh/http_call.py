"""A call of plain HTTP/1.1."""

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.mesh.envoy import Envoy
from tests.mesh.replica import PATIENCE


@contextmanager
def http_call(
    envoy: Envoy, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> Iterator[http.client.HTTPResponse]:
    """The answer, from when its headers are there; its connection is closed with the block."""
    connection = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, dict(headers))
        with connection.getresponse() as response:
            yield response
    finally:
        connection.close()
