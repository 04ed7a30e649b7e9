"""Attention over the paged KV cache, for a ragged batch that transformers sees as one row of tokens.

A step's tokens are laid out as `[1, tokens]`: first the spans of one token (decode rows), then each longer span (a
chunk). Every attention layer of the model calls `paged_attention`, which writes the new keys and values into their
blocks and attends: each chunk by itself over its whole context, the decode rows all at once. What it needs of the step
travels as the keyword argument `paged_batch` of the model's forward; the layer's number comes from the module.

The decode rows' contexts are cut into tiles of a fixed number of blocks. All tiles of all rows go through one batched
product, and a row's tiles are combined by their softmax weights (as flash-decoding does), so a long context costs its
own tiles and pads nobody else's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface

from server.engine.plan import Span
from server.model.kv_cache import KVCache

ATTENTION = "treadle_paged"
"""The name models are loaded with as `attn_implementation`. It has no mask function, so transformers builds no mask."""

TILE_TOKENS = 128
"""Context positions a tile of the decode rows covers, rounded up to whole blocks."""


class UnsupportedAttention(Exception):
    """A layer of the model asks for something this attention does not compute."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A span of several tokens."""

    rows: slice
    """Its tokens in the step's row."""
    start: int
    """Position of its first token."""
    end: int
    """Position after its last token: the length of its context."""
    head_blocks: torch.Tensor
    """`[kv_heads, blocks]`, as KVCache.read takes them."""


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The spans of one token: the first rows of the step."""

    count: int
    row_of_tile: torch.Tensor
    """`[tiles]`: which decode row each tile belongs to."""
    head_blocks: torch.Tensor
    """`[tiles, kv_heads, blocks per tile]`, as KVCache.read takes them."""
    distance: torch.Tensor
    """`[tiles, tile tokens]`: how far before its row's token each position lies; negative past the context's end."""


@dataclass(slots=True)
class PagedBatch:
    """Where a step's tokens stand in the KV cache. Built once a step, read by every layer."""

    cache: KVCache
    token_count: int
    places: torch.Tensor
    """`[kv_heads * token_count]`: where the new keys and values go, as KVCache.write takes them."""
    clear_places: torch.Tensor | None
    """What is left of the blocks that the step begins. Attention multiplies masked values by a weight of zero, and what
    a failed sequence left behind there may be NaN, which zero does not silence."""
    decode: DecodeRows | None
    chunks: tuple[Chunk, ...]
    _decode_masks: dict[int | None, torch.Tensor] = field(default_factory=dict)
    """By the window."""
    _chunk_masks: dict[tuple[int, int | None], torch.Tensor | None] = field(default_factory=dict)
    """By the chunk's index and the window."""

    @classmethod
    def of(cls, spans: Sequence[Span], cache: KVCache) -> "PagedBatch":
        """`spans` in the order of their tokens in the row: those of one token first."""
        decode_count = sum(len(span.token_ids) == 1 for span in spans)
        assert all(len(span.token_ids) == 1 for span in spans[:decode_count])
        written = [
            (span.block_ids[i // cache.block_size], i % cache.block_size)
            for span in spans
            for i in range(span.start, span.start + len(span.token_ids))
        ]
        cleared = [place for span in spans for place in _begun_and_unfilled(span, cache.block_size)]
        chunks, row = [], decode_count
        for span in spans[decode_count:]:
            rows = slice(row, row + len(span.token_ids))
            end = span.start + len(span.token_ids)
            blocks = span.block_ids[: -(-end // cache.block_size)]
            chunks.append(Chunk(rows, span.start, end, _head_blocks(torch.tensor([blocks]), cache)[0]))
            row = rows.stop
        return cls(
            cache=cache,
            token_count=len(written),
            places=_places(written, cache),
            clear_places=_places(cleared, cache) if cleared else None,
            decode=_decode_rows(spans[:decode_count], cache) if decode_count else None,
            chunks=tuple(chunks),
        )

    def decode_mask(self, window: int | None) -> torch.Tensor:
        """True where a decode row's tile must not be looked at: `[tiles, 1, 1, tile tokens]`."""
        assert self.decode is not None
        if window not in self._decode_masks:
            distance = self.decode.distance
            hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
            self._decode_masks[window] = hidden[:, None, None, :]
        return self._decode_masks[window]

    def chunk_mask(self, index: int, window: int | None) -> torch.Tensor | None:
        """True where a chunk's tokens look: `[tokens, context]`; None where plain causality over the chunk says it."""
        key = (index, window)
        if key not in self._chunk_masks:
            self._chunk_masks[key] = _chunk_mask(self.chunks[index], window, self.places.device)
        return self._chunk_masks[key]


@dataclass(frozen=True, slots=True)
class LayerDemand:
    """What one attention layer works with."""

    kv_heads: int
    key_dim: int
    value_dim: int
    sliding_window: int | None


@dataclass(frozen=True, slots=True)
class LayerSurvey:
    """Stands in for a PagedBatch in one forward, to learn what the layers ask for; they attend to nothing."""

    demands: dict[int, LayerDemand] = field(default_factory=dict)
    """By the layer's number."""

    def note(self, layer: int, demand: LayerDemand) -> None:
        if layer in self.demands:
            raise UnsupportedAttention(f"its attention layer {layer} attends more than once")
        self.demands[layer] = demand


def _places(positions: Sequence[tuple[int, int]], cache: KVCache) -> torch.Tensor:
    """Places of (block, position in the block) pairs in every head, head by head: `[kv_heads * positions]`."""
    pairs = torch.tensor(positions)
    heads = torch.arange(cache.shape.kv_heads)[:, None]
    places = (pairs[:, 0] * cache.shape.kv_heads + heads) * cache.block_size + pairs[:, 1]
    return places.reshape(-1).to(cache.keys.device)


def _begun_and_unfilled(span: Span, block_size: int) -> list[tuple[int, int]]:
    """The positions past the span's end in its last block, where the span begins that block."""
    end = span.start + len(span.token_ids)
    offset = end % block_size
    if offset == 0 or end - offset < span.start:
        return []
    return [(span.block_ids[end // block_size], i) for i in range(offset, block_size)]


def _head_blocks(tables: torch.Tensor, cache: KVCache) -> torch.Tensor:
    """Head blocks `[tables, kv_heads, blocks]` of block tables `[tables, blocks]`."""
    heads = torch.arange(cache.shape.kv_heads)[None, :, None]
    return (tables[:, None, :] * cache.shape.kv_heads + heads).to(cache.keys.device)


def _decode_rows(spans: Sequence[Span], cache: KVCache) -> DecodeRows:
    tile_blocks = -(-TILE_TOKENS // cache.block_size)
    tile_tokens = tile_blocks * cache.block_size
    tables, rows, last_offsets = [], [], []
    for row, span in enumerate(spans):
        blocks = span.block_ids[: span.start // cache.block_size + 1]
        for first in range(0, len(blocks), tile_blocks):
            tile = blocks[first : first + tile_blocks]
            tables.append(tile + (cache.zero_block,) * (tile_blocks - len(tile)))
            rows.append(row)
            last_offsets.append(span.start - first * cache.block_size)
    device = cache.keys.device
    return DecodeRows(
        count=len(spans),
        row_of_tile=torch.tensor(rows, device=device),
        head_blocks=_head_blocks(torch.tensor(tables), cache),
        distance=(torch.tensor(last_offsets)[:, None] - torch.arange(tile_tokens)).to(device),
    )


def _chunk_mask(chunk: Chunk, window: int | None, device: torch.device) -> torch.Tensor | None:
    if chunk.start == 0 and (window is None or chunk.end <= window):
        return None
    queries = torch.arange(chunk.start, chunk.end, device=device)[:, None]
    distance = queries - torch.arange(chunk.end, device=device)
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged_batch: PagedBatch | LayerSurvey | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    position_ids: torch.Tensor | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers' layers call.

    query `[1, heads, tokens, dim]`, key and value `[1, kv_heads, tokens, dim]`, rotated already; returns
    `[1, tokens, heads, value dim]`. `scaling` multiplies the scores, 1/sqrt(dim) unless given; `softcap` c makes them
    c * tanh(score / c); `sliding_window` counts the positions a token sees, its own included. Rows past the batch's
    token count are padding and come out as zeros.

    Raises UnsupportedAttention for anything else a layer asks for.
    """
    del dropout, position_ids  # never in use at inference; said by the batch
    if paged_batch is None:
        raise UnsupportedAttention("its forward does not hand keyword arguments to its attention layers")
    if attention_mask is not None:
        raise UnsupportedAttention("its attention layers use a mask of their own")
    if is_causal is False or (is_causal is None and not getattr(module, "is_causal", True)):
        raise UnsupportedAttention("its attention is not causal")
    if unknown := sorted(name for name, given in others.items() if given is not None and given is not False):
        raise UnsupportedAttention(f"its attention layers use {', '.join(unknown)}")
    batch, layer = paged_batch, module.layer_idx
    assert isinstance(layer, int)
    if isinstance(batch, LayerSurvey):
        batch.note(layer, LayerDemand(key.shape[1], key.shape[-1], value.shape[-1], sliding_window))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1]), None
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    count = batch.token_count
    batch.cache.write(layer, batch.places, key[0, :, :count], value[0, :, :count])
    if batch.clear_places is not None:
        batch.cache.clear(layer, batch.clear_places)
    output = query.new_zeros(query.shape[2], query.shape[1], value.shape[-1])
    if batch.decode is not None:
        decoding = query[0, :, : batch.decode.count].transpose(0, 1)
        output[: batch.decode.count] = _attend_rows(
            decoding, batch, batch.decode, layer, scaling, sliding_window, softcap
        )
    for index, chunk in enumerate(batch.chunks):
        mask = batch.chunk_mask(index, sliding_window)
        output[chunk.rows] = _attend_chunk(query[:, :, chunk.rows], batch.cache, chunk, layer, scaling, mask, softcap)
    return output[None], None


AttentionInterface.register(ATTENTION, paged_attention)


def _attend_rows(
    query: torch.Tensor,
    batch: PagedBatch,
    decode: DecodeRows,
    layer: int,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attention of the decode rows, query `[rows, heads, dim]`, each over its own context: `[rows, heads, dim]`."""
    rows, heads, dim = query.shape
    kv_heads = batch.cache.shape.kv_heads
    keys, values = batch.cache.read(layer, decode.head_blocks)
    tiles = (query * scaling).reshape(rows, kv_heads, heads // kv_heads, dim)[decode.row_of_tile]
    scores = _softcapped(tiles @ keys.transpose(-1, -2), softcap).float()
    scores.masked_fill_(batch.decode_mask(window), float("-inf"))
    # A floor that is finite keeps a tile with nothing in its window from making a NaN of -inf minus -inf.
    tile_highest = scores.amax(-1)
    highest = scores.new_full((rows, *tile_highest.shape[1:]), torch.finfo(scores.dtype).min)
    highest.scatter_reduce_(0, decode.row_of_tile[:, None, None].expand_as(tile_highest), tile_highest, "amax")
    weights = scores.sub_(highest[decode.row_of_tile, ..., None]).exp_()
    sums = torch.zeros_like(highest).index_add_(0, decode.row_of_tile, weights.sum(-1))
    parts = weights.to(values.dtype) @ values
    total = parts.new_zeros(rows, *parts.shape[1:], dtype=torch.float32).index_add_(
        0, decode.row_of_tile, parts.float()
    )
    return (total / sums[..., None]).to(query.dtype).reshape(rows, heads, values.shape[-1])


def _attend_chunk(
    query: torch.Tensor,
    cache: KVCache,
    chunk: Chunk,
    layer: int,
    scaling: float,
    mask: torch.Tensor | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attention of one chunk, query `[1, heads, tokens, dim]`, over its whole context: `[tokens, heads, value dim]`."""
    keys, values = (pool[:, : chunk.end] for pool in cache.read(layer, chunk.head_blocks))
    group = query.shape[1] // keys.shape[0]
    keys, values = keys.repeat_interleave(group, 0)[None], values.repeat_interleave(group, 0)[None]
    if softcap is None:
        causal = mask is None
        attended = functional.scaled_dot_product_attention(query, keys, values, mask, is_causal=causal, scale=scaling)
        return attended[0].transpose(0, 1)
    if mask is None:
        mask = torch.ones(query.shape[2], chunk.end, dtype=torch.bool, device=query.device).tril()
    scores = _softcapped(query @ keys.transpose(-1, -2) * scaling, softcap).float().masked_fill_(~mask, float("-inf"))
    return (scores.softmax(-1).to(values.dtype) @ values)[0].transpose(0, 1)


def _softcapped(scores: torch.Tensor, softcap: float | None) -> torch.Tensor:
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap
