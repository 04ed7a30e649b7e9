"""The order of tokens by their logits: falling, of equals the lower id first.

The keys are integers that order as the floats do, with the id in the low bits. No two of a row are equal, so every way
of sorting, partial or whole, on any device, gives the same order.
"""

import torch

INT32_MAX = 2**31 - 1


def order_keys(logits: torch.Tensor) -> torch.Tensor:
    """Keys `[rows, vocabulary]` of float32 logits, the higher the more probable."""
    bits = (logits + 0.0).view(torch.int32)  # adding zero turns -0.0 into 0.0, its equal
    ascending = torch.where(bits < 0, bits ^ INT32_MAX, bits).long()
    ids = torch.arange(logits.shape[-1], device=logits.device)
    return (ascending << 32) + (INT32_MAX - ids)


def most_probable(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Ids `[rows, count]` of the highest keys, falling."""
    whole = count == keys.shape[-1]
    falling = keys.sort(-1, descending=True).values if whole else keys.topk(count).values
    return INT32_MAX - (falling & 0xFFFFFFFF)
