"""The process as a whole: over a fake model, which is there at once, and over the default model where it matters."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from treadle import TLS, Client, NotAllowed
from treadle.v1 import generation_pb2 as pb
from treadle.v1.generation_pb2_grpc import GenerationServiceStub

from server.__main__ import _engine_settings, _security_settings
from server.config import Config, ConfigError, parse_config
from server.engine.engine import EngineSettings
from server.rpc.security.limits import Limits
from server.rpc.security.settings import JWTSettings, SecuritySettings, TLSFiles
from tests.server.rpc.security.authority import SERVER_NAME, Authority
from tests.server.rpc.security.callers import token_line

PATIENCE = 120.0
"""Seconds a test waits for what must happen; they pass only where it fails."""
FAKE = "tests.server.serve_fake"
REAL = "server"


@dataclass
class Process:
    """A server process on a port of its own choice."""

    popen: "subprocess.Popen[str]"
    ready_lines: list[str] = field(default_factory=list)

    def wait_until_ready(self) -> "Process":
        assert self.popen.stdout is not None
        self.ready_lines = [self.popen.stdout.readline(), self.popen.stdout.readline()]
        assert "Try:" in self.ready_lines[0], self.end()
        self.address = self.ready_lines[1].split()[-2]
        self.channel = grpc.insecure_channel(self.address)
        self.stub = GenerationServiceStub(self.channel)
        return self

    def generate(self, prompt: str, max_new_tokens: int) -> Iterator[pb.GenerateResponse]:
        """The events, once the first is there."""
        stopping = pb.StoppingCriteria(max_new_tokens=max_new_tokens, ignore_eos=True)
        call = self.stub.Generate(pb.GenerateRequest(prompt=prompt, stopping=stopping))
        assert next(call).HasField("started")
        return call

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait_for_log(self, event: str) -> dict[str, object]:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            if event in line:
                logged: dict[str, object] = json.loads(line)
                return logged
        raise AssertionError(f"the process ended without {event!r} in its log")

    def end(self) -> tuple[int, str]:
        """The exit status and the rest of standard error."""
        _, err = self.popen.communicate(timeout=PATIENCE)
        return self.popen.returncode, err


Run = Callable[..., Process]


@pytest.fixture
def run() -> Iterator[Run]:
    processes: list[Process] = []

    def start(module: str, *flags: str, **environment: str) -> Process:
        command = [sys.executable, "-m", module, "--port=0", *flags]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([".", "client"]), **environment}
        pipe = subprocess.PIPE
        processes.append(Process(subprocess.Popen(command, stdout=pipe, stderr=pipe, env=variables, text=True)))
        return processes[-1]

    yield start
    for process in processes:
        process.popen.kill()
        process.popen.communicate()


def status_of(call: Iterator[pb.GenerateResponse]) -> grpc.StatusCode:
    try:
        events = list(call)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    assert events[-1].HasField("result")
    return grpc.StatusCode.OK


def test_the_default_model_is_served_and_sigterm_lets_it_finish_its_streams(run: Run) -> None:
    process = run(REAL, "--max-slots=4", "--kv-memory=64MiB", "--grace=2m").wait_until_ready()
    assert "smollm2-135m-instruct" in process.ready_lines[0]
    assert "grpcurl -plaintext -d '{" in process.ready_lines[1]
    example = json.loads(process.ready_lines[1].split("'")[1])
    assert any(event.tokens.text for event in process.stub.Generate(ParseDict(example, pb.GenerateRequest())))
    streams = [process.generate("Once upon a time", 10) for _ in range(3)]
    process.signal(signal.SIGTERM)
    assert [status_of(stream) for stream in streams] == [grpc.StatusCode.OK] * 3
    status, err = process.end()
    assert status == 0
    assert "Traceback" not in err


def test_the_configuration_is_the_first_line_of_the_log(run: Run) -> None:
    process = run(FAKE, "--max-waiting=7", TREADLE_MAX_SLOTS="3", TREADLE_MAX_SLOT="4")
    configuration = process.wait_for_log("configuration")
    assert (configuration["max_waiting"], configuration["max_slots"], configuration["grace"]) == ("7", "3", "30s")
    assert process.wait_for_log("no setting")["variable"] == "TREADLE_MAX_SLOT"


def test_what_kubernetes_sets_for_a_service_of_our_name_is_warned_of_once(run: Run) -> None:
    links = {"TREADLE_PORT": "tcp://10.0.0.1:50051", "TREADLE_SERVICE_HOST": "10.0.0.1"}
    process = run(FAKE, **links)
    assert process.wait_for_log("Kubernetes")["variables"] == ["TREADLE_PORT", "TREADLE_SERVICE_HOST"]
    assert process.wait_for_log("treadle.main")["event"] == "listening; the model loads"


def test_the_server_starts_with_the_largest_messages_that_can_be_set(run: Run) -> None:
    configuration = (
        run(FAKE, "--max-message-bytes=512MiB", "--max-open-bytes=1GiB")
        .wait_until_ready()
        .wait_for_log("configuration")
    )
    assert configuration["max_message_bytes"] == "512MiB"
    with pytest.raises(ConfigError, match="to 512MiB"):
        parse_config(["--max-message-bytes=536870913"], {})


def test_every_setting_of_the_engine_comes_from_the_setting_of_its_name() -> None:
    flags = ["--max-slots=3", "--max-waiting=4", "--max-step-tokens=5", "--max-unread-tokens=6", "--stuck-after=7s"]
    flags += ["--prefix-cache=no", "--priority-aging=8s", "--preempt-lower-priority", "--max-step-time=9s"]
    config = parse_config(flags, {})
    settings = _engine_settings(config)
    for setting in fields(EngineSettings):
        assert getattr(settings, setting.name) == getattr(config, setting.name) != getattr(Config(), setting.name)


def test_what_the_grace_does_not_finish_ends_unavailable_and_the_exit_is_clean(run: Run) -> None:
    process = run(FAKE, "--grace=100ms").wait_until_ready()
    streams = [process.generate("hello", 100) for _ in range(3)]
    process.signal(signal.SIGTERM)
    assert [status_of(stream) for stream in streams] == [grpc.StatusCode.UNAVAILABLE] * 3
    assert process.end()[0] == 0


def test_a_draining_process_is_not_serving_and_refuses_new_work(run: Run) -> None:
    process = run(FAKE).wait_until_ready()
    stream = process.generate("hello", 100)
    process.signal(signal.SIGINT)
    process.wait_for_log("shutting down")
    health = health_pb2_grpc.HealthStub(process.channel)
    while health.Check(health_pb2.HealthCheckRequest()).status != health_pb2.HealthCheckResponse.NOT_SERVING:
        pass
    with pytest.raises(grpc.RpcError, match="shutting down"):
        process.generate("hello", 1)
    assert status_of(stream) is grpc.StatusCode.OK
    assert process.end()[0] == 0


def test_a_second_interrupt_quits_at_once(run: Run) -> None:
    process = run(FAKE).wait_until_ready()
    stream = process.generate("hello", 100)
    process.signal(signal.SIGINT)
    process.wait_for_log("shutting down")
    process.signal(signal.SIGINT)
    assert process.end()[0] == 130
    assert status_of(stream) is not grpc.StatusCode.OK


def test_a_signal_while_the_model_loads_ends_the_process_cleanly(run: Run) -> None:
    process = run(FAKE, "--model=endless")
    process.wait_for_log("listening")
    process.signal(signal.SIGTERM)
    status, err = process.end()
    assert status == 0
    assert "Traceback" not in err


def test_a_dead_scheduler_ends_every_stream_and_the_process_fails(run: Run) -> None:
    process = run(FAKE).wait_until_ready()
    stream = process.generate("hello", 100)
    with pytest.raises(grpc.RpcError):
        process.generate("die!", 1)
    assert status_of(stream) is grpc.StatusCode.UNAVAILABLE
    status, err = process.end()
    assert status == 1
    assert err.splitlines()[-1] == "treadle: error: the engine failed: SystemExit: the prompt was deadly"


def test_a_model_that_cannot_be_served_is_one_line(run: Run) -> None:
    status, err = run(FAKE, "--model=unservable", "--log-level=error").end()
    assert (status, err) == (1, "treadle: error: unservable cannot be served: it is a test\n")


def test_a_load_that_breaks_ends_with_a_line_and_a_traceback_in_the_log(run: Run) -> None:
    status, err = run(FAKE, "--model=broken", "--log-level=error").end()
    *log, line = err.splitlines()
    assert status == 1
    assert line == "treadle: error: the engine failed: RuntimeError: broken on purpose"
    assert any("broken on purpose" in json.loads(one).get("exception", "") for one in log)


def test_a_port_in_use_is_one_line(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, err = run(FAKE, f"--port={port}", "--log-level=error").end()
    assert status == 1
    (line,) = err.splitlines()
    assert line.startswith(f"treadle: error: cannot listen on 127.0.0.1:{port}: ")
    assert "Address already in use" in line


def test_the_flags_of_security_are_in_force_and_no_secret_is_logged(run: Run, tmp_path: Path) -> None:
    authority = Authority()
    authority.certify_server().write(tmp_path)
    (tmp_path / "tokens").write_text(token_line("alice", "treadle_secret"))
    flags = [f"--tls-certificate={tmp_path / 'server.pem'}", f"--tls-key={tmp_path / 'server.key'}"]
    flags += [f"--tokens-file={tmp_path / 'tokens'}", "--auth-health=closed", "--identity-max-concurrent=2"]
    process = run(FAKE, *flags).wait_until_ready()
    assert "grpcurl -cacert AUTHORITY -H 'authorization: Bearer TOKEN' -d" in process.ready_lines[1]
    tls = TLS(authority.certificate, server_name=SERVER_NAME)
    with Client(process.address, tls=tls, token="treadle_secret") as client:
        assert client.complete("hello", max_new_tokens=2).text
    with Client(process.address, tls=tls, token="treadle_guess") as client, pytest.raises(NotAllowed) as refused:
        client.complete("hello", max_new_tokens=2)
    assert (refused.value.code, refused.value.reason) == ("UNAUTHENTICATED", "WRONG_CREDENTIAL")
    process.signal(signal.SIGTERM)
    status, err = process.end()
    assert status == 0
    assert '"identity": "token:alice"' in err
    assert "treadle_secret" not in err
    assert "treadle_guess" not in err
    assert "PRIVATE KEY" not in err


def test_every_setting_of_security_comes_from_the_setting_of_its_name() -> None:
    flags = ["--tls-certificate=c", "--tls-key=k", "--tls-client-ca=a", "--tokens-file=t", "--jwks-file=j"]
    flags += ["--jwt-audience=treadle", "--jwt-issuer=i", "--auth-health=closed", "--auth-reflection=open"]
    flags += ["--identity-max-concurrent=1", "--identity-max-queued=2", "--identity-tokens-per-minute=3"]
    assert _security_settings(parse_config([*flags, "--identity-limits-file=l"], {})) == SecuritySettings(
        tls=TLSFiles(Path("c"), Path("k"), Path("a")),
        tokens_file=Path("t"),
        jwt=JWTSettings(Path("j"), "treadle", "i"),
        is_health_open=False,
        is_reflection_open=True,
        limits=Limits(1, 2, 3),
        limits_file=Path("l"),
    )


def test_a_certificate_that_is_not_there_is_one_line(run: Run) -> None:
    status, err = run(FAKE, "--tls-certificate=nowhere", "--tls-key=nowhere", "--log-level=error").end()
    assert (status, err) == (1, "treadle: error: nowhere: No such file or directory\n")


@pytest.mark.parametrize(
    ("flags", "environment", "line"),
    [
        (["--host=0.0.0.0"], {}, "treadle: error: host is 0.0.0.0, which other machines may reach: give"),
        (["--max-slots=0"], {}, "treadle: error: --max-slots is '0': must be a whole number from 1 to 4096"),
        ([], {"TREADLE_GRACE": "x"}, "treadle: error: TREADLE_GRACE is 'x': must be a duration of at least 0s"),
    ],
)
def test_a_bad_setting_is_one_line_and_status_2(
    run: Run, flags: list[str], environment: dict[str, str], line: str
) -> None:
    status, err = run(REAL, *flags, **environment).end()
    assert status == 2
    assert err.startswith(line)
    assert len(err.splitlines()) == 1
