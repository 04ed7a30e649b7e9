"""Messages to dataclasses: every field of every message comes back typed."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from math import inf
from typing import Any

import pytest
import treadle
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from treadle import (
    Alternative,
    Completion,
    Content,
    FinishReason,
    Prompt,
    Reasoning,
    Result,
    Started,
    Timing,
    TokenLogprob,
    Tokens,
    ToolCall,
    ToolCallPart,
    Usage,
    from_wire,
)
from treadle.v1 import generation_pb2 as pb

WIRE_LOGPROBS = [
    pb.TokenLogprob(
        token_id=5,
        logprob=-0.5,
        text="b",
        rank=2,
        alternatives=[
            pb.Alternative(token_id=6, logprob=-0.25, text="a"),
            pb.Alternative(token_id=5, logprob=-0.5, text="b"),
        ],
    ),
    pb.TokenLogprob(token_id=7, logprob=-inf, rank=9),
]
LOGPROBS = (
    TokenLogprob(5, -0.5, "b", 2, (Alternative(6, -0.25, "a"), Alternative(5, -0.5, "b"))),
    TokenLogprob(7, -inf, "", 9, ()),
)
WIRE_RESULT = pb.Result(
    finish_reason=pb.FINISH_REASON_STOP_TOKEN,
    stop_token_id=0,
    usage=pb.Usage(prompt_tokens=1, completion_tokens=2, cached_tokens=3),
    timing=pb.Timing(
        queued=Duration(seconds=1),
        prefill=Duration(nanos=500_000_000),
        time_to_first_token=Duration(seconds=2),
        total=Duration(seconds=3),
    ),
    satisfies_constraint=False,
)
RESULT = Result(2, FinishReason.STOP_TOKEN, None, 0, Usage(1, 2, 3), Timing(1.0, 0.5, 2.0, 3.0), False)


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (
            pb.GenerateResponse(
                started=pb.Started(request_id="r", seed=2**64 - 1, prompt_token_count=3, cached_token_count=1)
            ),
            Started(2, "r", 2**64 - 1, 3, 1),
        ),
        (
            pb.GenerateResponse(prompt=pb.Prompt(token_ids=[4, 5], text="hi", logprobs=WIRE_LOGPROBS)),
            Prompt(2, (4, 5), "hi", LOGPROBS),
        ),
        (
            pb.GenerateResponse(
                tokens=pb.TokenChunk(
                    token_ids=[5, 7],
                    text="bc",
                    logprobs=WIRE_LOGPROBS,
                    usage=pb.Usage(prompt_tokens=1, completion_tokens=2, cached_tokens=3),
                )
            ),
            Tokens(2, (5, 7), "bc", LOGPROBS, Usage(1, 2, 3)),
        ),
        (pb.GenerateResponse(tokens=pb.TokenChunk(text="b")), Tokens(2, (), "b", (), None)),
        (pb.GenerateResponse(content=pb.ContentChunk(text="so")), Content(2, "so")),
        (pb.GenerateResponse(reasoning=pb.ReasoningChunk(text="hm")), Reasoning(2, "hm")),
        (
            pb.GenerateResponse(tool_call=pb.ToolCallChunk(call=1, id="call00001", name="sum", arguments_json="{")),
            ToolCallPart(2, 1, "call00001", "sum", "{", False),
        ),
        (
            pb.GenerateResponse(tool_call=pb.ToolCallChunk(call=1, arguments_json="}", complete=True)),
            ToolCallPart(2, 1, None, None, "}", True),
        ),
        (pb.GenerateResponse(result=WIRE_RESULT), RESULT),
    ],
)
def test_every_event_comes_back_with_all_its_fields(message: pb.GenerateResponse, event: treadle.Event) -> None:
    message.index = 2
    assert from_wire.event(message) == event


def test_every_kind_of_event_is_known() -> None:
    for field in pb.GenerateResponse.DESCRIPTOR.oneofs_by_name["event"].fields:
        message = pb.GenerateResponse(index=3)
        getattr(message, field.name).SetInParent()
        event = from_wire.event(message)
        assert event is not None
        assert event.index == 3


def test_what_a_result_does_not_say_is_none() -> None:
    result = from_wire.result(0, pb.Result(stop_sequence="", timing=pb.Timing(queued=Duration(seconds=1))))
    assert (result.stop_sequence, result.stop_token_id, result.satisfies_constraint) == ("", None, None)
    assert (result.timing.queued, result.timing.time_to_first_token) == (1.0, None)


@pytest.mark.parametrize(
    "name", [name for name in pb.FinishReason.DESCRIPTOR.values_by_name if not name.endswith("_UNSPECIFIED")]
)
def test_every_finish_reason_is_the_apis_of_the_same_name(name: str) -> None:
    result = from_wire.result(0, pb.Result(finish_reason=pb.FinishReason.Value(name)))
    assert name == f"FINISH_REASON_{result.finish_reason.name}"


def test_a_completion_comes_back_with_all_its_fields() -> None:
    message = pb.Completion(
        index=2,
        text="bc",
        token_ids=[5, 7],
        result=WIRE_RESULT,
        prompt=pb.Prompt(token_ids=[1], text="p"),
        logprobs=WIRE_LOGPROBS,
        reasoning="hm",
        tool_calls=[pb.ToolCall(id="call00001", name="sum", arguments_json="{}")],
        content="so",
        input=3,
        seed=11,
        mean_logprob=-0.5,
    )
    (completion,) = from_wire.completions(pb.CompleteResponse(request_id="r", completions=[message], seed=1), 1)
    assert completion == Completion(
        request_id="r",
        input=3,
        index=2,
        seed=11,
        text="bc",
        token_ids=(5, 7),
        result=RESULT,
        prompt=Prompt(2, (1,), "p", ()),
        logprobs=LOGPROBS,
        content="so",
        reasoning="hm",
        tool_calls=(ToolCall("call00001", "sum", "{}"),),
        mean_logprob=-0.5,
    )
    assert {field.name for field in pb.Completion.DESCRIPTOR.fields} < {field.name for field in fields(Completion)}


def test_what_a_completion_does_not_have_is_none_or_empty() -> None:
    message = pb.CompleteResponse(completions=[pb.Completion(result=WIRE_RESULT)])
    (completion,) = from_wire.completions(message, 1)
    assert (completion.prompt, completion.mean_logprob, completion.logprobs) == (None, None, ())
    assert (completion.content, completion.reasoning, completion.tool_calls) == ("", "", ())


def fill(message: Message, number: int = 1) -> int:
    """Gives every field a value of its own; its numbers are whole and float32 holds them. Returns the next number."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            if not field.is_repeated:
                number = fill(getattr(message, field.name), number)
        elif field.is_repeated:
            getattr(message, field.name).append(number)
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, str(number))
        elif field.type == FieldDescriptor.TYPE_BOOL:
            setattr(message, field.name, number % 2 == 0)
        else:
            setattr(message, field.name, number)
        number += 1
    return number


