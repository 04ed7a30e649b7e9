"""Chooses tokens from logits as `server/engine/plan.py: Draw` says, for all rows of a step at once.

A row's choice depends on its own logits and Draw alone: ties are broken by integer keys rather than by the order a sort
leaves, and sums are running sums in float64, which do not depend on how wide the batch makes the row.
"""

from collections.abc import Sequence

import torch

from server.engine.plan import Draw, Drawn, Fault, TokenLogprob
from server.model.distribution import Distribution, distributions, draw_unfiltered, is_filtered
from server.model.logit_processing import process_logits
from server.model.logprobs import logprobs_by_distribution, logprobs_by_logits


def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Drawn | Fault]:
    """One outcome per row of logits `[rows, vocabulary]`, a Fault where the row is not finite or allows no token.

    `logits` is overwritten.
    """
    logits = logits.float()
    finite: list[bool] = (logits.amax(-1).isfinite() & logits.amin(-1).isfinite()).tolist()
    own_wanted = [i for i, draw in enumerate(draws) if finite[i] and _tells_own(draw)]
    own_logits = logits[own_wanted]
    process_logits(logits, draws)
    highest, choices = logits.max(-1)
    possible: list[bool] = highest.isfinite().tolist()
    can_be_drawn = [a and b for a, b in zip(finite, possible, strict=True)]
    sampled = [i for i, draw in enumerate(draws) if draw.temperature > 0 and can_be_drawn[i]]
    if unfiltered := [i for i in sampled if not is_filtered(draws[i])]:
        choices[unfiltered] = draw_unfiltered(logits[unfiltered], [draws[i] for i in unfiltered])
    parts = distributions(logits, draws, [i for i in sampled if is_filtered(draws[i])])
    for rows, distribution in parts:
        choices[rows] = distribution.tokens_at([draws[i].uniform for i in rows])
    token_ids: list[int] = choices.tolist()

    own = _by_logits(own_logits, [1.0] * len(own_wanted), own_wanted, token_ids, draws)
    greedy = [i for i, draw in enumerate(draws) if draw.temperature == 0 and can_be_drawn[i]]
    whole = [i for i in (*greedy, *unfiltered) if _tells_processed(draws[i])]
    temperatures = [draws[i].temperature or 1.0 for i in whole]
    processed = _by_logits(logits[whole], temperatures, whole, token_ids, draws)
    for rows, distribution in parts:
        processed |= _by_distribution(distribution, rows, token_ids, draws)
    return [
        _outcome(token_ids[i], draw, own.get(i), processed.get(i), finite[i], possible[i])
        for i, draw in enumerate(draws)
    ]


def _tells_processed(draw: Draw) -> bool:
    return draw.logprobs is not None and draw.logprobs.processed


def _tells_own(draw: Draw) -> bool:
    return draw.own_logprob or (draw.logprobs is not None and not draw.logprobs.processed)


def _alternatives(draw: Draw) -> int:
    return 0 if draw.logprobs is None else draw.logprobs.alternatives


def _by_logits(
    logits: torch.Tensor,
    temperatures: Sequence[float],
    rows: Sequence[int],
    token_ids: Sequence[int],
    draws: Sequence[Draw],
) -> dict[int, TokenLogprob]:
    """By row, of the logits of these rows."""
    found = logprobs_by_logits(
        logits, temperatures, [token_ids[i] for i in rows], [_alternatives(draws[i]) for i in rows]
    )
    return dict(zip(rows, found, strict=True))


def _by_distribution(
    distribution: Distribution, rows: Sequence[int], token_ids: Sequence[int], draws: Sequence[Draw]
) -> dict[int, TokenLogprob]:
    """By row, of those of the distribution's rows that ask."""
    asking = [k for k, i in enumerate(rows) if _tells_processed(draws[i])]
    if not asking:
        return {}
    told = [rows[k] for k in asking]
    found = logprobs_by_distribution(
        distribution.rows(asking), [token_ids[i] for i in told], [_alternatives(draws[i]) for i in told]
    )
    return dict(zip(told, found, strict=True))


def _outcome(
    token_id: int, draw: Draw, own: TokenLogprob | None, processed: TokenLogprob | None, finite: bool, possible: bool
) -> Drawn | Fault:
    if not finite:
        return Fault("its logits are not finite")
    if not possible:
        return Fault("every token is forbidden", by_request=True)
    told = None if draw.logprobs is None else processed if draw.logprobs.processed else own
    return Drawn(token_id, told, own.logprob if draw.own_logprob and own is not None else None)
