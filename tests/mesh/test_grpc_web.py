"""gRPC-Web, as browsers speak it, https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md, over HTTP/1.1."""

import base64
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.client import HTTPResponse

import pytest
from google.protobuf.message import Message
from treadle.v1 import generation_pb2 as pb

from tests.mesh.envoy import Envoy
from tests.mesh.http_call import http_call
from tests.mesh.replica import Replica, eventually

BINARY, TEXT = "application/grpc-web+proto", "application/grpc-web-text+proto"
TRAILERS = 0x80
METHOD = "/treadle.v1.GenerationService/Generate"
PAGE = "https://chat.example.com"


@dataclass
class WebAnswer:
    messages: list[pb.GenerateResponse]
    trailers: dict[str, str]


def framed(message: Message) -> bytes:
    raw = message.SerializeToString()
    return struct.pack(">BI", 0, len(raw)) + raw


def frames(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Each frame's flags and what it holds."""
    while body:
        flags, length = struct.unpack(">BI", body[:5])
        yield flags, body[5 : 5 + length]
        body = body[5 + length :]


def from_text(body: bytes) -> bytes:
    """Of pieces in base64, each with padding of its own."""
    quanta = (body[i : i + 4] for i in range(0, len(body), 4))
    return b"".join(map(base64.b64decode, quanta))


def post(envoy: Envoy, request: pb.GenerateRequest, content_type: str) -> AbstractContextManager[HTTPResponse]:
    body = framed(request) if content_type == BINARY else base64.b64encode(framed(request))
    headers = {"content-type": content_type, "accept": content_type, "x-grpc-web": "1", "origin": PAGE}
    return http_call(envoy, "POST", METHOD, body, headers)


def generate(envoy: Envoy, request: pb.GenerateRequest, content_type: str) -> WebAnswer:
    with post(envoy, request, content_type) as response:
        assert response.status == 200
        assert response.headers["access-control-allow-origin"] == PAGE
        body = response.read()
    answer = WebAnswer([], {name.lower(): value for name, value in response.headers.items()})
    for flags, content in frames(from_text(body) if response.headers["content-type"] == TEXT else body):
        if flags & TRAILERS:
            for line in content.decode().splitlines():
                name, _, value = line.partition(":")
                answer.trailers[name] = value
        else:
            answer.messages.append(pb.GenerateResponse.FromString(content))
    return answer


@pytest.mark.parametrize("content_type", [BINARY, TEXT])
def test_a_stream_ends_with_its_result_and_trailers(envoy: Envoy, content_type: str) -> None:
    stopping = pb.StoppingCriteria(max_new_tokens=5, ignore_eos=True)
    answer = generate(envoy, pb.GenerateRequest(prompt="hello", stopping=stopping), content_type)
    assert answer.messages[0].started.request_id == answer.trailers["x-request-id"]
    assert sum(len(message.tokens.token_ids) for message in answer.messages) == 5
    assert answer.messages[-1].HasField("result")
    assert answer.trailers["grpc-status"] == "0"


@pytest.mark.parametrize("content_type", [BINARY, TEXT])
def test_an_error_has_its_status_and_details(envoy: Envoy, content_type: str) -> None:
    answer = generate(envoy, pb.GenerateRequest(prompt="hello", cache_salt="x" * 200), content_type)
    assert answer.messages == []
    assert answer.trailers["grpc-status"] == "3"
    assert "cache_salt" in answer.trailers["grpc-message"]
    assert answer.trailers["grpc-status-details-bin"]


def test_leaving_ends_the_work(envoy: Envoy, replicas: list[Replica]) -> None:
    stopping = pb.StoppingCriteria(max_new_tokens=1000, ignore_eos=True)
    with post(envoy, pb.GenerateRequest(prompt="hello", stopping=stopping), BINARY) as response:
        response.read(5)
        assert sum(replica.running() for replica in replicas) == 1
    eventually(lambda: not any(replica.running() for replica in replicas))


@pytest.mark.parametrize(("origin", "allowed"), [(PAGE, PAGE), ("https://elsewhere.example.com", None)])
def test_scripts_of_the_pages_that_are_named_may_call(envoy: Envoy, origin: str, allowed: str | None) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-grpc-web,content-type"}
    with http_call(envoy, "OPTIONS", METHOD, None, {"origin": origin, **asked}) as response:
        assert response.headers["access-control-allow-origin"] == allowed
