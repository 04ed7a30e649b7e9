"""The engine's dataclasses to response messages."""

from treadle.v1 import generation_pb2 as pb

from server.engine.chat import MAX_MESSAGES, MAX_TEMPLATE_BYTES, MAX_TOOL_BYTES
from server.engine.constraint import MAX_SOURCE_BYTES
from server.engine.engine import EngineSettings, Served
from server.engine.events import Result, Started, Timing, Usage
from server.engine.load import Load
from server.engine.request import MAX_LOGPROBS, MAX_STOP_SEQUENCE_LENGTH, MAX_STOP_SEQUENCES, MAX_STOP_TOKEN_IDS
from server.engine.sampling import MAX_FORBIDDEN_SEQUENCE_LENGTH, MAX_FORBIDDEN_SEQUENCES, MAX_LOGIT_BIAS
from server.rpc.duration import duration
from server.rpc.prompt_from_wire import max_text_bytes


def started(event: Started, request_id: str) -> pb.Started:
    return pb.Started(
        request_id=request_id,
        seed=event.seed,
        prompt_token_count=event.prompt_token_count,
        cached_token_count=event.cached_token_count,
    )


def usage(counts: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=counts.prompt_tokens,
        completion_tokens=counts.completion_tokens,
        cached_tokens=counts.cached_tokens,
    )


def result(event: Result) -> pb.Result:
    finish = event.finish
    message = pb.Result(
        finish_reason=pb.FinishReason.Value(f"FINISH_REASON_{finish.reason.name}"),
        usage=usage(event.usage),
        satisfies_constraint=event.satisfies_constraint,
        timing=_timing(event.timing),
    )
    if finish.stop_sequence is not None:
        message.stop_sequence = finish.stop_sequence
    if finish.stop_token_id is not None:
        message.stop_token_id = finish.stop_token_id
    return message


def model(served: Served, settings: EngineSettings, max_message_bytes: int) -> pb.GetModelResponse:
    described = served.model.description
    defaults = described.sampling_defaults
    return pb.GetModelResponse(
        id=described.id,
        context_length=described.context_length,
        vocabulary_size=described.vocabulary_size,
        architecture=described.architecture,
        weight_type=described.weight_type,
        device=described.device,
        has_chat_template=served.tokenizer.has_chat_template,
        special_tokens=pb.SpecialTokens(
            bos_token_id=described.bos_token_id,
            eos_token_ids=sorted(described.eos_token_ids),
            pad_token_id=described.pad_token_id,
        ),
        limits=pb.Limits(
            max_total_tokens=described.max_total_tokens,
            max_slots=settings.max_slots,
            max_waiting=settings.max_waiting,
            max_stop_sequences=MAX_STOP_SEQUENCES,
            max_stop_sequence_length=MAX_STOP_SEQUENCE_LENGTH,
            max_stop_token_ids=MAX_STOP_TOKEN_IDS,
            max_message_bytes=max_message_bytes,
            max_generations=settings.max_generations,
            max_logprobs=MAX_LOGPROBS,
            max_logit_bias=MAX_LOGIT_BIAS,
            max_forbidden_sequences=MAX_FORBIDDEN_SEQUENCES,
            max_forbidden_sequence_length=MAX_FORBIDDEN_SEQUENCE_LENGTH,
            max_constraint_bytes=MAX_SOURCE_BYTES,
            max_template_bytes=MAX_TEMPLATE_BYTES,
            max_tool_bytes=MAX_TOOL_BYTES,
            max_text_bytes=max_text_bytes(served),
            max_chat_messages=MAX_MESSAGES,
        ),
        capabilities=pb.Capabilities(
            chat=served.tokenizer.has_chat_template,
            tools=served.tokenizer.takes_tools,
            request_template=served.tokenizer.has_chat_template and served.tokenizer.allows_request_templates,
            constraint=served.constraints.can_compile,
            logprobs=True,
            priority_preemption=settings.preempt_lower_priority,
            embeddings=False,
            scores=False,
        ),
        defaults=pb.Defaults(
            sampling=pb.SamplingParams(
                temperature=defaults.temperature,
                top_p=defaults.top_p,
                top_k=defaults.top_k,
                min_p=defaults.min_p,
                typical_p=defaults.typical_p,
                repetition_penalty=defaults.repetition_penalty,
            ),
            max_new_tokens=described.default_max_new_tokens,
        ),
    )


def load(now: Load) -> pb.GetLoadResponse:
    message = pb.GetLoadResponse(
        running=now.running,
        waiting=now.waiting,
        slots=now.slots,
        kv_blocks_used=now.kv_blocks_used,
        kv_blocks_cached=now.kv_blocks_cached,
        kv_blocks_total=now.kv_blocks_total,
        kv_block_size=now.kv_block_size,
        tokens_per_second=now.tokens_per_second,
        tokens_generated=now.tokens_generated,
    )
    message.since.FromNanoseconds(round(now.since * 1e9))
    return message


def _timing(timing: Timing) -> pb.Timing:
    first = timing.time_to_first_token
    return pb.Timing(
        queued=duration(timing.queued),
        prefill=duration(timing.prefill),
        time_to_first_token=None if first is None else duration(first),
        total=duration(timing.total),
    )
