"""What a request wants to see of its generations."""

from dataclasses import dataclass

from treadle.v1 import generation_pb2 as pb

from server.engine.errors import InvalidArgument
from server.engine.plan import LogprobsWanted
from server.parsing.tool_call_format import ToolCallFormat
from server.rpc.duration import seconds

MAX_CHUNK_INTERVAL = 60.0

TOOL_CALL_FORMATS = {
    pb.TOOL_CALL_FORMAT_UNSPECIFIED: None,
    pb.TOOL_CALL_FORMAT_HERMES: ToolCallFormat.HERMES,
    pb.TOOL_CALL_FORMAT_LLAMA3_JSON: ToolCallFormat.LLAMA3_JSON,
    pb.TOOL_CALL_FORMAT_MISTRAL: ToolCallFormat.MISTRAL,
}
IS_PROCESSED = {pb.LOGPROBS_OF_UNSPECIFIED: False, pb.LOGPROBS_OF_RAW: False, pb.LOGPROBS_OF_PROCESSED: True}


@dataclass(frozen=True, slots=True)
class Output:
    """Raises InvalidArgument where nothing would be left, or what is asked for does not go together."""

    token_ids: bool = True
    text: bool = True
    logprobs: LogprobsWanted | None = None
    prompt_logprobs: int | None = None
    keep_special_tokens: bool = False
    echo_prompt: bool = False
    usage: bool = False
    chunk_interval: float = 0.0
    """Seconds."""
    tool_calls: ToolCallFormat | None = None
    reasoning: bool = False

    @property
    def parses(self) -> bool:
        return self.reasoning or self.tool_calls is not None

    @property
    def shows_prompt(self) -> bool:
        return self.echo_prompt or self.prompt_logprobs is not None

    def __post_init__(self) -> None:
        if not (self.token_ids or self.text or self.parses):
            raise InvalidArgument("output", "omit_token_ids and omit_text", "one of the two must be left in")
        if not 0 <= self.chunk_interval <= MAX_CHUNK_INTERVAL:
            limit = f"must be from 0 s to {MAX_CHUNK_INTERVAL:g} s"
            raise InvalidArgument("output.chunk_interval", f"{self.chunk_interval:g} s", limit)


def output(message: pb.OutputOptions) -> Output:
    if message.logprobs_of not in IS_PROCESSED:
        raise InvalidArgument("output.logprobs_of", message.logprobs_of, "must be a value of LogprobsOf")
    if message.logprobs_of and not message.HasField("logprobs"):
        raise InvalidArgument("output.logprobs_of", "set", "must be unset without logprobs")
    if message.parse_tool_calls not in TOOL_CALL_FORMATS:
        raise InvalidArgument("output.parse_tool_calls", message.parse_tool_calls, "must be a value of ToolCallFormat")
    processed = IS_PROCESSED[message.logprobs_of]
    return Output(
        token_ids=not message.omit_token_ids,
        text=not message.omit_text,
        logprobs=LogprobsWanted(message.logprobs, processed) if message.HasField("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        keep_special_tokens=message.keep_special_tokens,
        echo_prompt=message.echo_prompt,
        usage=message.usage,
        chunk_interval=seconds("output.chunk_interval", message.chunk_interval),
        tool_calls=TOOL_CALL_FORMATS[message.parse_tool_calls],
        reasoning=message.parse_reasoning,
    )
