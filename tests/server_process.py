"""A server as a process of its own, for tests of what talks to it from outside."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

REAL = "server"
"""Over the default model."""


@contextlib.contextmanager
def serving(module: str, *flags: str) -> Iterator[str]:
    """The address of the server, once it serves, which ends with the block."""
    command = [sys.executable, "-m", module, "--port=0", *flags]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([".", "client"])}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=variables, text=True)
        try:
            assert process.stdout is not None
            first_line = process.stdout.readline()
            if not first_line:
                log.seek(0)
                raise AssertionError(f"the server ended without serving:\n{log.read()}")
            yield first_line.split()[-2].rstrip(".")
        finally:
            process.kill()
            process.communicate()
