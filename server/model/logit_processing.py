"""What a Draw does to the logits before a token is drawn from them: penalties, bias, what is forbidden and allowed.

All rows of a step at once, and only the logits that are concerned; a step that asks for nothing of this costs nothing.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

import torch

from server.engine.plan import Draw

LARGEST = torch.finfo(torch.float32).max


def process_logits(logits: torch.Tensor, draws: Sequence[Draw]) -> None:
    """Changes float32 logits `[rows, vocabulary]` in place, in the order that Draw says."""
    _penalise(logits, draws)
    _add_bias(logits, draws)
    _forbid(logits, draws)
    _allow_only(logits, draws)


def _penalise(logits: torch.Tensor, draws: Sequence[Draw]) -> None:
    penalised = [(row, draw.penalties) for row, draw in enumerate(draws) if draw.penalties is not None]
    if not penalised:
        return
    sizes = torch.tensor([len(penalties.token_ids) for _, penalties in penalised])

    def spread(values: list[float]) -> torch.Tensor:
        """One value for each token of each penalised row."""
        return torch.tensor(values, dtype=torch.float32).repeat_interleave(sizes).to(logits.device)

    rows = torch.tensor([row for row, _ in penalised]).repeat_interleave(sizes).to(logits.device)
    token_ids = _flat((penalties.token_ids for _, penalties in penalised), torch.long, logits.device)
    counts = _flat((penalties.output_counts for _, penalties in penalised), torch.float32, logits.device)
    repetition = spread([penalties.repetition for _, penalties in penalised])
    frequency = spread([penalties.frequency for _, penalties in penalised])
    presence = spread([penalties.presence for _, penalties in penalised])
    seen = logits[rows, token_ids].double()
    seen = torch.where(seen > 0, seen / repetition, seen * repetition)
    seen = seen - counts * frequency - (counts > 0) * presence
    # A repetition penalty near 0 would make an infinite logit of a large one.
    logits[rows, token_ids] = seen.clamp(-LARGEST, LARGEST).float()


def _add_bias(logits: torch.Tensor, draws: Sequence[Draw]) -> None:
    biased = [(row, draw.bias) for row, draw in enumerate(draws) if draw.bias is not None]
    if biased:
        sizes = torch.tensor([len(bias.token_ids) for _, bias in biased])
        rows = torch.tensor([row for row, _ in biased]).repeat_interleave(sizes).to(logits.device)
        token_ids = _flat((bias.token_ids for _, bias in biased), torch.long, logits.device)
        logits[rows, token_ids] += _flat((bias.values for _, bias in biased), torch.float32, logits.device)


def _forbid(logits: torch.Tensor, draws: Sequence[Draw]) -> None:
    pairs = [(row, token_id) for row, draw in enumerate(draws) for token_id in draw.forbidden_token_ids]
    if pairs:
        rows, token_ids = torch.tensor(pairs, device=logits.device).unbind(1)
        logits[rows, token_ids] = float("-inf")


def _allow_only(logits: torch.Tensor, draws: Sequence[Draw]) -> None:
    rows = [row for row, draw in enumerate(draws) if draw.allowed is not None]
    if not rows:
        return
    masks = b"".join(draw.allowed.result() for draw in draws if draw.allowed is not None)
    packed = torch.frombuffer(bytearray(masks), dtype=torch.uint8).to(logits.device).view(len(rows), -1, 1)
    bits = packed >> torch.arange(8, dtype=torch.uint8, device=logits.device) & 1
    allowed = bits.flatten(1)[:, : logits.shape[-1]].bool()
    logits[rows] = logits[rows].masked_fill(~allowed, float("-inf"))


def _flat(parts: Iterable[Sequence[float]], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(list(chain.from_iterable(parts)), dtype=dtype, device=device)
