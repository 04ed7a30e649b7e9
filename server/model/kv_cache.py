"""The KV cache: every layer's keys and values, in blocks that the scheduler hands out by number."""

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from server.model.container_memory import free_container_memory
from server.model.errors import ModelNotServable

FREE_MEMORY_SHARE = 0.5
"""How much of the memory that is free after loading the cache takes when no size is configured."""

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token leaves in the cache; the same in every layer."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return self.layers * self.kv_heads * (self.key_dim + self.value_dim) * dtype.itemsize


class KVCache:
    """Keys `[layers, blocks + 1, kv_heads, block_size, key_dim]` and values alike, with `value_dim`.

    Heads come before positions so that a gathered block is one contiguous copy per head, ready for a batched matrix
    product. The block past the last is never written and holds zeros: it fills up tables of unequal length.
    """

    def __init__(
        self, shape: KVShape, block_count: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape, self.block_count, self.block_size = shape, block_count, block_size
        size = (shape.layers, block_count + 1, shape.kv_heads, block_size)
        self.keys = torch.empty(*size, shape.key_dim, dtype=dtype, device=device)
        self.values = torch.empty(*size, shape.value_dim, dtype=dtype, device=device)
        self.keys[:, self.zero_block] = 0
        self.values[:, self.zero_block] = 0

    @property
    def zero_block(self) -> int:
        return self.block_count

    def write(self, layer: int, places: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Writes keys `[kv_heads, tokens, key_dim]` and values alike at `places` `[kv_heads * tokens]`.

        A place is `(block * kv_heads + head) * block_size + position in the block`.
        """
        _rows(self.keys[layer]).index_copy_(0, places, keys.reshape(-1, self.shape.key_dim))
        _rows(self.values[layer]).index_copy_(0, places, values.reshape(-1, self.shape.value_dim))

    def clear(self, layer: int, places: torch.Tensor) -> None:
        """Puts zeros at `places`, numbered as in `write`."""
        _rows(self.keys[layer]).index_fill_(0, places, 0)
        _rows(self.values[layer]).index_fill_(0, places, 0)

    def read(self, layer: int, head_blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the keys and values `[*batch, blocks * block_size, dim]` of head blocks `[*batch, blocks]`.

        A head block is `block * kv_heads + head`.
        """
        *batch, blocks = head_blocks.shape
        index = head_blocks.reshape(-1)
        keys = self.keys[layer].flatten(0, 1).index_select(0, index)
        values = self.values[layer].flatten(0, 1).index_select(0, index)
        length = blocks * self.block_size
        return keys.view(*batch, length, self.shape.key_dim), values.view(*batch, length, self.shape.value_dim)


def _rows(pool: torch.Tensor) -> torch.Tensor:
    return pool.view(-1, pool.shape[-1])


def affordable_blocks(
    shape: KVShape, block_size: int, dtype: torch.dtype, device: torch.device, kv_memory: int | None, useful_tokens: int
) -> int:
    """How many blocks the cache gets: what `kv_memory` bytes hold, or else what a share of the free memory holds.

    Of a size that is ours to choose, no more than `useful_tokens` need. Raises ModelNotServable when no block fits, or
    when more is configured than is free.
    """
    block_bytes = shape.bytes_per_token(dtype) * block_size
    free = free_memory(device)
    if kv_memory is None:
        budget = int(free * FREE_MEMORY_SHARE)
        blocks = min(budget // block_bytes, -(-useful_tokens // block_size))
    else:
        budget = kv_memory
        blocks = budget // block_bytes
    if budget > free:
        raise ModelNotServable(f"{budget} bytes of KV memory are more than the {free} bytes that are free")
    if blocks < 1:
        raise ModelNotServable(
            f"{budget} bytes of KV memory hold no block: {block_size} tokens of this model take {block_bytes} bytes"
        )
    return blocks


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on the device, within the container's limit where there is one."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    available = int(psutil.virtual_memory().available)
    container = free_container_memory(CGROUP)
    return available if container is None else min(available, container)
