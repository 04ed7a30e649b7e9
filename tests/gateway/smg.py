"""The smg gateway as a process of its own."""

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.gateway.worker import eventually


@dataclass
class Gateway:
    popen: "subprocess.Popen[bytes]"
    port: int

    @classmethod
    def start(cls, workers: Sequence[str], log: Path) -> "Gateway":
        """Once it knows its workers and their tokenizer."""
        port, metrics_port = _free_ports(2)
        command = [str(Path(sys.executable).parent / "smg"), "launch", "--host=127.0.0.1", f"--port={port}"]
        command += ["--prometheus-host=127.0.0.1", f"--prometheus-port={metrics_port}"]
        command += ["--policy=round_robin", "--worker-startup-check-interval=1", "--health-check-interval-secs=1"]
        command += ["--worker-urls", *(f"grpc://{worker}" for worker in workers)]
        with log.open("wb") as output:
            gateway = cls(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent), port)
        try:
            eventually(lambda: gateway.is_ready(len(workers)))
        except BaseException:
            gateway.close()
            raise
        return gateway

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def is_ready(self, workers: int) -> bool:
        assert self.popen.poll() is None, "the gateway has ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readiness") as answer:
                return f'"healthy_workers":{workers}'.encode() in answer.read()
        except urllib.error.URLError:
            return False

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
