"""The processes that this one has started, as Linux tells of them."""

import os
from collections.abc import Iterator
from pathlib import Path


def nice_values_of_children() -> Iterator[int]:
    """See proc_pid_stat(5)."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, fields = status.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        _, parent, *others = fields.split()
        if int(parent) == os.getpid():
            yield int(others[14])
