"""Requests that must be refused, by the field that is to blame."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration
from treadle.v1 import generation_pb2 as pb

from tests.server.fakes import BOS, VOCABULARY_SIZE
from tests.server.rpc.serving import generate_request


@dataclass(frozen=True)
class Invalid:
    """A request and the field that is to blame for its refusal."""

    field: str
    request: pb.GenerateRequest

    def __str__(self) -> str:
        return self.field


def invalid_requests() -> list[Invalid]:
    return [*_requests(), *_sampling(), *_stopping(), *_output(), *_constraints()]


def _invalid(field: str, change: pb.GenerateRequest) -> Invalid:
    request = generate_request()
    request.MergeFrom(change)
    return Invalid(field, request)


def _requests() -> Iterator[Invalid]:
    unknown_role = pb.Chat(
        messages=[pb.ChatMessage(role="user", content="a"), pb.ChatMessage(role="robot", content="b")]
    )
    assistant_first = pb.Chat(messages=[pb.ChatMessage(role="assistant", content="a")])
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="a")])
    with_tools = pb.Chat(messages=chat.messages, tools=[pb.Tool(name="f")])
    token_ids = pb.TokenIds(ids=[BOS])
    yield Invalid("input", pb.GenerateRequest())
    for field, change in (
        ("request_id", pb.GenerateRequest(request_id="line\nbreak")),
        ("prompt", pb.GenerateRequest(prompt="x" * 127)),
        ("prompt", pb.GenerateRequest(prompt="x" * (128 * 5 + 1))),
        ("prompt", pb.GenerateRequest(prompt="x" * (128 * 5 + 1), truncate_prompt_tokens=8)),
        ("prompt", pb.GenerateRequest(prompt="x" * 128, truncate_prompt_tokens=128)),
        ("prompt_token_ids", pb.GenerateRequest(prompt_token_ids=pb.TokenIds())),
        ("prompt_token_ids", pb.GenerateRequest(prompt_token_ids=pb.TokenIds(ids=[1] * 128))),
        ("prompt_token_ids.ids", pb.GenerateRequest(prompt_token_ids=pb.TokenIds(ids=[VOCABULARY_SIZE]))),
        ("chat.messages", pb.GenerateRequest(chat=assistant_first)),
        ("chat.messages", pb.GenerateRequest(chat=pb.Chat())),
        ("chat.messages[1].role", pb.GenerateRequest(chat=unknown_role)),
        ("chat.tools", pb.GenerateRequest(chat=with_tools)),
        ("cache_salt", pb.GenerateRequest(cache_salt="x" * 129)),
        ("truncate_prompt_tokens", pb.GenerateRequest(truncate_prompt_tokens=0)),
        ("add_special_tokens", pb.GenerateRequest(chat=chat, add_special_tokens=True)),
        ("add_special_tokens", pb.GenerateRequest(chat=chat, add_special_tokens=False)),
        ("add_special_tokens", pb.GenerateRequest(prompt_token_ids=token_ids, add_special_tokens=True)),
        ("priority", pb.GenerateRequest(priority=101)),
        ("priority", pb.GenerateRequest(priority=-101)),
    ):
        yield _invalid(field, change)


def _sampling() -> Iterator[Invalid]:
    def forbidden(*token_ids: int) -> pb.TokenIds:
        return pb.TokenIds(ids=token_ids)

    for field, sampling in (
        *_numbers_out_of_range(),
        ("n", pb.SamplingParams(n=0)),
        ("n", pb.SamplingParams(n=13)),
        ("logit_bias[7]", pb.SamplingParams(logit_bias={7: 100.5})),
        ("logit_bias[7]", pb.SamplingParams(logit_bias={3: 1, 7: -100.5})),
        ("logit_bias[7]", pb.SamplingParams(logit_bias={7: math.nan})),
        ("logit_bias[7]", pb.SamplingParams(logit_bias={7: -math.inf})),
        (f"logit_bias[{VOCABULARY_SIZE}]", pb.SamplingParams(logit_bias={VOCABULARY_SIZE: 0})),
        (f"logit_bias[{2**32 - 1}]", pb.SamplingParams(logit_bias={2**32 - 1: 1})),
        ("logit_bias", pb.SamplingParams(logit_bias=dict.fromkeys(range(1025), 0.0))),
        ("forbidden_sequences", pb.SamplingParams(forbidden_sequences=[forbidden(1)] * 129)),
        ("forbidden_sequences[1]", pb.SamplingParams(forbidden_sequences=[forbidden(1), forbidden()])),
        ("forbidden_sequences[0]", pb.SamplingParams(forbidden_sequences=[forbidden(*[1] * 33)])),
        ("forbidden_sequences[0]", pb.SamplingParams(forbidden_sequences=[forbidden(1, VOCABULARY_SIZE)])),
    ):
        yield _invalid(f"sampling.{field}", pb.GenerateRequest(sampling=sampling))


def _numbers_out_of_range() -> Iterator[tuple[str, pb.SamplingParams]]:
    for field, too_low, too_high in (
        ("temperature", -0.5, 100.5),
        ("top_p", 0.0, 1.5),
        ("min_p", -0.1, 1.1),
        ("typical_p", 0.0, 1.1),
        ("repetition_penalty", 0.0, 100.5),
        ("frequency_penalty", -100.5, 100.5),
        ("presence_penalty", -100.5, 100.5),
    ):
        for value in (too_low, too_high, math.nan, math.inf, -math.inf):
            sampling = pb.SamplingParams()
            setattr(sampling, field, value)
            yield field, sampling


def _stopping() -> Iterator[Invalid]:
    for field, stopping in (
        ("max_new_tokens", pb.StoppingCriteria(max_new_tokens=500)),
        ("max_new_tokens", pb.StoppingCriteria(max_new_tokens=0)),
        ("min_new_tokens", pb.StoppingCriteria(min_new_tokens=9)),
        ("stop", pb.StoppingCriteria(stop=["x"] * 17)),
        ("stop[1]", pb.StoppingCriteria(stop=["x", ""])),
        ("stop[0]", pb.StoppingCriteria(stop=["x" * 1025])),
        ("stop_token_ids", pb.StoppingCriteria(stop_token_ids=[999])),
        ("stop_token_ids", pb.StoppingCriteria(stop_token_ids=[1] * 129)),
        ("time_limit", pb.StoppingCriteria(time_limit=Duration(seconds=1, nanos=-1))),
        ("time_limit", pb.StoppingCriteria(time_limit=Duration(seconds=-1))),
        ("time_limit", pb.StoppingCriteria(time_limit=Duration())),
    ):
        yield _invalid(f"stopping.{field}", pb.GenerateRequest(stopping=stopping))


def _output() -> Iterator[Invalid]:
    nothing = pb.OutputOptions(omit_text=True, omit_token_ids=True)
    yield _invalid("output", pb.GenerateRequest(output=nothing))
    for field, output in (
        ("logprobs", pb.OutputOptions(logprobs=21)),
        ("prompt_logprobs", pb.OutputOptions(prompt_logprobs=21)),
        ("logprobs_of", pb.OutputOptions(logprobs_of=pb.LOGPROBS_OF_PROCESSED)),
        ("logprobs_of", pb.OutputOptions(logprobs_of=pb.LOGPROBS_OF_RAW, prompt_logprobs=1)),
        ("logprobs_of", pb.OutputOptions.FromString(b"\x18\x01\x28\x63")),  # logprobs 1, logprobs_of 99
        ("parse_tool_calls", pb.OutputOptions.FromString(b"\x50\x63")),  # 99
        ("chunk_interval", pb.OutputOptions(chunk_interval=Duration(seconds=60, nanos=1))),
        ("chunk_interval", pb.OutputOptions(chunk_interval=Duration(nanos=-1))),
        ("chunk_interval", pb.OutputOptions(chunk_interval=Duration(seconds=1, nanos=-1))),
    ):
        yield _invalid(f"output.{field}", pb.GenerateRequest(output=output))


def _constraints() -> Iterator[Invalid]:
    yield _invalid("constraint", pb.GenerateRequest(constraint=pb.Constraint()))
    for field, constraint in (
        ("json_schema", pb.Constraint(json_schema="")),
        ("json_schema", pb.Constraint(json_schema="x" * (64 * 1024 + 1))),
        ("regex", pb.Constraint(regex="")),
        ("regex", pb.Constraint(regex="not taken by the fake")),
        ("grammar", pb.Constraint(grammar="")),
        ("grammar", pb.Constraint(grammar="not taken by the fake")),
        ("json_object", pb.Constraint(json_object=pb.JsonObject())),
        ("choice", pb.Constraint(choice=pb.Choice())),
        ("choice", pb.Constraint(choice=pb.Choice(choices=["x"] * 1025))),
        ("choice", pb.Constraint(choice=pb.Choice(choices=["x" * 1024] * 65))),
        ("choice.choices[1]", pb.Constraint(choice=pb.Choice(choices=["x", ""]))),
    ):
        yield _invalid(f"constraint.{field}", pb.GenerateRequest(constraint=constraint))
