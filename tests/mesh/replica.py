"""Replicas: processes of the server over its fake model, each on an address of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from treadle import Client, Load, RetryPolicy, TreadleError

PATIENCE = 30.0
"""Seconds a test waits for what must happen; they pass only where it fails."""
STEP_SECONDS = 0.1
"""What a token of the fake model takes."""
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
        assert popen.stdout is not None
        if model == "endless":
            return cls(popen, host, port)
        assert "Try:" in popen.stdout.readline(), "the replica ended"
        return cls(popen, host, int(popen.stdout.readline().split()[-2].rpartition(":")[2]))

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def load(self) -> Load:
        """Asked of the replica itself."""
        with Client(self.address, retry=ONCE) as client:
            return client.load()

    def running(self) -> int:
        return self.load().running

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
        self.popen.kill()
        self.popen.communicate()


def is_answering(replica: Replica) -> bool:
    try:
        replica.load()
    except TreadleError:
        return False
    return True


ROOT = Path(__file__).parents[2]
