"""What a container may still allocate, by both versions of control groups."""

from pathlib import Path

import pytest

from server.model.container_memory import free_container_memory

V2 = {"limit": "memory.max", "usage": "memory.current", "stat": "memory.stat"}
V1 = {
    "limit": "memory/memory.limit_in_bytes",
    "usage": "memory/memory.usage_in_bytes",
    "stat": "memory/memory.stat",
}
V2_STAT = "anon 600\nfile 300\ninactive_anon 50\ninactive_file 250\nactive_file 50\n"
V1_STAT = "cache 300\ninactive_file 1\ntotal_inactive_anon 50\ntotal_inactive_file 250\n"


def write_group(directory: Path, names: dict[str, str], limit: str, usage: str, stat: str) -> None:
    for name, text in (("limit", limit), ("usage", usage), ("stat", stat)):
        path = directory / names[name]
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.mark.parametrize(("names", "stat"), [(V2, V2_STAT), (V1, V1_STAT)], ids=["v2", "v1"])
def test_page_cache_that_can_be_reclaimed_is_free(tmp_path: Path, names: dict[str, str], stat: str) -> None:
    write_group(tmp_path, names, "5000", "1000", stat)
    assert free_container_memory(tmp_path) == 5000 - (1000 - 250)


@pytest.mark.parametrize("names", [V2, V1], ids=["v2", "v1"])
def test_a_container_over_its_limit_has_nothing_free(tmp_path: Path, names: dict[str, str]) -> None:
    write_group(tmp_path, names, "5000", "6000", "anon 6000")
    assert free_container_memory(tmp_path) == 0


def test_without_a_limit_or_without_control_groups_there_is_no_bound(tmp_path: Path) -> None:
    assert free_container_memory(tmp_path) is None
    write_group(tmp_path, V2, "max", "1000", V2_STAT)
    assert free_container_memory(tmp_path) is None


def test_the_figure_by_which_version_1_says_unlimited_bounds_nothing(tmp_path: Path) -> None:
    write_group(tmp_path, V1, "9223372036854771712", "1000", V1_STAT)
    free = free_container_memory(tmp_path)
    assert free is not None
    assert free > 1 << 60
