"""The memory limit of the container that the process runs in, as Linux control groups tell it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Files:
    """Where a version of control groups keeps what, below the group's directory."""

    limit: str
    usage: str
    statistics: str
    reclaimable: str
    """The statistic of page cache that is given up before anything fails, such as of a file that was read once."""


VERSIONS = (
    _Files("memory.max", "memory.current", "memory.stat", "inactive_file"),
    _Files("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


def free_container_memory(cgroup: Path) -> int | None:
    """Bytes that can still be allocated within the limit of the control group at `cgroup`; None where it has none.

    Memory in use is counted as Kubernetes does for its working set: without the page cache that nobody has used lately.
    """
    for files in VERSIONS:
        limit = cgroup / files.limit
        if limit.exists() and (text := limit.read_text().strip()) != "max":
            used = int((cgroup / files.usage).read_text())
            return max(0, int(text) - max(0, used - _statistic(cgroup / files.statistics, files.reclaimable)))
    return None


def _statistic(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
