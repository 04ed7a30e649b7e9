"""What vllm.grpc.engine tells of the server and its model."""

import json
import time
from datetime import UTC, datetime
from importlib.metadata import version

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from server.engine.counters import Counts
from server.engine.engine import EngineSettings, Served
from server.engine.load import Load
from server.engine.model import SamplingDefaults

SERVER_TYPE = "vllm-grpc"
"""The protocol's name for itself."""
CORE = "core"


def model_info(served: Served) -> pb.GetModelInfoResponse:
    """Without the path of a tokenizer: one on this machine's disk may be another one, or none, on the gateway's."""
    described = served.model.description
    return pb.GetModelInfoResponse(
        model_path=described.id,
        served_model_name=described.id,
        is_generation=True,
        max_context_length=described.max_total_tokens,
        max_req_input_len=described.max_total_tokens - 1,
        vocab_size=described.vocabulary_size,
        model_type=described.model_type,
        architectures=[described.architecture],
        eos_token_ids=sorted(described.eos_token_ids),
        pad_token_id=described.pad_token_id or 0,
        bos_token_id=described.bos_token_id or 0,
        default_sampling_params_json=_sampling_params(described.sampling_defaults),
    )


def _sampling_params(defaults: SamplingDefaults) -> str:
    return json.dumps(
        {
            "temperature": defaults.sampled_temperature,
            "top_k": defaults.top_k,
            "top_p": defaults.top_p,
            "min_p": defaults.min_p,
            "repetition_penalty": defaults.repetition_penalty,
        }
    )


def server_info(served: Served, settings: EngineSettings, load: Load) -> pb.GetServerInfoResponse:
    described = served.model.description
    return pb.GetServerInfoResponse(
        server_type=SERVER_TYPE,
        active_requests=load.running + load.waiting,
        uptime_seconds=time.time() - load.since,
        data_parallel_size=1,
        kv_cache_dtype=described.weight_type,
        model_dtype=described.weight_type,
        block_size=described.kv_block_size,
        max_num_seqs=settings.max_slots,
        constrained_decoding_start="first_token",
    )


def loads(request: pb.GetLoadsRequest, load: Load, counts: Counts) -> pb.GetLoadsResponse:
    """Of the one rank there is, in the one section there is."""
    wants_rank = request.dp_rank == 0
    wants_section = not request.include or bool({CORE, "all"} & set(request.include))
    return pb.GetLoadsResponse(
        timestamp=datetime.now(UTC).isoformat(),
        version=version("treadle"),
        dp_rank_count=1,
        loads=[_scheduler_load(load, counts)] if wants_rank and wants_section else [],
    )


def _scheduler_load(load: Load, counts: Counts) -> pb.SchedulerLoad:
    queried = counts.prefix_queried_tokens
    return pb.SchedulerLoad(
        num_running_reqs=load.running,
        num_waiting_reqs=load.waiting,
        num_total_reqs=load.running + load.waiting,
        num_used_tokens=load.kv_blocks_used * load.kv_block_size,
        max_total_num_tokens=load.kv_blocks_total * load.kv_block_size,
        token_usage=load.kv_blocks_used / load.kv_blocks_total,
        gen_throughput=load.tokens_per_second,
        cache_hit_rate=counts.prefix_found_tokens / queried if queried else 0.0,
        utilization=load.running / load.slots,
        max_running_requests=load.slots,
    )
