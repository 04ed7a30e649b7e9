"""How probable tokens were, by logits or by the distribution they were drawn from.

Sums are running sums in float64, which do not depend on how many rows a step has.
"""

from collections.abc import Sequence

import torch

from server.engine.plan import Alternative, TokenLogprob
from server.model.distribution import Distribution
from server.model.token_order import most_probable, rank_of

ROWS_AT_ONCE = 16
"""A prompt's rows are many, and each takes several times its logits' memory; a few at once stay in the CPU's caches."""


def logprobs_by_logits(
    logits: torch.Tensor, temperatures: Sequence[float], token_ids: Sequence[int], alternatives: Sequence[int]
) -> list[TokenLogprob]:
    """Of one token in each row of float32 logits `[rows, vocabulary]`, with the row's number of alternatives.

    The distribution is the softmax of the row at its temperature; logits may be -inf, but not that of the row's token,
    and none is NaN.
    """
    found = []
    for start in range(0, len(token_ids), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        found += _logprobs_by_logits(logits[part], temperatures[part], token_ids[part], alternatives[part])
    return found


def _logprobs_by_logits(
    logits: torch.Tensor, temperatures: Sequence[float], token_ids: Sequence[int], alternatives: Sequence[int]
) -> list[TokenLogprob]:
    chosen = torch.tensor(token_ids, device=logits.device)[:, None]
    exact = logits.double() / torch.tensor(temperatures, dtype=torch.float64, device=logits.device)[:, None]
    highest = exact.amax(-1, keepdim=True)
    log_total = highest + (exact - highest).exp().cumsum(-1)[:, -1:].log()
    count = min(max(alternatives), logits.shape[-1])
    best = most_probable(logits, count) if count else chosen[:, :0]
    return [
        TokenLogprob(token_id, logprob, rank, _alternatives(ids[:wanted], values[:wanted]))
        for token_id, logprob, rank, ids, values, wanted in zip(
            token_ids,
            (exact.gather(-1, chosen) - log_total)[:, 0].tolist(),
            rank_of(logits, chosen[:, 0]).tolist(),
            best.tolist(),
            (exact.gather(-1, best) - log_total).tolist(),
            alternatives,
            strict=True,
        )
    ]


def logprobs_by_distribution(
    distribution: Distribution, token_ids: Sequence[int], alternatives: Sequence[int]
) -> list[TokenLogprob]:
    """Of one token in each row of the distribution, which was drawn from it, as above."""
    masses = distribution.masses
    totals = masses.cumsum(-1)[:, -1:]
    chosen = torch.tensor(token_ids, device=masses.device)[:, None]
    place = (distribution.ordered == chosen).int().argmax(-1, keepdim=True)
    ranks = (masses > 0).cumsum(-1)
    # The kept candidate of rank r is the first where r are kept; past the last where there are fewer.
    wanted_ranks = torch.arange(1, max(alternatives, default=0) + 1, device=masses.device)
    best = torch.searchsorted(ranks, wanted_ranks.expand(len(token_ids), -1).contiguous())
    is_kept = best < masses.shape[-1]
    best = best.clamp(max=masses.shape[-1] - 1)
    best_logprobs = (masses.gather(-1, best) / totals).log().masked_fill(~is_kept, float("-inf"))
    return [
        TokenLogprob(token_id, logprob, rank, _alternatives(ids[:wanted], values[:wanted]))
        for token_id, logprob, rank, ids, values, wanted in zip(
            token_ids,
            (masses.gather(-1, place) / totals).log()[:, 0].tolist(),
            ranks.gather(-1, place)[:, 0].tolist(),
            distribution.ordered.gather(-1, best).tolist(),
            best_logprobs.tolist(),
            alternatives,
            strict=True,
        )
    ]


def _alternatives(token_ids: Sequence[int], logprobs: Sequence[float]) -> tuple[Alternative, ...]:
    return tuple(
        Alternative(token_id, logprob)
        for token_id, logprob in zip(token_ids, logprobs, strict=True)
        if logprob != float("-inf")
    )
