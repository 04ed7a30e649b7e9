"""The command as its users run it: a process."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

from tests.client.scripted import PATIENCE


@dataclass
class Ended:
    status: int
    out: str
    err: str


@dataclass
class Command:
    address: str

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
        variables = {**os.environ, "PYTHONPATH": "client", "TREADLE_ADDRESS": self.address, **environment}
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "treadle", *arguments]
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=variables)

    def run(self, *arguments: str, stdin: bytes = b"", **environment: str) -> Ended:
        return end(self.start(*arguments, **environment), stdin)


def end(process: "subprocess.Popen[bytes]", stdin: bytes | None = None) -> Ended:
    out, err = process.communicate(stdin, timeout=PATIENCE)
    return Ended(process.returncode, out.decode(), err.decode())


def interrupt(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)
