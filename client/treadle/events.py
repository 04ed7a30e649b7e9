"""What a generation tells, event by event."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from treadle.chat import ToolCall


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
class Alternative:
    """A token that could have been."""

    token_id: int
    logprob: float
    """Natural logarithm of its probability."""
    text: str
    """Its text by itself, special tokens kept."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and how probable it was."""

    token_id: int
    logprob: float
    """Natural logarithm of its probability; -infinity where it had none."""
    text: str
    """Its text by itself, special tokens kept."""
    rank: int
    """Its place among all tokens by probability; 1 is the most probable."""
    alternatives: tuple[Alternative, ...] = ()
    """The most probable tokens, falling."""


@dataclass(frozen=True, slots=True)
class Started:
    """The request has been admitted into a slot."""

    index: int
    request_id: str
    seed: int
    """The seed in force: the request's, or one that the server drew or, for an index above 0, made of that one."""
    prompt_token_count: int
    cached_token_count: int
    """How many of the prompt's tokens were found in the KV cache."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt, with `echo_prompt` or `prompt_logprobs`."""

    index: int
    token_ids: tuple[int, ...]
    text: str
    """Special tokens kept."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """With `prompt_logprobs`: one for each token but the first."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The next tokens; `text` is empty while a character or a possible stop sequence is incomplete."""

    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    """With `logprobs`: one for each token."""
    usage: Usage | None = None
    """With `usage`: the counts so far."""


@dataclass(frozen=True, slots=True)
class Content:
    """More of the text that is neither a tool call nor reasoning, with `parse_tool_calls` or `parse_reasoning`."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's reasoning, with `parse_reasoning`."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """More of a call of a tool, with `parse_tool_calls`. A call without a `complete` part is cut off or malformed."""

    index: int
    call: int
    """Which call of this generation it belongs to."""
    id: str | None
    """The call's, in its first part only."""
    name: str | None
    """The function's, in the call's first part only."""
    arguments_json: str
    """The next part of the JSON text; all parts joined are an object."""
    complete: bool
    """The call is whole."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a generation."""

    index: int
    finish_reason: FinishReason
    stop_sequence: str | None
    """What appeared, for STOP_SEQUENCE."""
    stop_token_id: int | None
    """What was chosen, for STOP_TOKEN."""
    usage: Usage
    timing: Timing
    satisfies_constraint: bool | None
    """With `constraint`: whether the output is a whole instance of it; where not, it is the beginning of one."""


Event: TypeAlias = Started | Prompt | Tokens | Content | Reasoning | ToolCallPart | Result
"""What a stream tells of the generation `index`: one Started, the Prompt where it is asked for, what is generated, and
one Result, in this order; the generations of one request come interleaved."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A generation as a whole."""

    request_id: str
    input: int
    """Which of the `inputs` it continues; 0 where there are none."""
    index: int
    """Which of the generations of that input it is; with `best_of` 0 is the best."""
    seed: int
    """The seed of this generation."""
    text: str
    token_ids: tuple[int, ...]
    result: Result
    prompt: Prompt | None
    """With `echo_prompt` or `prompt_logprobs`."""
    logprobs: tuple[TokenLogprob, ...]
    """With `logprobs`: one for each token."""
    content: str
    """With `parse_tool_calls` or `parse_reasoning`: the text that is neither a tool call nor reasoning."""
    reasoning: str
    """With `parse_reasoning`."""
    tool_calls: tuple[ToolCall, ...]
    """With `parse_tool_calls`: the calls that are whole."""
    mean_logprob: float | None
    """With `best_of`: by what it was chosen."""
