"""What the answer carries."""

from enum import Enum
from typing import TypedDict

from treadle.requests.part import Part
from treadle.v1 import generation_pb2 as pb

SCALARS = (
    "omit_token_ids",
    "omit_text",
    "keep_special_tokens",
    "echo_prompt",
    "logprobs",
    "prompt_logprobs",
    "usage",
    "parse_reasoning",
)


class LogprobsOf(Enum):
    """Which distribution the log-probabilities of the output are of."""

    RAW = "raw"
    """The model's own."""
    PROCESSED = "processed"
    """The one the token was drawn from: after penalties, biases, temperature and filters."""


class ToolCallFormat(Enum):
    """How the model writes the calls of its tools."""

    HERMES = "hermes"
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>, as Hermes and Qwen do."""
    LLAMA3_JSON = "llama3_json"
    """{"name": ..., "parameters": {...}}, as Llama 3 does."""
    MISTRAL = "mistral"
    """[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]."""


LOGPROBS_OF = {
    LogprobsOf.RAW: pb.LOGPROBS_OF_RAW,
    LogprobsOf.PROCESSED: pb.LOGPROBS_OF_PROCESSED,
}
TOOL_CALL_FORMATS = {
    ToolCallFormat.HERMES: pb.TOOL_CALL_FORMAT_HERMES,
    ToolCallFormat.LLAMA3_JSON: pb.TOOL_CALL_FORMAT_LLAMA3_JSON,
    ToolCallFormat.MISTRAL: pb.TOOL_CALL_FORMAT_MISTRAL,
}


class OutputOptions(TypedDict, total=False):
    """All of it is left out, or not given, unless it is asked for, but for the text and the token ids."""

    omit_token_ids: bool | None
    """Leaves the token ids out."""
    omit_text: bool | None
    """Leaves the text out."""
    keep_special_tokens: bool | None
    """Keeps special tokens, such as the end of sequence, in the text."""
    echo_prompt: bool | None
    """Gives the prompt back."""
    logprobs: int | None
    """Gives each output token's log-probability, and this many of the most probable alternatives; 0 is allowed."""
    prompt_logprobs: int | None
    """The same for the prompt."""
    logprobs_of: LogprobsOf | None
    """RAW where it is left out."""
    usage: bool | None
    """Counts the tokens so far in every Tokens event."""
    chunk_interval: float | None
    """Least seconds between two Tokens events; what comes in between is joined."""
    parse_tool_calls: ToolCallFormat | None
    """Gives the tool calls that the model writes in this format by themselves, and the rest as content."""
    parse_reasoning: bool | None
    """Gives what stands between <think> and </think> by itself, and the rest as content."""


def write(output: Part, options: OutputOptions) -> None:
    for name in SCALARS:
        output.set(name, options.get(name))
    output.set_duration("chunk_interval", options.get("chunk_interval"))
    logprobs_of, tool_call_format = options.get("logprobs_of"), options.get("parse_tool_calls")
    if logprobs_of is not None:
        output.set("logprobs_of", LOGPROBS_OF[LogprobsOf(logprobs_of)])
    if tool_call_format is not None:
        output.set("parse_tool_calls", TOOL_CALL_FORMATS[ToolCallFormat(tool_call_format)])
