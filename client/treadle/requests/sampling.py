"""How the next token is chosen."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from treadle.requests.part import Part
from treadle.v1 import generation_pb2 as pb

SCALARS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "n",
)


class SamplingOptions(TypedDict, total=False):
    """SamplingParams of the API, whose comments have the formulas and the order in which they apply."""

    temperature: float | None
    """0 takes the most probable token; at most 100."""
    top_p: float | None
    """Keeps the most probable tokens whose probabilities sum to this; above 0, at most 1."""
    top_k: int | None
    """Keeps this many of the most probable tokens; 0 keeps all."""
    min_p: float | None
    """Keeps the tokens at least this many times as probable as the most probable one; from 0 to 1."""
    typical_p: float | None
    """Keeps the most typical tokens whose probabilities sum to this; above 0, at most 1."""
    repetition_penalty: float | None
    """Makes tokens of the prompt and the output less probable; above 0, at most 100; 1 changes nothing."""
    presence_penalty: float | None
    """Makes tokens of the output less probable; from -100 to 100."""
    frequency_penalty: float | None
    """Makes tokens of the output less probable for each time they are in it; from -100 to 100."""
    logit_bias: Mapping[int, float] | None
    """Added to the logits of these token ids; from -100 to 100."""
    forbidden_sequences: Sequence[Sequence[int]] | None
    """Sequences of token ids that must not appear in the output."""
    seed: int | None
    """The same request with the same seed gets the same tokens; 64 bits, unsigned."""
    n: int | None
    """How many generations to make of the prompt."""


def write(sampling: Part, options: SamplingOptions) -> None:
    for name in SCALARS:
        sampling.set(name, options.get(name))
    for ids in options.get("forbidden_sequences") or ():
        sampling.add("forbidden_sequences").extend("ids", ids)
    _write_logit_bias(sampling, options.get("logit_bias") or {})


def _write_logit_bias(sampling: Part, logit_bias: Mapping[int, float]) -> None:
    assert isinstance(sampling.message, pb.SamplingParams)
    for token_id, bias in logit_bias.items():
        try:
            sampling.message.logit_bias[token_id] = bias
        except ValueError as error:
            raise sampling.invalid("logit_bias", token_id, f"token ids must be from 0 to {2**32 - 1}") from error
        except TypeError as error:
            raise TypeError(f"{sampling.path}logit_bias has {token_id!r}: {bias!r}: {error}") from error
