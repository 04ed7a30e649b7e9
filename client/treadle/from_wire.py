"""The server's messages to the dataclasses of this package."""

from collections.abc import Iterable
from datetime import UTC

from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2

from treadle.chat import ToolCall
from treadle.errors import IncompleteStream
from treadle.events import (
    Alternative,
    Completion,
    Content,
    Event,
    FinishReason,
    Prompt,
    Reasoning,
    Result,
    Started,
    Timing,
    TokenLogprob,
    Tokens,
    ToolCallPart,
    Usage,
)
from treadle.server_info import Capabilities, Defaults, Health, Limits, Load, ModelInfo, SpecialTokens
from treadle.tokenization import Tokenization
from treadle.v1 import generation_pb2 as pb

FINISH_REASONS = {
    pb.FINISH_REASON_END_OF_SEQUENCE: FinishReason.END_OF_SEQUENCE,
    pb.FINISH_REASON_STOP_SEQUENCE: FinishReason.STOP_SEQUENCE,
    pb.FINISH_REASON_STOP_TOKEN: FinishReason.STOP_TOKEN,
    pb.FINISH_REASON_MAX_NEW_TOKENS: FinishReason.MAX_NEW_TOKENS,
    pb.FINISH_REASON_CONTEXT_LENGTH: FinishReason.CONTEXT_LENGTH,
    pb.FINISH_REASON_TIME_LIMIT: FinishReason.TIME_LIMIT,
}
HEALTH = {
    health_pb2.HealthCheckResponse.SERVING: Health.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING: Health.NOT_SERVING,
}


def event(message: pb.GenerateResponse) -> Event | None:
    """None for a kind of event that a server newer than this client sends."""
    index = message.index
    match message.WhichOneof("event"):
        case "started":
            return started(index, message.started)
        case "prompt":
            return prompt(index, message.prompt)
        case "tokens":
            return tokens(index, message.tokens)
        case "content":
            return Content(index, message.content.text)
        case "reasoning":
            return Reasoning(index, message.reasoning.text)
        case "tool_call":
            return tool_call_part(index, message.tool_call)
        case "result":
            return result(index, message.result)
        case _:
            return None


def started(index: int, message: pb.Started) -> Started:
    return Started(
        index=index,
        request_id=message.request_id,
        seed=message.seed,
        prompt_token_count=message.prompt_token_count,
        cached_token_count=message.cached_token_count,
    )


def prompt(index: int, message: pb.Prompt) -> Prompt:
    return Prompt(index, tuple(message.token_ids), message.text, logprobs(message.logprobs))


def tokens(index: int, message: pb.TokenChunk) -> Tokens:
    return Tokens(
        index=index,
        token_ids=tuple(message.token_ids),
        text=message.text,
        logprobs=logprobs(message.logprobs),
        usage=usage(message.usage) if message.HasField("usage") else None,
    )


def logprobs(messages: Iterable[pb.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            token_id=message.token_id,
            logprob=message.logprob,
            text=message.text,
            rank=message.rank,
            alternatives=tuple(Alternative(each.token_id, each.logprob, each.text) for each in message.alternatives),
        )
        for message in messages
    )


def tool_call_part(index: int, message: pb.ToolCallChunk) -> ToolCallPart:
    return ToolCallPart(
        index=index,
        call=message.call,
        id=message.id or None,
        name=message.name or None,
        arguments_json=message.arguments_json,
        complete=message.complete,
    )


def usage(message: pb.Usage) -> Usage:
    return Usage(message.prompt_tokens, message.completion_tokens, message.cached_tokens)


def result(index: int, message: pb.Result) -> Result:
    timing = message.timing
    first = timing.time_to_first_token
    return Result(
        index=index,
        finish_reason=FINISH_REASONS.get(message.finish_reason, FinishReason.UNKNOWN),
        stop_sequence=message.stop_sequence if message.HasField("stop_sequence") else None,
        stop_token_id=message.stop_token_id if message.HasField("stop_token_id") else None,
        usage=usage(message.usage),
        timing=Timing(
            queued=seconds(timing.queued),
            prefill=seconds(timing.prefill),
            time_to_first_token=seconds(first) if timing.HasField("time_to_first_token") else None,
            total=seconds(timing.total),
        ),
        satisfies_constraint=message.satisfies_constraint if message.HasField("satisfies_constraint") else None,
    )


