"""What is told of a call says which service it was of."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from server.observe.call_record import CallObserver, CallRecord
from server.rpc.call import SERVICE as GENERATION_SERVICE
from server.rpc.vllm_engine.servicer import SERVICE
from tests.server.rpc.serving import Serving, Start, generate_request
from tests.server.rpc.vllm_engine.calling import SETTINGS, answers, asking, stub_of


@dataclass
class Recorder:
    records: list[CallRecord] = field(default_factory=list)

    def call_ended(self, record: CallRecord) -> None:
        self.records.append(record)


@dataclass
class Recorded(Serving):
    recorder: Recorder = field(default_factory=Recorder)

    def observers(self) -> Sequence[CallObserver]:
        return (self.recorder,)


async def test_a_call_is_told_with_its_service_its_tokens_and_its_ends(start: Start) -> None:
    serving = Recorded(server_settings=SETTINGS)
    await (await start(serving)).ready()
    await answers(serving, asking(stream=False, n=2, request_id="mine"))
    await serving.events(generate_request())
    theirs, ours = serving.recorder.records
    assert (theirs.service, theirs.rpc, ours.service) == (SERVICE, "Generate", GENERATION_SERVICE)
    assert (theirs.request_id, theirs.generated_tokens, len(theirs.results)) == ("mine", 16, 2)


async def test_a_refused_call_too(start: Start) -> None:
    serving = Recorded(server_settings=SETTINGS)
    serving.loading.close()
    await start(serving)
    with pytest.raises(grpc.aio.AioRpcError):
        await stub_of(serving).HealthCheck(pb.HealthCheckRequest())
    (record,) = serving.recorder.records
    assert (record.service, record.rpc, record.reason) == (SERVICE, "HealthCheck", "NOT_READY")
