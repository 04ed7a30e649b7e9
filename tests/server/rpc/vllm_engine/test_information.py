"""What VllmEngine tells of the server: health, the model, load and the tokenizer."""

import asyncio
import hashlib
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from server.rpc.security.settings import SecuritySettings
from server.rpc.vllm_engine.servicer import SERVICE
from server.rpc.vllm_engine.tokenizer_archive import CHUNK_BYTES
from tests.server.fakes import VOCABULARY_SIZE
from tests.server.rpc.security.callers import bearer, token_line
from tests.server.rpc.serving import PATIENCE, Serving, Start, refusal_of_answer
from tests.server.rpc.vllm_engine.calling import SETTINGS, asking, held, stub_of


@pytest.fixture
async def serving(start: Start) -> Serving:
    return await (await start(Serving(server_settings=SETTINGS))).ready()


async def services_of(serving: Serving) -> set[str]:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    call = reflection_pb2_grpc.ServerReflectionStub(serving.channel).ServerReflectionInfo(iter([request]))
    async for answer in call:
        return {service.name for service in answer.list_services_response.service}
    raise AssertionError("no answer")


async def test_it_is_served_and_listed_only_where_it_is_asked_for(start: Start) -> None:
    without = await (await start(Serving())).ready()
    assert SERVICE not in await services_of(without)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stub_of(without).HealthCheck(pb.HealthCheckRequest())
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    serving = await (await start(Serving(server_settings=SETTINGS))).ready()
    assert SERVICE in await services_of(serving)
    assert await serving.health_of(SERVICE) == "SERVING"


async def test_health_is_unavailable_until_the_model_is_warm_and_while_it_drains(start: Start) -> None:
    serving = Serving(server_settings=SETTINGS)
    serving.loading.close()
    await start(serving)
    refusal = await refusal_of_answer(stub_of(serving).HealthCheck(pb.HealthCheckRequest()))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY")
    serving.loading.open()
    await serving.ready()
    assert (await stub_of(serving).HealthCheck(pb.HealthCheckRequest())).healthy
    serving.engine.drain()
    refusal = await refusal_of_answer(stub_of(serving).HealthCheck(pb.HealthCheckRequest()))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def test_the_model_is_told_with_what_fits_and_what_is_meant_by_nothing(serving: Serving) -> None:
    info = await stub_of(serving).GetModelInfo(pb.GetModelInfoRequest())
    assert (info.served_model_name, info.model_path, info.is_generation) == ("fake", "fake", True)
    assert info.max_context_length == serving.model.description.max_total_tokens
    assert (info.vocab_size, list(info.architectures)) == (VOCABULARY_SIZE, ["FakeForCausalLM"])
    assert json.loads(info.default_sampling_params_json)["temperature"] == 1.0


async def test_the_load_counts_what_runs(serving: Serving) -> None:
    await held(serving, asking(max_tokens=100))
    (load,) = (await stub_of(serving).GetLoads(pb.GetLoadsRequest(include=["core"]))).loads
    info = await stub_of(serving).GetServerInfo(pb.GetServerInfoRequest())
    assert (load.num_total_reqs, info.active_requests, info.max_num_seqs) == (1, 1, 4)
    assert not (await stub_of(serving).GetLoads(pb.GetLoadsRequest(dp_rank=1))).loads


async def test_the_tokenizer_comes_in_chunks_with_the_sum_of_all_on_the_last(serving: Serving) -> None:
    chunks = [chunk async for chunk in stub_of(serving).GetTokenizer(common_pb2.GetTokenizerRequest())]
    whole = b"".join(chunk.data for chunk in chunks)
    assert all(len(chunk.data) <= CHUNK_BYTES for chunk in chunks)
    assert [chunk.sha256 for chunk in chunks] == [""] * (len(chunks) - 1) + [hashlib.sha256(whole).hexdigest()]
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert files == {file.name: file.content for file in serving.tokenizer.files()}


async def test_embeddings_are_unimplemented(serving: Serving) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stub_of(serving).Embed(pb.EmbedRequest(tokenized=pb.TokenizedInput(input_ids=[1])))
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_nobody_aborts_what_is_another_identitys(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(token_line("alice", "hers") + token_line("bob", "his"))
    settings = replace(SETTINGS, security=SecuritySettings(tokens_file=path))
    serving = await (await start(Serving(server_settings=settings))).ready()
    stub = stub_of(serving)
    serving.steps.close()
    call = stub.Generate(asking(stream=False, request_id="r"), metadata=bearer("hers"))
    assert await asyncio.to_thread(serving.steps.reached.wait, PATIENCE)
    await stub.Abort(pb.AbortRequest(request_ids=["r"]), metadata=bearer("his"))
    serving.steps.open()
    assert [response.complete.finish_reason async for response in call] == ["length"]
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stub.Abort(pb.AbortRequest(request_ids=["r"]))
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
