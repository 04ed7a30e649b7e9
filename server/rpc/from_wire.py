"""Request messages to the engine's dataclasses. Raises InvalidArgument naming the field as the client knows it."""

import secrets
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from google.protobuf.duration_pb2 import Duration
from treadle.v1 import generation_pb2 as pb

from server.engine.constraint import (
    MAX_CHOICES,
    Choice,
    Constraint,
    ConstraintSource,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
)
from server.engine.engine import Served
from server.engine.errors import InvalidArgument
from server.engine.model import ModelDescription, SamplingDefaults
from server.engine.request import MAX_STOP_SEQUENCES, MAX_STOP_TOKEN_IDS, Request, Sampling, Stopping
from server.engine.tokenizer import Tokenizer
from server.rpc.chat_from_wire import chat_token_ids

MAX_DURATION_SECONDS = 315_576_000_000
"""google.protobuf.Duration: about 10,000 years."""


@contextmanager
def fields_of(parent: str) -> Iterator[None]:
    """Names the fields of what happens inside as the fields of `parent`."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"{parent}.{error.field}", error.value, error.limit) from error


def request(
    message: pb.GenerateRequest, request_id: str, arrived_at: float, served: Served, compiled: Constraint | None = None
) -> Request:
    """Fills in what the message leaves unset, and tokenizes: work for a thread, not for the event loop."""
    model = served.model.description
    chosen = sampling(message.sampling, model.sampling_defaults)
    criteria = stopping(message.stopping)
    prompt = _prompt_token_ids(message, served)
    if criteria.max_new_tokens is None:
        criteria = replace(criteria, max_new_tokens=_default_max_new_tokens(model, len(prompt)))
    return Request(
        id=request_id,
        prompt_token_ids=prompt,
        prompt_field=message.WhichOneof("input") or "input",
        sampling=chosen,
        arrived_at=arrived_at,
        stopping=criteria,
        cache_salt=message.cache_salt,
        constraint=compiled,
    )


def sampling(message: pb.SamplingParams, defaults: SamplingDefaults) -> Sampling:
    return Sampling.resolve(
        defaults,
        seed=message.seed if message.HasField("seed") else secrets.randbits(64),
        temperature=_shortest(message.temperature) if message.HasField("temperature") else None,
        top_k=message.top_k if message.HasField("top_k") else None,
        top_p=_shortest(message.top_p) if message.HasField("top_p") else None,
    )


def stopping(message: pb.StoppingCriteria) -> Stopping:
    _check_count("stopping.stop", len(message.stop), MAX_STOP_SEQUENCES)
    _check_count("stopping.stop_token_ids", len(message.stop_token_ids), MAX_STOP_TOKEN_IDS)
    return Stopping(
        max_new_tokens=message.max_new_tokens if message.HasField("max_new_tokens") else None,
        min_new_tokens=message.min_new_tokens,
        stop=tuple(message.stop),
        stop_token_ids=frozenset(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        include_stop_text=message.include_stop_text,
        time_limit=_seconds("stopping.time_limit", message.time_limit) if message.HasField("time_limit") else None,
    )


def constraint(message: pb.Constraint) -> ConstraintSource:
    match message.WhichOneof("kind"):
        case "json_schema":
            return JsonSchema(message.json_schema)
        case "json_object":
            return JsonObject()
        case "regex":
            return Regex(message.regex)
        case "grammar":
            return Grammar(message.grammar)
        case "choice":
            _check_count("constraint.choice", len(message.choice.choices), MAX_CHOICES)
            return Choice(tuple(message.choice.choices))
        case _:
            raise InvalidArgument("constraint", "unset", "one of its kinds must be set")


def text_token_ids(text: str, tokenizer: Tokenizer, *, add_special_tokens: bool = True) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)


def text_or_chat(message: pb.TokenizeRequest, tokenizer: Tokenizer) -> list[int]:
    match message.WhichOneof("input"):
        case "text":
            add = message.add_special_tokens if message.HasField("add_special_tokens") else True
            return text_token_ids(message.text, tokenizer, add_special_tokens=add)
        case "chat":
            if message.HasField("add_special_tokens"):
                limit = "must be unset with a chat, whose template writes the special tokens"
                raise InvalidArgument("add_special_tokens", str(message.add_special_tokens).lower(), limit)
            return chat_token_ids(message.chat, tokenizer)
        case _:
            raise InvalidArgument("input", "unset", "one of text and chat must be set")


def check_known(token_ids: Sequence[int], described: ModelDescription) -> None:
    for i, token_id in enumerate(token_ids):
        if token_id >= described.vocabulary_size:
            limit = f"must be below the vocabulary size, {described.vocabulary_size}"
            raise InvalidArgument(f"token_ids[{i}]", token_id, limit)


def _prompt_token_ids(message: pb.GenerateRequest, served: Served) -> tuple[int, ...]:
    match message.WhichOneof("input"):
        case "prompt":
            return tuple(text_token_ids(message.prompt, served.tokenizer))
        case "prompt_token_ids":
            most = served.model.description.max_total_tokens - 1
            _check_count("prompt_token_ids", len(message.prompt_token_ids.ids), most)
            return tuple(message.prompt_token_ids.ids)
        case "chat":
            return tuple(chat_token_ids(message.chat, served.tokenizer))
        case _:
            raise InvalidArgument("input", "unset", "one of prompt, prompt_token_ids and chat must be set")


def _default_max_new_tokens(described: ModelDescription, prompt_length: int) -> int | None:
    """The model's default where it fits; where it does not, the generation goes on until nothing fits."""
    default = described.default_max_new_tokens
    fits = default is not None and prompt_length + default <= described.max_total_tokens
    return default if fits else None


def _check_count(field: str, count: int, limit: int) -> None:
    """Before a list is made of them: a message may carry millions."""
    if count > limit:
        raise InvalidArgument(field, f"{count} long", f"must be at most {limit}")


def _shortest(value: float) -> float:
    """The decimal the client wrote: the shortest that is this 32-bit float, so that 0.7 is 0.7."""
    for digits in range(6, 9):
        shortest = float(f"{value:.{digits}g}")
        if struct.pack("<f", shortest) == struct.pack("<f", value):
            return shortest
    return value


def _seconds(field: str, message: Duration) -> float:
    seconds, nanos = message.seconds, message.nanos
    same_sign = seconds == 0 or nanos == 0 or (seconds > 0) == (nanos > 0)
    if abs(seconds) > MAX_DURATION_SECONDS or abs(nanos) > 999_999_999 or not same_sign:
        raise InvalidArgument(field, f"{seconds} s and {nanos} ns", "must be a valid google.protobuf.Duration")
    return seconds + nanos / 1e9
