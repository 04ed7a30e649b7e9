"""The plan of one step and its outcome: all that passes between the scheduler and the model.

The plan is plain data, of which masks of allowed ids are made while the model runs. The model reads nothing else and
keeps no sequence's state but the KV cache's contents.
"""

from concurrent.futures import Future
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Draw:
    """How to choose one token from its logits.

    Order of application: forbidden ids, temperature, top_k, top_p; then the inverse of the cumulative distribution,
    over the kept tokens in order of falling probability (ties by id), at `uniform`.
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


@dataclass(frozen=True, slots=True)
class StepPlan:
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """The token chosen for a span."""

    token_id: int


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a span got no token, in words for the log; its KV entries are not to be relied on."""

    reason: str
    by_request: bool = False
    """Whether the request left no token to choose from, which says nothing of the model."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    draws: tuple[Drawn | Fault | None, ...]
    """One per span, in the plan's order; None where the span asked for no token and had no fault."""
