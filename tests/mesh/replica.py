"""Replicas: processes of the server over its fake model, each on an address of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from treadle import Client, Health, Load, RetryPolicy

PATIENCE = 30.0
"""Seconds a test waits for what must happen; they pass only where it fails."""
STEP_SECONDS = 0.1
"""What a token of the fake model takes."""
ROOT = Path(__file__).parents[2]
ONCE = RetryPolicy(max_attempts=1)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


@dataclass
class Replica:
    popen: "subprocess.Popen[str]"
    host: str
    port: int

    @classmethod
    def start(cls, *flags: str, host: str = "127.0.0.1", port: int = 0, model: str = "long") -> "Replica":
        """Once its model is there, or with a model that loads for ever once it listens."""
        address = [f"--host={host}", f"--port={port}", f"--model={model}"]
        command = [sys.executable, "-m", "tests.server.serve_fake", *address, "--log-format=json", *flags]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([".", "client"])}
        pipe = subprocess.PIPE
        popen = subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, env=variables, text=True)
        replica = cls(popen, host, port)
        try:
            replica._wait_until_ready(model)
        except BaseException:
            replica.close()
            raise
        return replica

    def _wait_until_ready(self, model: str) -> None:
        if model == "endless":
            assert self.port, "it does not say which port it has taken"
            eventually(lambda: is_listening(self.host, self.port))
            return
        assert self.popen.stdout is not None
        assert "Try:" in self.popen.stdout.readline(), f"the replica ended with {self.popen.wait(PATIENCE)}"
        self.port = int(self.popen.stdout.readline().split()[-2].rpartition(":")[2])

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def load(self) -> Load:
        """Asked of the replica itself."""
        with Client(self.address, retry=ONCE) as client:
            return client.load()

    def running(self) -> int:
        return self.load().running

    def is_ready(self) -> bool:
        with Client(self.address, retry=ONCE) as client:
            return client.health() is Health.SERVING

    def drain(self) -> None:
        """It refuses new calls and ends once the running ones have, or its grace has passed."""
        self.popen.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait(PATIENCE)

    def status(self) -> int:
        """The exit status, once it has ended."""
        return self.popen.wait(PATIENCE)

    def close(self) -> None:
        self.kill()
        if self.popen.stdout is not None:
            self.popen.stdout.close()


def is_listening(host: str, port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex((host, port)) == 0


def free_port(host: str) -> int:
    """One that nobody listens on at the moment."""
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
