"""The server's messages to the dataclasses of this package."""

from datetime import UTC

from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2

from treadle.errors import IncompleteStream
from treadle.events import Completion, Event, FinishReason, Result, Started, Timing, Tokens, Usage
from treadle.server_info import Defaults, Health, Limits, Load, ModelInfo, SpecialTokens
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
    match message.WhichOneof("event"):
        case "started":
            started = message.started
            return Started(
                request_id=started.request_id,
                seed=started.seed,
                prompt_token_count=started.prompt_token_count,
                cached_token_count=started.cached_token_count,
            )
        case "tokens":
            return Tokens(tuple(message.tokens.token_ids), message.tokens.text)
        case "result":
            return result(message.result)
        case _:
            return None


def result(message: pb.Result) -> Result:
    usage, timing = message.usage, message.timing
    first = timing.time_to_first_token
    return Result(
        finish_reason=FINISH_REASONS.get(message.finish_reason, FinishReason.UNKNOWN),
        stop_sequence=message.stop_sequence if message.HasField("stop_sequence") else None,
        stop_token_id=message.stop_token_id if message.HasField("stop_token_id") else None,
        usage=Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
        timing=Timing(
            queued=seconds(timing.queued),
            prefill=seconds(timing.prefill),
            time_to_first_token=seconds(first) if timing.HasField("time_to_first_token") else None,
            total=seconds(timing.total),
        ),
    )


def completion(message: pb.CompleteResponse) -> Completion:
    """Raises IncompleteStream where the server answered without a result."""
    if not message.completions or not message.completions[0].HasField("result"):
        raise IncompleteStream("the server answered OK without a result", request_id=message.request_id)
    first = message.completions[0]
    return Completion(message.request_id, message.seed, first.text, tuple(first.token_ids), result(first.result))


def tokenization(message: pb.TokenizeResponse) -> Tokenization:
    return Tokenization(tuple(message.token_ids), tuple(message.tokens))


def model_info(message: pb.GetModelResponse) -> ModelInfo:
    special, limits, defaults = message.special_tokens, message.limits, message.defaults
    return ModelInfo(
        id=message.id,
        architecture=message.architecture,
        context_length=message.context_length,
        vocabulary_size=message.vocabulary_size,
        weight_type=message.weight_type,
        device=message.device,
        has_chat_template=message.has_chat_template,
        special_tokens=SpecialTokens(
            bos_token_id=special.bos_token_id if special.HasField("bos_token_id") else None,
            eos_token_ids=tuple(special.eos_token_ids),
            pad_token_id=special.pad_token_id if special.HasField("pad_token_id") else None,
        ),
        limits=Limits(
            max_total_tokens=limits.max_total_tokens,
            max_slots=limits.max_slots,
            max_waiting=limits.max_waiting,
            max_stop_sequences=limits.max_stop_sequences,
            max_stop_sequence_length=limits.max_stop_sequence_length,
            max_stop_token_ids=limits.max_stop_token_ids,
            max_message_bytes=limits.max_message_bytes,
        ),
        defaults=Defaults(
            temperature=defaults.sampling.temperature,
            top_p=defaults.sampling.top_p,
            top_k=defaults.sampling.top_k,
            max_new_tokens=defaults.max_new_tokens if defaults.HasField("max_new_tokens") else None,
        ),
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
