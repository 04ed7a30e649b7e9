"""What the user pipes or types."""

import sys
from contextlib import suppress

from treadle.errors import InvalidRequest

with suppress(ImportError):  # not on every platform; where it is, `input` edits lines and remembers them
    import readline  # noqa: F401


def read_all() -> str:
    """Raises InvalidRequest for what is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"standard input is not UTF-8: {error}") from error


def read_line(prompt: str) -> str | None:
    """None at the end of the input. Raises InvalidRequest for what is not UTF-8."""
    try:
        return input(prompt)
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"standard input is not UTF-8: {error}") from error