def leaves(record: object, path: str = "") -> Iterator[tuple[str, Any]]:
    assert is_dataclass(record)
    for field in fields(record):
        value = getattr(record, field.name)
        if is_dataclass(value):
            yield from leaves(value, f"{path}{field.name}.")
        else:
            yield path + field.name, value


def value_at(message: Message, path: str) -> object:
    value: Any = message
    for name in path.split("."):
        value = getattr(value, name)
    return tuple(value) if isinstance(value, list) or hasattr(value, "append") else value


def test_a_model_is_described_with_all_that_the_server_says() -> None:
    message = pb.GetModelResponse()
    fill(message)
    told = dict(leaves(from_wire.model_info(message)))
    for path, value in told.items():
        name = path.removeprefix("defaults.")
        is_sampling = path.startswith("defaults.") and name in pb.SamplingParams.DESCRIPTOR.fields_by_name
        assert value == value_at(message, f"defaults.sampling.{name}" if is_sampling else path), path
    for record in ("special_tokens", "limits", "capabilities"):
        there = {f"{record}.{field.name}" for field in getattr(message, record).DESCRIPTOR.fields}
        assert there == {path for path in told if path.startswith(f"{record}.")}
    of_sampling = {f"defaults.{field.name}" for field in pb.SamplingParams.DESCRIPTOR.fields}
    of_one_request = {f"defaults.{name}" for name in ("seed", "logit_bias", "forbidden_sequences", "n", "best_of")}
    assert of_sampling - of_one_request < told.keys()


def test_what_a_server_does_not_say_of_its_defaults_is_what_changes_nothing() -> None:
    defaults = from_wire.model_info(pb.GetModelResponse()).defaults
    assert (defaults.top_p, defaults.typical_p, defaults.repetition_penalty) == (1.0, 1.0, 1.0)
    assert (defaults.min_p, defaults.presence_penalty, defaults.frequency_penalty) == (0.0, 0.0, 0.0)
    assert defaults.max_new_tokens is None


def test_a_capability_that_is_false_is_told_from_one_that_is_unknown() -> None:
    message = pb.GetModelResponse(capabilities=pb.Capabilities(embeddings=False))
    capabilities = from_wire.model_info(message).capabilities
    assert capabilities.embeddings is False
    assert capabilities.scores is None
