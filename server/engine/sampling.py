"""Sampling: how a request's tokens are chosen."""

import math
from dataclasses import dataclass

from server.engine.errors import InvalidArgument
from server.engine.model import SamplingDefaults

MAX_TEMPERATURE = 100.0
MAX_PENALTY = 100.0
MAX_BIAS = 100.0
MAX_LOGIT_BIAS = 1024
MAX_FORBIDDEN_SEQUENCES = 128
MAX_FORBIDDEN_SEQUENCE_LENGTH = 32


@dataclass(frozen=True, slots=True)
class Sampling:
    """`server/engine/plan.py: Draw` says what each number does, and in which order.

    Raises InvalidArgument where a number is out of its range.
    """

    temperature: float
    top_k: int
    top_p: float
    seed: int
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Distinct token ids and what is added to their logits."""
    forbidden_sequences: tuple[tuple[int, ...], ...] = ()
    """Runs of token ids that must not appear in the output."""

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0 <= self.temperature <= MAX_TEMPERATURE, "from 0 to 100")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 to 1")
        _check("typical_p", self.typical_p, 0 < self.typical_p <= 1, "above 0 and at most 1")
        repetition = self.repetition_penalty
        _check("repetition_penalty", repetition, 0 < repetition <= MAX_PENALTY, "above 0 and at most 100")
        for name, penalty in (
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
        ):
            _check(name, penalty, abs(penalty) <= MAX_PENALTY, "from -100 to 100")
        self._check_bias()
        self._check_forbidden()

    def _check_bias(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            value = f"{len(self.logit_bias)} entries"
            raise InvalidArgument("sampling.logit_bias", value, f"must be at most {MAX_LOGIT_BIAS}")
        for token_id, bias in self.logit_bias:
            if not abs(bias) <= MAX_BIAS:  # NaN among them
                raise InvalidArgument(f"sampling.logit_bias[{token_id}]", bias, "must be from -100 to 100")

    def _check_forbidden(self) -> None:
        if len(self.forbidden_sequences) > MAX_FORBIDDEN_SEQUENCES:
            value = f"{len(self.forbidden_sequences)} sequences"
            raise InvalidArgument("sampling.forbidden_sequences", value, f"must be at most {MAX_FORBIDDEN_SEQUENCES}")
        for i, token_ids in enumerate(self.forbidden_sequences):
            if not 1 <= len(token_ids) <= MAX_FORBIDDEN_SEQUENCE_LENGTH:
                limit = f"must be from 1 to {MAX_FORBIDDEN_SEQUENCE_LENGTH} ids"
                raise InvalidArgument(f"sampling.forbidden_sequences[{i}]", f"{len(token_ids)} ids long", limit)

    @property
    def penalises(self) -> bool:
        """Whether the tokens so far bear on the next one's logits."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    def check_known(self, vocabulary_size: int) -> None:
        """Raises InvalidArgument where a token id is not in the vocabulary."""
        limit = f"must be below the vocabulary size, {vocabulary_size}"
        for token_id, _ in self.logit_bias:
            if token_id >= vocabulary_size:
                raise InvalidArgument(f"sampling.logit_bias[{token_id}]", token_id, limit)
        for i, token_ids in enumerate(self.forbidden_sequences):
            if max(token_ids) >= vocabulary_size:
                raise InvalidArgument(f"sampling.forbidden_sequences[{i}]", max(token_ids), limit)

    @classmethod
    def resolve(
        cls,
        defaults: SamplingDefaults,
        seed: int,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        repetition_penalty: float | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: tuple[tuple[int, float], ...] = (),
        forbidden_sequences: tuple[tuple[int, ...], ...] = (),
    ) -> "Sampling":
        """Fills what the client left unset; setting a filter without a temperature asks for sampling."""
        if temperature is None:
            wants_sampling = any(chosen is not None for chosen in (top_k, top_p, min_p, typical_p))
            temperature = defaults.sampled_temperature if wants_sampling else defaults.temperature
        return cls(
            temperature=temperature,
            top_k=defaults.top_k if top_k is None else top_k,
            top_p=defaults.top_p if top_p is None else top_p,
            seed=seed,
            min_p=defaults.min_p if min_p is None else min_p,
            typical_p=defaults.typical_p if typical_p is None else typical_p,
            repetition_penalty=defaults.repetition_penalty if repetition_penalty is None else repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            logit_bias=logit_bias,
            forbidden_sequences=forbidden_sequences,
        )


def _check(name: str, value: float, is_in_range: bool, limit: str) -> None:
    if not (math.isfinite(value) and is_in_range):
        raise InvalidArgument(f"sampling.{name}", value, f"must be {limit}")
