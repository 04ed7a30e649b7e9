"""JSON over HTTP/1.1: Envoy puts it into gRPC by the annotations of the .proto file."""

import json
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPResponse
from typing import Any

import pytest

from tests.mesh.envoy import Envoy
from tests.mesh.http_call import http_call
from tests.mesh.replica import STEP_SECONDS, Replica, eventually

PROMPT = {"prompt": "hello", "stopping": {"max_new_tokens": 5, "ignore_eos": True}}
ENDLESS = {"prompt": "hello", "stopping": {"max_new_tokens": 1000, "ignore_eos": True}}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: str

    def json(self) -> Any:
        return json.loads(self.body)

    def lines(self) -> list[str]:
        return [line for line in self.body.splitlines() if line]


def ask(envoy: Envoy, method: str, path: str, body: object = None, **headers: str) -> Answer:
    """The whole answer."""
    with begin(envoy, method, path, body, **headers) as response:
        return Answer(response.status, response.headers, response.read().decode())


def begin(
    envoy: Envoy, method: str, path: str, body: object = None, **headers: str
) -> AbstractContextManager[HTTPResponse]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    content = None if body is None else json.dumps(body).encode()
    return http_call(envoy, method, path, content, {"content-type": "application/json", **named})


def test_questions_are_answered_under_the_names_of_the_proto_file(envoy: Envoy) -> None:
    assert ask(envoy, "GET", "/v1/model").json()["context_length"] == 4096
    assert ask(envoy, "GET", "/v1/load").json()["kv_blocks_total"] == 4096
    tokenized = ask(envoy, "POST", "/v1/tokenize", {"text": "hi"}).json()
    assert tokenized["token_ids"] == [257, 104, 105]
    assert ask(envoy, "POST", "/v1/detokenize", {"token_ids": [104, 105]}).json() == {"text": "hi"}


def test_a_completion_is_one_object_and_names_the_request_in_a_header(envoy: Envoy) -> None:
    answer = ask(envoy, "POST", "/v1/complete", {"generate": PROMPT}, x_request_id="mine")
    assert answer.headers["x-request-id"] == "mine"
    completed = answer.json()
    assert completed["request_id"] == "mine"
    (completion,) = completed["completions"]
    assert len(completion["token_ids"]) == 5
    assert completion["result"]["finish_reason"] == "FINISH_REASON_MAX_NEW_TOKENS"


def test_a_stream_is_an_event_a_line_as_it_is_made(envoy: Envoy) -> None:
    times, events = [], []
    with begin(envoy, "POST", "/v1/generate", PROMPT) as response:
        assert (response.status, response.headers["content-type"]) == (200, "application/json")
        for line in response:
            times.append(time.monotonic())
            events.append(json.loads(line))
    assert times[-1] - times[0] > 3 * STEP_SECONDS
    assert [next(iter(event)) for event in events] == ["started", *["tokens"] * (len(events) - 2), "result"]
    assert sum(len(event["tokens"].get("token_ids", [])) for event in events[1:-1]) == 5


def test_a_stream_is_server_sent_events_for_who_accepts_them(envoy: Envoy) -> None:
    answer = ask(envoy, "POST", "/v1/generate", PROMPT, accept="text/event-stream")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
    lines = answer.lines()
    assert all(line.startswith("data: {") for line in lines)
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "started" in events[0]
    assert "result" in events[-1]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_an_error_before_the_first_event_has_its_status_and_details(envoy: Envoy, accept: str) -> None:
    answer = ask(envoy, "POST", "/v1/generate", {"prompt": "hello", "sampling": {"temperature": -1}}, accept=accept)
    assert answer.status == 400
    error = answer.json()
    assert error["code"] == 3
    assert "sampling.temperature" in error["message"]
    (info,) = [detail for detail in error["details"] if detail["@type"].endswith("google.rpc.ErrorInfo")]
    assert info["reason"] == "INVALID_ARGUMENT"


def test_what_is_no_call_of_the_api_is_refused(envoy: Envoy) -> None:
    mistyped = ask(envoy, "POST", "/v1/generate", {"prompt": "hello", "stopping": {"max_new_tokens": "many"}})
    assert mistyped.status == 400
    assert "many" in mistyped.body
    assert ask(envoy, "GET", "/v1/load?when=now").status == 400
    assert ask(envoy, "GET", "/v1/nothing").status == 404


def test_envoy_drops_a_field_of_the_body_that_it_does_not_know(envoy: Envoy) -> None:
    misspelt = {**PROMPT, "sampling": {"temprature": 7000}}
    assert ask(envoy, "POST", "/v1/complete", {"generate": misspelt}).status == 200


def test_a_body_may_be_larger_than_envoys_buffers(envoy: Envoy) -> None:
    refused = ask(envoy, "POST", "/v1/tokenize", {"text": "x" * (3 << 19)})
    assert refused.status == 400
    assert f"text is {3 << 19} bytes long" in refused.json()["message"]


def test_an_error_in_mid_stream_shows_only_by_the_missing_result(envoy: Envoy, replicas: list[Replica]) -> None:
    answer = ask(envoy, "POST", "/v1/generate", ENDLESS, grpc_timeout="1S")
    events = [json.loads(line) for line in answer.lines()]
    assert answer.status == 200
    assert len(events) > 2
    assert not any("result" in event for event in events)
    eventually(lambda: not any(replica.running() for replica in replicas))


def test_leaving_ends_the_work(envoy: Envoy, replicas: list[Replica]) -> None:
    with begin(envoy, "POST", "/v1/generate", ENDLESS) as response:
        response.readline()
        assert sum(replica.running() for replica in replicas) == 1
    eventually(lambda: not any(replica.running() for replica in replicas))
