"""The KV cache has the size it was told, and keeps to what is free when it was told nothing."""

from pathlib import Path

import pytest
import torch

from server.model import kv_cache
from server.model.errors import ModelNotServable
from server.model.kv_cache import KVCache, KVShape, affordable_blocks, free_memory

CPU = torch.device("cpu")
SHAPE = KVShape(layers=3, kv_heads=2, key_dim=8, value_dim=4)
BLOCK_BYTES = 3 * 2 * (8 + 4) * 4 * 16


def blocks_for(kv_memory: int | None, useful_tokens: int = 10**9) -> int:
    return affordable_blocks(SHAPE, 16, torch.float32, CPU, kv_memory, useful_tokens)


def test_the_configured_memory_is_filled_with_blocks() -> None:
    assert blocks_for(10 * BLOCK_BYTES) == 10
    assert blocks_for(10 * BLOCK_BYTES - 1) == 9
    assert blocks_for(10 * BLOCK_BYTES, useful_tokens=1) == 10


def test_memory_for_no_block_is_refused_with_both_sizes() -> None:
    with pytest.raises(ModelNotServable, match=f"{BLOCK_BYTES - 1} bytes .* 16 tokens .* {BLOCK_BYTES} bytes"):
        blocks_for(BLOCK_BYTES - 1)


def test_more_than_is_free_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "free_memory", lambda device: 5 * BLOCK_BYTES)
    assert blocks_for(5 * BLOCK_BYTES) == 5
    with pytest.raises(ModelNotServable, match=f"{6 * BLOCK_BYTES} bytes .* {5 * BLOCK_BYTES} bytes that are free"):
        blocks_for(6 * BLOCK_BYTES)


def test_without_configuration_it_takes_a_share_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "free_memory", lambda device: 100 * BLOCK_BYTES)
    assert blocks_for(None) == 50
    assert blocks_for(None, useful_tokens=33) == 3


def test_a_container_s_limit_bounds_what_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kv_cache, "CGROUP", tmp_path)
    unlimited = free_memory(CPU)
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 1000\n")
    assert free_memory(CPU) == 4000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(CPU) > unlimited / 2


def test_the_tensors_hold_the_blocks_and_one_of_zeros() -> None:
    cache = KVCache(SHAPE, 5, 16, torch.float32, CPU)
    assert cache.keys.shape == (3, 6, 2, 16, 8)
    assert cache.values.shape == (3, 6, 2, 16, 4)
    assert cache.keys[:, cache.zero_block].eq(0).all()
    assert cache.values[:, cache.zero_block].eq(0).all()
