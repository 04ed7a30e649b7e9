"""Workers of the gateway: processes of the server over the default model."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc
from treadle import Client, Health, Load, RetryPolicy

PATIENCE = 60.0
"""Seconds a test waits for what must happen; they pass only where it fails."""
ONCE = RetryPolicy(max_attempts=1)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.05)


@dataclass
class Worker:
    popen: "subprocess.Popen[str]"
    address: str = ""

    @classmethod
    def start(cls, *flags: str) -> "Worker":
        """Once its model is there."""
        command = [sys.executable, "-m", "server", "--port=0", "--vllm-engine", "--metrics-port=off", *flags]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([".", "client"])}
        pipe = subprocess.PIPE
        worker = cls(subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, env=variables, text=True))
        assert worker.popen.stdout is not None
        first_line = worker.popen.stdout.readline()
        if not first_line:
            worker.close()
            raise AssertionError("the worker ended without serving")
        worker.address = first_line.split()[-2].rstrip(".")
        return worker

    def load(self) -> Load:
        with Client(self.address, retry=ONCE) as client:
            return client.load()

    def running(self) -> int:
        return self.load().running

    def is_ready(self) -> bool:
        with Client(self.address, retry=ONCE) as client:
            return client.health() is Health.SERVING

    def is_known_to_drain(self) -> bool:
        """What a gateway hears."""
        with grpc.insecure_channel(self.address) as channel:
            try:
                vllm_engine_pb2_grpc.VllmEngineStub(channel).HealthCheck(pb.HealthCheckRequest())
            except grpc.RpcError as error:
                return bool(error.code() is grpc.StatusCode.UNAVAILABLE)
            return False

    def drain(self) -> None:
        """It refuses new calls and ends once the running ones have, or its grace has passed."""
        self.popen.send_signal(signal.SIGTERM)

    def close(self) -> None:
        self.popen.kill()
        self.popen.communicate()