def completions(message: pb.CompleteResponse, expected: int) -> tuple[Completion, ...]:
    """By input and index. Raises IncompleteStream where a completion, or the result of one, is missing."""
    results = sum(each.HasField("result") for each in message.completions)
    if results < max(expected, len(message.completions)):
        found = "without a result" if expected == 1 else f"with {results} of {expected} results"
        raise IncompleteStream(f"the server answered OK {found}", request_id=message.request_id)
    return tuple(completion(message.request_id, each) for each in message.completions)


def completion(request_id: str, message: pb.Completion) -> Completion:
    return Completion(
        request_id=request_id,
        input=message.input,
        index=message.index,
        seed=message.seed,
        text=message.text,
        token_ids=tuple(message.token_ids),
        result=result(message.index, message.result),
        prompt=prompt(message.index, message.prompt) if message.HasField("prompt") else None,
        logprobs=logprobs(message.logprobs),
        content=message.content,
        reasoning=message.reasoning,
        tool_calls=tuple(ToolCall(each.id, each.name, each.arguments_json) for each in message.tool_calls),
        mean_logprob=message.mean_logprob if message.HasField("mean_logprob") else None,
    )


def tokenization(message: pb.TokenizeResponse) -> Tokenization:
    return Tokenization(tuple(message.token_ids), tuple(message.tokens))


def model_info(message: pb.GetModelResponse) -> ModelInfo:
    return ModelInfo(
        id=message.id,
        architecture=message.architecture,
        context_length=message.context_length,
        vocabulary_size=message.vocabulary_size,
        weight_type=message.weight_type,
        device=message.device,
        has_chat_template=message.has_chat_template,
        special_tokens=special_tokens(message.special_tokens),
        capabilities=capabilities(message.capabilities),
        limits=limits(message.limits),
        defaults=defaults(message.defaults),
    )


def special_tokens(message: pb.SpecialTokens) -> SpecialTokens:
    return SpecialTokens(
        bos_token_id=message.bos_token_id if message.HasField("bos_token_id") else None,
        eos_token_ids=tuple(message.eos_token_ids),
        pad_token_id=message.pad_token_id if message.HasField("pad_token_id") else None,
    )


def capabilities(message: pb.Capabilities) -> Capabilities:
    return Capabilities(
        chat=message.chat if message.HasField("chat") else None,
        tools=message.tools if message.HasField("tools") else None,
        request_template=message.request_template if message.HasField("request_template") else None,
        constraint=message.constraint if message.HasField("constraint") else None,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        priority_preemption=message.priority_preemption if message.HasField("priority_preemption") else None,
        embeddings=message.embeddings if message.HasField("embeddings") else None,
        scores=message.scores if message.HasField("scores") else None,
    )


def limits(message: pb.Limits) -> Limits:
    return Limits(
        max_total_tokens=message.max_total_tokens,
        max_slots=message.max_slots,
        max_waiting=message.max_waiting,
        max_stop_sequences=message.max_stop_sequences,
        max_stop_sequence_length=message.max_stop_sequence_length,
        max_stop_token_ids=message.max_stop_token_ids,
        max_message_bytes=message.max_message_bytes,
        max_generations=message.max_generations,
        max_logprobs=message.max_logprobs,
        max_logit_bias=message.max_logit_bias,
        max_forbidden_sequences=message.max_forbidden_sequences,
        max_forbidden_sequence_length=message.max_forbidden_sequence_length,
        max_constraint_bytes=message.max_constraint_bytes,
        max_template_bytes=message.max_template_bytes,
        max_tool_bytes=message.max_tool_bytes,
        max_text_bytes=message.max_text_bytes,
        max_chat_messages=message.max_chat_messages,
    )


def defaults(message: pb.Defaults) -> Defaults:
    """What a server does not say is what changes nothing."""
    sampling = message.sampling
    return Defaults(
        temperature=sampling.temperature,
        top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        typical_p=sampling.typical_p if sampling.HasField("typical_p") else 1.0,
        repetition_penalty=sampling.repetition_penalty if sampling.HasField("repetition_penalty") else 1.0,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        max_new_tokens=message.max_new_tokens if message.HasField("max_new_tokens") else None,
    )


def load(message: pb.GetLoadResponse) -> Load:
    return Load(
        running=message.running,
        waiting=message.waiting,
        slots=message.slots,
        kv_blocks_used=message.kv_blocks_used,
        kv_blocks_cached=message.kv_blocks_cached,
        kv_blocks_total=message.kv_blocks_total,
        kv_block_size=message.kv_block_size,
        tokens_per_second=message.tokens_per_second,
        tokens_generated=message.tokens_generated,
        since=message.since.ToDatetime(tzinfo=UTC),
    )


def health(message: health_pb2.HealthCheckResponse) -> Health:
    return HEALTH.get(message.status, Health.UNKNOWN)


def seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
