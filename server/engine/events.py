"""What a client hears of a generation: one Started, PromptLogprobs where it asked for them, any number of Tokens, and
one end, a Result or a Failure."""

from dataclasses import dataclass
from enum import Enum, auto

from server.engine.errors import EngineError
from server.engine.plan import TokenLogprob


class FinishReason(Enum):
    END_OF_SEQUENCE = auto()
    STOP_SEQUENCE = auto()
    STOP_TOKEN = auto()
    MAX_NEW_TOKENS = auto()
    CONTEXT_LENGTH = auto()
    TIME_LIMIT = auto()


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a generation ended, and by what where something was matched."""

    reason: FinishReason
    stop_sequence: str | None = None
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Started:
    seed: int
    prompt_token_count: int
    cached_token_count: int


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """How probable each token of the prompt but the first was."""

    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The next tokens and the text that became certain with them; either may be empty, not both."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    """Where the request asks for them, one for each token."""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    queued: float
    """From arrival to admission."""
    prefill: float
    """From admission to the first token."""
    time_to_first_token: float | None
    """From arrival; None when no token was generated."""
    total: float
    """From arrival to the end."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a generation that came to its end."""

    finish: Finish
    usage: Usage
    timing: Timing
    satisfies_constraint: bool | None = None
    """Whether the text is an instance of the request's constraint; None without one, or where a stop cut the text."""
    mean_logprob: float | None = None
    """Of the tokens, by the model's own distribution; None where the request does not ask or nothing was generated."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a generation that could not go on."""

    error: EngineError


Event = Started | PromptLogprobs | Tokens | Result | Failure
