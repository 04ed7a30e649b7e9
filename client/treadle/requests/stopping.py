"""When a generation ends."""

from collections.abc import Sequence
from typing import TypedDict

from treadle.requests.part import Part

SCALARS = ("max_new_tokens", "min_new_tokens", "ignore_eos", "include_stop_text")


class StoppingOptions(TypedDict, total=False):
    """The first that holds is the result's finish_reason."""

    max_new_tokens: int | None
    """Most tokens to generate."""
    min_new_tokens: int | None
    """Until this many tokens nothing but max_new_tokens and time_limit ends the generation."""
    stop: str | Sequence[str] | None
    """Texts that end the generation."""
    stop_token_ids: Sequence[int] | None
    """Token ids that end the generation."""
    ignore_eos: bool | None
    """Goes on past the model's end-of-sequence tokens."""
    include_stop_text: bool | None
    """Leaves what stopped the generation in its text."""
    time_limit: float | None
    """Seconds after which the generation ends with what it has; unlike `timeout`, not an error."""


def write(stopping: Part, options: StoppingOptions) -> None:
    for name in SCALARS:
        stopping.set(name, options.get(name))
    stop = options.get("stop")
    stopping.extend("stop", [stop] if isinstance(stop, str) else stop)
    stopping.extend("stop_token_ids", options.get("stop_token_ids"))
    stopping.set_duration("time_limit", options.get("time_limit"))
