"""The engine's dataclasses to response messages."""

from dataclasses import dataclass, field

from google.protobuf.duration_pb2 import Duration
from treadle.v1 import generation_pb2 as pb

from server.engine.engine import EngineSettings, Served
from server.engine.errors import InvalidArgument
from server.engine.events import Result, Started, Timing, Tokens
from server.engine.load import Load
from server.engine.request import MAX_STOP_SEQUENCE_LENGTH, MAX_STOP_SEQUENCES, MAX_STOP_TOKEN_IDS


@dataclass(frozen=True, slots=True)
class Output:
    """What the events carry; at least one of the two."""

    token_ids: bool
    text: bool


def output(message: pb.OutputOptions) -> Output:
    """Raises InvalidArgument where nothing would be left."""
    if message.omit_token_ids and message.omit_text:
        raise InvalidArgument("output", "omit_token_ids and omit_text", "one of the two must be left in")
    return Output(token_ids=not message.omit_token_ids, text=not message.omit_text)


def response(event: Started | Tokens | Result, request_id: str, shown: Output) -> pb.GenerateResponse | None:
    """None for tokens of which nothing is to be shown."""
    match event:
        case Started():
            return pb.GenerateResponse(
                started=pb.Started(
                    request_id=request_id,
                    seed=event.seed,
                    prompt_token_count=event.prompt_token_count,
                    cached_token_count=event.cached_token_count,
                )
            )
        case Tokens():
            chunk = pb.TokenChunk(
                token_ids=event.token_ids if shown.token_ids else (), text=event.text if shown.text else ""
            )
            return pb.GenerateResponse(tokens=chunk) if chunk.token_ids or chunk.text else None
        case Result():
            return pb.GenerateResponse(result=result(event))


@dataclass
class Completion:
    """A generation collected to its end."""

    seed: int = 0
    token_ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    result: Result | None = None

    def hear(self, event: Started | Tokens | Result) -> None:
        match event:
            case Started():
                self.seed = event.seed
            case Tokens():
                self.token_ids += event.token_ids
                self.text.append(event.text)
            case Result():
                self.result = event

    def response(self, request_id: str, shown: Output) -> pb.CompleteResponse:
        assert self.result is not None
        completion = pb.Completion(
            text="".join(self.text) if shown.text else "",
            token_ids=self.token_ids if shown.token_ids else (),
            result=result(self.result),
        )
        return pb.CompleteResponse(request_id=request_id, completions=[completion], seed=self.seed)


def result(event: Result) -> pb.Result:
    finish = event.finish
    message = pb.Result(
        finish_reason=pb.FinishReason.Value(f"FINISH_REASON_{finish.reason.name}"),
        usage=pb.Usage(
            prompt_tokens=event.usage.prompt_tokens,
            completion_tokens=event.usage.completion_tokens,
            cached_tokens=event.usage.cached_tokens,
        ),
        timing=_timing(event.timing),
    )
    if finish.stop_sequence is not None:
        message.stop_sequence = finish.stop_sequence
    if finish.stop_token_id is not None:
        message.stop_token_id = finish.stop_token_id
    if event.satisfies_constraint is not None:
        message.satisfies_constraint = event.satisfies_constraint
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
        ),
        defaults=pb.Defaults(
            sampling=pb.SamplingParams(temperature=defaults.temperature, top_p=defaults.top_p, top_k=defaults.top_k),
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


def _duration(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def _timing(timing: Timing) -> pb.Timing:
    first = timing.time_to_first_token
    return pb.Timing(
        queued=_duration(timing.queued),
        prefill=_duration(timing.prefill),
        time_to_first_token=None if first is None else _duration(first),
        total=_duration(timing.total),
    )
