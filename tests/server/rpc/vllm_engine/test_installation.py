"""The protocol is an extra of its own, which a server that does not serve it does not need."""

import sys

import pytest

from server.rpc.server import GatewayNotInstalled
from tests.server.rpc.serving import Serving, Start
from tests.server.rpc.vllm_engine.calling import SETTINGS


@pytest.fixture
def without_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("server.rpc.vllm_engine")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("server.rpc.vllm_engine", raising=False)
    monkeypatch.setitem(sys.modules, "smg_grpc_proto", None)
    monkeypatch.setitem(sys.modules, "smg_grpc_proto.generated", None)


@pytest.mark.usefixtures("without_protocol")
async def test_without_the_protocol_it_is_refused_at_start_with_what_to_install() -> None:
    with pytest.raises(GatewayNotInstalled, match=r"pip install '\.\[gateway\]'"):
        await Serving(server_settings=SETTINGS).start()


@pytest.mark.usefixtures("without_protocol")
async def test_a_server_that_is_not_asked_for_it_starts_without(start: Start) -> None:
    serving = await (await start(Serving())).ready()
    assert await serving.health_of("") == "SERVING"
