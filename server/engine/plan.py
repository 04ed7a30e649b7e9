"""The plan of one step and its outcome: all that passes between the scheduler and the model.

The plan is plain data, of which masks of allowed ids are made while the model runs. The model reads nothing else and
keeps no sequence's state but the KV cache's contents.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Penalties:
    """What the tokens so far do to their own logits, in this order.

    repetition (Keskar et al. 2019, "CTRL"): a positive logit of a token in the prompt or the output is divided by it,
    a negative one multiplied. frequency: subtracted once for each time the token is in the output. presence: subtracted
    where it is in the output at all.
    """

    repetition: float
    frequency: float
    presence: float
    token_ids: tuple[int, ...]
    """The distinct ids of the prompt and the output."""
    output_counts: tuple[int, ...]
    """How often each of them is in the output."""


@dataclass(frozen=True, slots=True)
class LogitBias:
    """`values` are added to the logits of `token_ids`, which are distinct."""

    token_ids: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LogprobsWanted:
    alternatives: int
    """How many of the most probable tokens are told besides the chosen one."""
    processed: bool
    """Of the distribution that was drawn from; else of the model's own. A greedy Draw draws from no distribution:
    `processed` is then of the logits after all that comes before the temperature."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How to choose one token from its logits.

    Order of application: penalties, bias, what is forbidden and what is allowed, temperature, top_k, top_p, min_p,
    typical_p; then the inverse of the cumulative distribution, over the kept tokens in order of id, at `uniform`: in
    that order the last bit of a logit moves the sums by as little, and does not make two tokens change places. Each
    filter works on what the one before it left, renormalised, and keeps a token.
    """

    temperature: float
    """Divides the logits; 0 takes the most probable token, the lowest id of equals."""
    top_k: int
    """Keeps this many most probable tokens; 0 keeps all."""
    top_p: float
    """Keeps the smallest set of most probable tokens that sums to at least this; in (0, 1]."""
    uniform: float
    """In [0, 1)."""
    forbidden_token_ids: tuple[int, ...] = ()
    """Ids that must not be chosen."""
    allowed: "Future[bytes] | None" = None
    """The ids that may be chosen, bit `i % 8` of byte `i // 8` for id i; needed once there are logits. None: all."""
    min_p: float = 0.0
    """Keeps the tokens at least this times as probable as the most probable one; in [0, 1]."""
    typical_p: float = 1.0
    """Keeps the smallest set of tokens, those of information content nearest the entropy first, that sums to at least
    this (Meister et al. 2022, "Locally typical sampling"); in (0, 1], and 1 keeps all."""
    penalties: Penalties | None = None
    bias: LogitBias | None = None
    logprobs: LogprobsWanted | None = None
    own_logprob: bool = False
    """Whether the log-probability of the chosen token is told by the model's own distribution, `logprobs` apart."""


@dataclass(frozen=True, slots=True)
class PromptLogprobsWanted:
    """How probable known tokens were, by the logits of the tokens before them."""

    first: int
    """Index in the span of the first token whose successor is asked for; those of the following tokens are too."""
    successors: tuple[int, ...]
    """The tokens that do follow."""
    alternatives: int


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens of one sequence to compute in this step."""

    slot: int
    """The sequence's slot, unique in the plan."""
    start: int
    """Position of the first token; the KV cache holds the positions before it."""
    token_ids: tuple[int, ...]
    """At least one."""
    block_ids: tuple[int, ...]
    """The sequence's KV blocks, in order; they cover at least the positions below `start + len(token_ids)`."""
    draw: Draw | None
    """How to choose the token that follows the last one; None where that token is known already."""
    prompt_logprobs: PromptLogprobsWanted | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How probable a token was; logarithms are natural."""

    token_id: int
    logprob: float
    rank: int
    """Its place in order of falling probability, ties by id; 1 is the most probable."""
    alternatives: tuple[Alternative, ...]
    """The most probable tokens, falling, none without probability."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The token chosen for a span."""

    token_id: int
    logprob: TokenLogprob | None = None
    """Where the Draw asks for it."""
    own_logprob: float | None = None
    """Where the Draw asks for it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a span got no token, in words for the log; its KV entries are not to be relied on."""

    reason: str
    by_request: bool = False
    """Whether the request left no token to choose from, which says nothing of the model."""
    error: Exception | None = field(default=None, compare=False)
    """What was raised, where that is why."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    draws: tuple[Drawn | Fault | None, ...]
    """One per span, in the plan's order; None where the span asked for no token and had no fault."""
    prompt_logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    """By slot, one for each successor of the spans that ask for them and have no fault."""
