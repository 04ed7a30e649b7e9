"""SamplingParams from messages. Raises InvalidArgument naming the field as the client knows it."""

import secrets
import struct
from dataclasses import dataclass

from treadle.v1 import generation_pb2 as pb

from server.engine.errors import InvalidArgument
from server.engine.model import SamplingDefaults
from server.engine.sampling import (
    MAX_FORBIDDEN_SEQUENCE_LENGTH,
    MAX_FORBIDDEN_SEQUENCES,
    MAX_LOGIT_BIAS,
    Sampling,
)
from server.rpc.counts import check_count


def sampling(message: pb.SamplingParams, defaults: SamplingDefaults) -> Sampling:
    """Draws a seed where there is none. `n` and `best_of` are for `generation_counts`."""
    check_count("sampling.logit_bias", len(message.logit_bias), MAX_LOGIT_BIAS)
    check_count("sampling.forbidden_sequences", len(message.forbidden_sequences), MAX_FORBIDDEN_SEQUENCES)
    for i, sequence in enumerate(message.forbidden_sequences):
        check_count(f"sampling.forbidden_sequences[{i}]", len(sequence.ids), MAX_FORBIDDEN_SEQUENCE_LENGTH)

    def chosen(field: str) -> float | None:
        return shortest(getattr(message, field)) if message.HasField(field) else None  # type: ignore[arg-type]

    return Sampling.resolve(
        defaults,
        seed=message.seed if message.HasField("seed") else secrets.randbits(64),
        temperature=chosen("temperature"),
        top_k=message.top_k if message.HasField("top_k") else None,
        top_p=chosen("top_p"),
        min_p=chosen("min_p"),
        typical_p=chosen("typical_p"),
        repetition_penalty=chosen("repetition_penalty"),
        frequency_penalty=chosen("frequency_penalty") or 0.0,
        presence_penalty=chosen("presence_penalty") or 0.0,
        logit_bias=tuple((token_id, shortest(message.logit_bias[token_id])) for token_id in sorted(message.logit_bias)),
        forbidden_sequences=tuple(tuple(sequence.ids) for sequence in message.forbidden_sequences),
    )


def shortest(value: float) -> float:
    """The decimal the client wrote: the shortest that is this 32-bit float, so that 0.7 is 0.7."""
    for digits in range(6, 9):
        shortest = float(f"{value:.{digits}g}")
        if struct.pack("<f", shortest) == struct.pack("<f", value):
            return shortest
    return value


@dataclass(frozen=True, slots=True)
class GenerationCounts:
    """Of each input."""

    made: int
    best: int | None
    """How many of those made are answered, the best; None answers all of them as they are."""


def generation_counts(message: pb.SamplingParams, limit: int) -> GenerationCounts:
    """At most `limit` are made."""
    answered = message.n if message.HasField("n") else 1
    if not 1 <= answered <= limit:
        raise InvalidArgument("sampling.n", answered, f"must be from 1 to {limit}")
    if not message.HasField("best_of"):
        return GenerationCounts(answered, best=None)
    if not answered <= message.best_of <= limit:
        raise InvalidArgument("sampling.best_of", message.best_of, f"must be from n, {answered}, to {limit}")
    return GenerationCounts(message.best_of, best=answered)
