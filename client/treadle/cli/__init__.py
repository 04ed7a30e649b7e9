"""The command `treadle`: parses, runs one command against one server, and turns every end into an exit status."""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from treadle.cli.arguments import parse
from treadle.cli.commands import run
from treadle.cli.exit_status import ExitStatus
from treadle.cli.printing import print_error
from treadle.errors import TreadleError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    # gRPC's own log would come between the user and our one line; who wants it sets the variable.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to end
    try:
        status = run(arguments)
        sys.stdout.flush()
        return status
    except TreadleError as error:
        print_error(error, arguments.address, as_json=arguments.json)
        return ExitStatus.of(error)
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:
        # Who read our output has left; what is still buffered must not fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.BROKEN_PIPE
