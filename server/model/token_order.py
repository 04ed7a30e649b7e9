"""The order of tokens by their logits: falling, of equals the lower id first.

The keys that are sorted are integers that order as the floats do, with the id in the low bits. No two of a row are
equal, so every way of sorting, partial or whole, on any device, gives the same order.
"""

import torch

INT32_MAX = 2**31 - 1
CHUNK = 32
"""Neighbouring tokens of which only the highest is looked at first."""


def most_probable(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Ids `[rows, count]` of the highest float32 logits `[rows, vocabulary]`, falling. None may be NaN.

    The `count` highest are in the `count` chunks with the highest maxima, of equal ones the first: where a chunk is not
    among those, each of those has a token that comes before all of the chunk's.
    """
    vocabulary = logits.shape[-1]
    if count * CHUNK * 2 > vocabulary:
        return _first(_keys(logits, torch.arange(vocabulary, device=logits.device)), count)
    padded = torch.nn.functional.pad(logits, (0, -vocabulary % CHUNK), value=float("-inf"))
    highest = padded.view(len(logits), padded.shape[-1] // CHUNK, CHUNK).amax(-1)
    chosen = _first(_keys(highest, torch.arange(highest.shape[-1], device=logits.device)), count)
    ids = (chosen[..., None] * CHUNK + torch.arange(CHUNK, device=logits.device)).flatten(1)
    return _first(_keys(padded.gather(-1, ids), ids), count)


def rank_of(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """The place `[rows]` of each row's token of `token_ids` `[rows]` in the order; 1 is the most probable."""
    chosen = token_ids[:, None]
    value = logits.gather(-1, chosen)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    return (logits > value).sum(-1) + ((logits == value) & (ids < chosen)).sum(-1) + 1


def _keys(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The higher the more probable."""
    bits = (logits + 0.0).view(torch.int32)  # adding zero turns -0.0 into 0.0, its equal
    ascending = (bits ^ (bits >> 31 & INT32_MAX)).long()
    return (ascending << 32) + (INT32_MAX - ids)


def _first(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Ids `[rows, count]` of the highest keys, falling."""
    whole = count == keys.shape[-1]
    falling = keys.sort(-1, descending=True).values if whole else keys.topk(count).values
    return INT32_MAX - (falling & 0xFFFFFFFF)
