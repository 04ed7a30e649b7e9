"""What a GenerateRequest of vllm.grpc.engine asks for, as the engine's requests.

Raises InvalidArgument with the engine's names of the fields; `fields.py` gives them the message's. Of a number that the
message cannot leave unset, 0 means unset where it could mean nothing else.
"""

import secrets

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from server.engine.constraint import (
    MAX_CHOICES,
    Choice,
    Constraint,
    ConstraintSource,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
)
from server.engine.engine import Served
from server.engine.errors import InvalidArgument
from server.engine.model import ModelDescription, SamplingDefaults
from server.engine.plan import LogprobsWanted
from server.engine.request import MAX_LOGPROBS, MAX_STOP_SEQUENCES, MAX_STOP_TOKEN_IDS, Request, Stopping
from server.engine.sampling import MAX_LOGIT_BIAS, Sampling
from server.rpc.counts import check_count
from server.rpc.from_wire import Arrival, Asked, default_max_new_tokens, sibling
from server.rpc.generation_writer import ShownPrompt
from server.rpc.output import Output
from server.rpc.prompt_from_wire import text_token_ids
from server.rpc.sampling_from_wire import GenerationCounts, shortest

NOT_SERVED = (
    "kv_transfer_params",
    "kv_transfer_params_json",
    "mm_inputs",
    "extra_mm_inputs",
    "media_refs",
)
"""Fields for media, and for a prompt and its tokens computed on two servers."""


def generation_count(params: pb.SamplingParams, limit: int) -> int:
    count = params.n or 1
    if count > limit:
        raise InvalidArgument("sampling.n", count, f"must be from 1 to {limit}")
    return count


def constraint_source(params: pb.SamplingParams) -> ConstraintSource | None:
    match params.WhichOneof("constraint"):
        case "json_schema":
            return JsonSchema(params.json_schema)
        case "regex":
            return Regex(params.regex)
        case "grammar":
            return Grammar(params.grammar)
        case "json_object":
            return JsonObject() if params.json_object else None
        case "choice":
            check_count("constraint.choice", len(params.choice.choices), MAX_CHOICES)
            return Choice(tuple(params.choice.choices))
        case "structural_tag":
            raise InvalidArgument("constraint.structural_tag", "set", "structural tags are not served")
        case _:
            return None


def asked(
    message: pb.GenerateRequest, arrival: Arrival, served: Served, constraint: Constraint | None, count: int
) -> Asked:
    """Of `count` generations. Work for a thread, not for the event loop."""
    _check_served(message)
    params, described, tokenizer = message.sampling_params, served.model.description, served.tokenizer
    field, prompt = _prompt(message, served)
    output = _output(params)
    first = Request(
        id=arrival.request_id,
        is_id_claimed=arrival.is_id_claimed,
        prompt_token_ids=prompt,
        prompt_field=field,
        sampling=_sampling(params, described.sampling_defaults),
        arrived_at=arrival.at,
        stopping=_stopping(params, described, len(prompt)),
        constraint=constraint,
        logprobs=output.logprobs,
        prompt_logprobs=output.prompt_logprobs,
        # They bear on which text the stop sequences are looked for in; the client gets ids.
        kept_special_token_ids=frozenset() if params.skip_special_tokens else tokenizer.special_token_ids,
    )
    requests = (first, *(sibling(first, index) for index in range(1, count)))
    unseen = ShownPrompt("", ends_in_reasoning=False)
    return Asked(requests, (unseen,) * count, output, GenerationCounts(count, best=None))


def _check_served(message: pb.GenerateRequest) -> None:
    set_fields = {field.name for field, _ in message.ListFields()}
    for name in NOT_SERVED:
        if name in set_fields:
            raise InvalidArgument(name, "set", "is not served")
    if message.data_parallel_rank != 0:
        raise InvalidArgument("data_parallel_rank", message.data_parallel_rank, "must be 0, the only rank")


def _prompt(message: pb.GenerateRequest, served: Served) -> tuple[str, tuple[int, ...]]:
    """Its field, and its token ids."""
    kind, params = message.WhichOneof("input"), message.sampling_params
    most = params.truncate_prompt_tokens if params.HasField("truncate_prompt_tokens") else None
    if most is not None and most < 1:
        raise InvalidArgument("sampling.truncate_prompt_tokens", most, "must be at least 1")
    match kind:
        case "tokenized":
            token_ids = message.tokenized.input_ids
            if most is None:
                limit = served.model.description.max_total_tokens - 1
                check_count("tokenized.input_ids", len(token_ids), limit)
            return "tokenized.input_ids", tuple(token_ids if most is None else token_ids[-most:])
        case "text":
            encoded = text_token_ids("text", message.text, served, add_special_tokens=True)
            return "text", tuple(encoded if most is None else encoded[-most:])
        case _:
            raise InvalidArgument("input", "unset", "one of tokenized and text must be set")


def _sampling(params: pb.SamplingParams, defaults: SamplingDefaults) -> Sampling:
    """As vLLM does: a request that names no temperature is sampled, and a top_k or min_p of 0 is off."""
    check_count("sampling.logit_bias", len(params.logit_bias), MAX_LOGIT_BIAS)
    for token_id in params.logit_bias:
        if token_id < 0:
            raise InvalidArgument(f"sampling.logit_bias[{token_id}]", token_id, "must be a token id, at least 0")
    if params.seed < 0:
        raise InvalidArgument("sampling.seed", params.seed, "must be at least 0")
    return Sampling(
        seed=params.seed if params.HasField("seed") else secrets.randbits(64),
        temperature=(shortest(params.temperature) if params.HasField("temperature") else defaults.sampled_temperature),
        top_k=params.top_k,
        top_p=shortest(params.top_p) or defaults.top_p,
        min_p=shortest(params.min_p),
        typical_p=defaults.typical_p,
        repetition_penalty=shortest(params.repetition_penalty) or defaults.repetition_penalty,
        frequency_penalty=shortest(params.frequency_penalty),
        presence_penalty=shortest(params.presence_penalty),
        logit_bias=tuple((token_id, shortest(params.logit_bias[token_id])) for token_id in sorted(params.logit_bias)),
    )


def _stopping(params: pb.SamplingParams, described: ModelDescription, prompt_length: int) -> Stopping:
    check_count("stopping.stop", len(params.stop), MAX_STOP_SEQUENCES)
    check_count("stopping.stop_token_ids", len(params.stop_token_ids), MAX_STOP_TOKEN_IDS)
    return Stopping(
        max_new_tokens=_max_new_tokens(params, described, prompt_length),
        min_new_tokens=params.min_tokens,
        stop=tuple(params.stop),
        stop_token_ids=frozenset(params.stop_token_ids),
        ignore_eos=params.ignore_eos,
        include_stop_text=params.include_stop_str_in_output,
    )


def _max_new_tokens(params: pb.SamplingParams, described: ModelDescription, prompt_length: int) -> int | None:
    """At most what fits: the gateway leaves it to the worker to know that, and either way the end is its "length"."""
    if not params.HasField("max_tokens"):
        return default_max_new_tokens(described, prompt_length)
    room = max(1, described.max_total_tokens - prompt_length)
    return min(params.max_tokens, room)


def _output(params: pb.SamplingParams) -> Output:
    for name in ("logprobs", "prompt_logprobs"):
        wanted: int = getattr(params, name)
        if not 0 <= wanted <= MAX_LOGPROBS:
            raise InvalidArgument(f"output.{name}", wanted, f"must be from 0 to {MAX_LOGPROBS}")
    return Output(
        text=False,
        logprobs=LogprobsWanted(params.logprobs, processed=False) if params.HasField("logprobs") else None,
        prompt_logprobs=params.prompt_logprobs if params.HasField("prompt_logprobs") else None,
    )
