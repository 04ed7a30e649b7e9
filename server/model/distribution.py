"""The Distribution a token is drawn from: the softmax at a temperature, less what the filters take away."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from server.engine.plan import Draw
from server.model.token_order import most_probable, order_keys


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of each row, `kept` candidates in order of falling probability."""

    ordered: torch.Tensor
    """Their token ids `[rows, kept]`."""
    masses: torch.Tensor
    """Their probabilities `[rows, kept]` in float64 but for a factor of the row's; 0 where filtered out."""

    @classmethod
    def of(cls, logits: torch.Tensor, draws: Sequence[Draw]) -> "Distribution":
        """By float32 logits `[rows, vocabulary]`. Every Draw has a temperature above 0."""
        vocabulary = logits.shape[-1]

        def column(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

        keep = [min(draw.top_k or vocabulary, vocabulary) for draw in draws]
        ordered = most_probable(order_keys(logits), max(keep))
        falling = logits.gather(-1, ordered).double()
        masses = ((falling - falling[:, :1]) / column([draw.temperature for draw in draws])).exp()
        ranks = torch.arange(max(keep), device=logits.device)
        masses = masses.masked_fill(ranks >= column(keep), 0.0)
        masses = _smallest_set(masses, column([draw.top_p for draw in draws]))
        masses = masses.masked_fill(masses < column([draw.min_p for draw in draws]) * masses[:, :1], 0.0)
        if any(draw.typical_p < 1 for draw in draws):
            masses = _typical(masses, column([draw.typical_p for draw in draws]))
        return cls(ordered, masses)

    def tokens_at(self, uniforms: Sequence[float]) -> torch.Tensor:
        """The token ids `[rows]` at each row's uniform number by the inverse of the cumulative distribution."""
        running = self.masses.cumsum(-1)
        target = torch.tensor(uniforms, dtype=torch.float64, device=running.device)[:, None] * running[:, -1:]
        # The candidate drawn is the first whose running sum exceeds the target. Rounding could put the target at the
        # very end, hence the bound: the last candidate of any mass.
        index = torch.arange(running.shape[-1], device=running.device)
        last = (index * (self.masses > 0)).amax(-1, keepdim=True)
        drawn = torch.minimum((running <= target).sum(-1, keepdim=True), last)
        return self.ordered.gather(-1, drawn)[:, 0]


def _smallest_set(masses: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Keeps the first masses of each row that together are at least `share` `[rows, 1]` of the row's sum."""
    running = masses.cumsum(-1)
    before = running - masses
    return masses.masked_fill(before >= share * running[:, -1:], 0.0)


def _typical(masses: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Locally typical sampling: Meister et al. 2022, https://arxiv.org/abs/2202.00666. Rows of share 1 stay whole."""
    probabilities = masses / masses.cumsum(-1)[:, -1:]
    entropy = torch.special.entr(probabilities).cumsum(-1)[:, -1:]
    distance = (-probabilities.log() - entropy).abs()  # infinite where filtered out, so those come last
    nearest = distance.sort(dim=-1, stable=True).indices
    kept = torch.zeros_like(masses).scatter(-1, nearest, _smallest_set(masses.gather(-1, nearest), share))
    return torch.where(share < 1, kept, masses)
