"""Chooses tokens from logits as `server/engine/plan.py: Draw` says, for all rows of a step at once.

A row's choice depends on its own logits and Draw alone: ties are broken by integer keys rather than by the order a sort
leaves, and sums are running sums in float64, which do not depend on how wide the batch makes the row.
"""

from collections.abc import Sequence

import torch

from server.engine.plan import Draw, Drawn, Fault, TokenLogprob
from server.model.distribution import Distribution
from server.model.logit_processing import process_logits
from server.model.logprobs import logprobs_by_logits, logprobs_by_masses


def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Drawn | Fault]:
    """One outcome per row of logits `[rows, vocabulary]`, a Fault where the row is not finite or allows no token.

    `logits` is overwritten.
    """
    logits = logits.float()
    finite = (logits.amax(-1).isfinite() & logits.amin(-1).isfinite()).tolist()
    tell_own = [i for i, draw in enumerate(draws) if draw.logprobs is not None and not draw.logprobs.processed]
    own_logits = logits[tell_own]
    process_logits(logits, draws)
    highest, choices = logits.max(-1)
    possible = highest.isfinite().tolist()
    distributions = _distributions(logits, draws, [a and b for a, b in zip(finite, possible, strict=True)])
    for rows, distribution in distributions:
        choices[rows] = distribution.tokens_at([draws[i].uniform for i in rows])
    token_ids: list[int] = choices.tolist()

    logprobs: dict[int, TokenLogprob] = {}
    tell_processed = [i for i, draw in enumerate(draws) if draw.logprobs is not None and draw.logprobs.processed]
    for rows, of_logits in ((tell_own, own_logits), (tell_processed, logits[tell_processed])):
        found = logprobs_by_logits(of_logits, [token_ids[i] for i in rows], [_alternatives(draws[i]) for i in rows])
        logprobs.update(zip(rows, found, strict=True))
    for rows, distribution in distributions:
        told = [k for k, i in enumerate(rows) if i in tell_processed]
        found = logprobs_by_masses(
            distribution.ordered[told],
            distribution.masses[told],
            [token_ids[rows[k]] for k in told],
            [_alternatives(draws[rows[k]]) for k in told],
        )
        logprobs.update(zip([rows[k] for k in told], found, strict=True))
    return [_outcome(token_id, logprobs.get(i), finite[i], possible[i]) for i, token_id in enumerate(token_ids)]


def _distributions(
    logits: torch.Tensor, draws: Sequence[Draw], can_be_drawn: Sequence[bool]
) -> list[tuple[list[int], Distribution]]:
    """Of the rows that are sampled, with the rows.

    Apart, so that a row that keeps few tokens does not pay for the sorting of one that keeps all.
    """
    sampled = [i for i, draw in enumerate(draws) if draw.temperature > 0 and can_be_drawn[i]]
    few, all_ = [i for i in sampled if draws[i].top_k], [i for i in sampled if not draws[i].top_k]
    return [(rows, Distribution.of(logits[rows], [draws[i] for i in rows])) for rows in (few, all_) if rows]


def _alternatives(draw: Draw) -> int:
    return 0 if draw.logprobs is None else draw.logprobs.alternatives


def _outcome(token_id: int, logprob: TokenLogprob | None, finite: bool, possible: bool) -> Drawn | Fault:
    if not finite:
        return Fault("its logits are not finite")
    return Drawn(token_id, logprob) if possible else Fault("every token is forbidden", by_request=True)
