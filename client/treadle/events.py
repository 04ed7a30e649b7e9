"""What a generation tells, event by event."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class FinishReason(Enum):
    """Why a generation ended."""

    END_OF_SEQUENCE = "end_of_sequence"
    STOP_SEQUENCE = "stop_sequence"
    STOP_TOKEN = "stop_token"
    MAX_NEW_TOKENS = "max_new_tokens"
    CONTEXT_LENGTH = "context_length"
    TIME_LIMIT = "time_limit"
    UNKNOWN = "unknown"
    """A reason that a server newer than this client gives."""


@dataclass(frozen=True, slots=True)
class Started:
    """The request has been admitted into a slot."""

    request_id: str
    seed: int
    """The seed in force: the request's, or the one the server drew."""
    prompt_token_count: int
    cached_token_count: int
    """How many of the prompt's tokens were found in the KV cache."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The next tokens; `text` is empty while a character or a possible stop sequence is incomplete."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time went, in seconds."""

    queued: float
    """From arrival to admission into a slot."""
    prefill: float
    """From admission to the first token."""
    time_to_first_token: float | None
    """From arrival to the first token; None when there was none."""
    total: float
    """From arrival to the end."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a generation."""

    finish_reason: FinishReason
    stop_sequence: str | None
    """What appeared, for STOP_SEQUENCE."""
    stop_token_id: int | None
    """What was chosen, for STOP_TOKEN."""
    usage: Usage
    timing: Timing


Event: TypeAlias = Started | Tokens | Result
"""A stream is one Started, any number of Tokens and one Result, in this order."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A generation as a whole."""

    request_id: str
    seed: int
    text: str
    token_ids: tuple[int, ...]
    result: Result
