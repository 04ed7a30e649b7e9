"""The Distribution a token is drawn from: the softmax at a temperature, less what the filters take away."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from server.engine.plan import Draw
from server.model.token_order import most_probable

FIRST_CANDIDATES = 256
"""Of a row that keeps any number of tokens, what is looked at before the whole vocabulary is put in order."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of each row, `kept` candidates in order of falling probability."""

    ordered: torch.Tensor
    """Their token ids `[rows, kept]`."""
    masses: torch.Tensor
    """Their probabilities `[rows, kept]` in float64 but for a factor of the row's; 0 where filtered out."""
    settled: torch.Tensor
    """Whether all that the filters keep are among the candidates `[rows]`."""

    @classmethod
    def of(cls, logits: torch.Tensor, draws: Sequence[Draw], candidates: int) -> "Distribution":
        """By the `candidates` highest of float32 logits `[rows, vocabulary]`. Every Draw has a temperature above 0 and
        a filter; every top_k is at most `candidates`, or 0.
        """

        def column(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

        temperature, top_p = column([draw.temperature for draw in draws]), column([draw.top_p for draw in draws])
        min_p, typical_p = column([draw.min_p for draw in draws]), column([draw.typical_p for draw in draws])
        ordered = most_probable(logits, candidates)
        falling = logits.gather(-1, ordered).double()
        highest = falling[:, :1]
        masses = ((falling - highest) / temperature).exp()
        keep = column([draw.top_k or candidates for draw in draws])
        masses = masses.masked_fill(torch.arange(candidates, device=logits.device) >= keep, 0.0)
        totals = running = masses.cumsum(-1)[:, -1:]
        has_others = column([not draw.top_k for draw in draws]).bool() & (candidates < logits.shape[-1])
        if has_others.any():
            of_all = ((logits.double() - highest) / temperature).exp().cumsum(-1)[:, -1:]
            totals = torch.where(has_others, of_all, totals)
        settled = ~has_others | (running >= top_p * totals)
        masses = _smallest_set(masses, top_p, totals)
        settled |= masses[:, -1:] < min_p * masses[:, :1]
        masses = masses.masked_fill(masses < min_p * masses[:, :1], 0.0)
        if (typical_p < 1).any():
            masses = _typical(masses, typical_p)
        return cls(ordered, masses, settled[:, 0])

    def rows(self, indices: Sequence[int]) -> "Distribution":
        chosen = list(indices)
        return Distribution(self.ordered[chosen], self.masses[chosen], self.settled[chosen])

    def tokens_at(self, uniforms: Sequence[float]) -> torch.Tensor:
        """The token ids `[rows]` at each row's uniform number."""
        ids, by_id = self.ordered.sort(-1)
        return ids.gather(-1, _first_above(self.masses.gather(-1, by_id), uniforms))[:, 0]


def is_filtered(draw: Draw) -> bool:
    return draw.top_k > 0 or draw.top_p < 1 or draw.min_p > 0 or draw.typical_p < 1


def draw_unfiltered(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """The token ids `[rows]` at each row's uniform number in the whole of its distribution, which needs no sorting."""
    temperatures = torch.tensor([draw.temperature for draw in draws], dtype=torch.float64, device=logits.device)
    exact = logits.double()
    masses = ((exact - exact.amax(-1, keepdim=True)) / temperatures[:, None]).exp()
    return _first_above(masses, [draw.uniform for draw in draws])[:, 0]


def _first_above(masses: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """The inverse of the cumulative distribution: the first places `[rows, 1]` whose running sum exceeds the row's
    share of the whole. Rounding could put the share at the very end, hence the bound: the last place of any mass."""
    running = masses.cumsum(-1)
    target = torch.tensor(uniforms, dtype=torch.float64, device=running.device)[:, None] * running[:, -1:]
    places = torch.arange(running.shape[-1], device=running.device)
    last = (places * (masses > 0)).amax(-1, keepdim=True)
    return torch.minimum((running <= target).sum(-1, keepdim=True), last)


def distributions(
    logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int]
) -> list[tuple[list[int], Distribution]]:
    """Of these rows of logits `[rows, vocabulary]`, which are filtered, with the rows; all of them settled.

    Apart, so that a row that needs few candidates does not pay for the sorting of one that needs all.
    """
    vocabulary = logits.shape[-1]
    first = min(FIRST_CANDIDATES, vocabulary)
    found = []

    def of(chosen: list[int], candidates: int) -> Distribution:
        return Distribution.of(logits[chosen], [draws[i] for i in chosen], candidates)

    few = [i for i in rows if 0 < draws[i].top_k <= first]
    if few:
        found.append((few, of(few, max(draws[i].top_k for i in few))))
    whole = [i for i in rows if draws[i].top_k > first]
    if open_ := [i for i in rows if not draws[i].top_k]:
        tried = of(open_, first)
        settled: list[bool] = tried.settled.tolist()
        if places := [k for k, is_settled in enumerate(settled) if is_settled]:
            found.append(([open_[k] for k in places], tried.rows(places)))
        whole += [i for i, is_settled in zip(open_, settled, strict=True) if not is_settled]
    if whole:
        found.append((whole, of(whole, vocabulary)))
    return found


def _smallest_set(masses: torch.Tensor, share: torch.Tensor, totals: torch.Tensor) -> torch.Tensor:
    """Keeps the first masses of each row that together are at least `share` `[rows, 1]` of its total; 1 keeps all."""
    before = masses.cumsum(-1) - masses
    return masses.masked_fill((before >= share * totals) & (share < 1), 0.0)


def _typical(masses: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Locally typical sampling: Meister et al. 2022, https://arxiv.org/abs/2202.00666."""
    totals = masses.cumsum(-1)[:, -1:]
    probabilities = masses / totals
    entropy = torch.special.entr(probabilities).cumsum(-1)[:, -1:]
    distance = (-probabilities.log() - entropy).abs()  # infinite where filtered out, so those come last
    nearest = distance.sort(dim=-1, stable=True).indices
    kept = _smallest_set(masses.gather(-1, nearest), share, totals)
    return torch.zeros_like(masses).scatter(-1, nearest, kept)
