"""How probable tokens were, by logits or by the distribution they were drawn from.

Sums are running sums in float64, which do not depend on how many rows a step has.
"""

from collections.abc import Sequence

import torch

from server.engine.plan import Alternative, TokenLogprob
from server.model.token_order import most_probable, order_keys

ROWS_AT_ONCE = 64
"""A prompt's rows are many, and each takes several times its logits' memory."""


def logprobs_by_logits(
    logits: torch.Tensor, token_ids: Sequence[int], alternatives: Sequence[int]
) -> list[TokenLogprob]:
    """Of one token in each row of float32 logits `[rows, vocabulary]`, with the row's number of alternatives.

    The distribution is the softmax of the row; logits may be -inf, but not that of the row's token.
    """
    found = []
    for start in range(0, len(token_ids), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        found += _logprobs_by_logits(logits[part], token_ids[part], alternatives[part])
    return found


def _logprobs_by_logits(
    logits: torch.Tensor, token_ids: Sequence[int], alternatives: Sequence[int]
) -> list[TokenLogprob]:
    keys = order_keys(logits)
    chosen = torch.tensor(token_ids, device=logits.device)[:, None]
    ranks = (keys > keys.gather(-1, chosen)).sum(-1) + 1
    exact = logits.double()
    highest = exact.amax(-1, keepdim=True)
    log_total = highest + (exact - highest).exp().cumsum(-1)[:, -1:].log()
    count = min(max(alternatives), logits.shape[-1])
    best = most_probable(keys, count) if count else chosen[:, :0]
    return [
        TokenLogprob(token_id, logprob, rank, _alternatives(ids[:wanted], values[:wanted]))
        for token_id, logprob, rank, ids, values, wanted in zip(
            token_ids,
            (exact.gather(-1, chosen) - log_total)[:, 0].tolist(),
            ranks.tolist(),
            best.tolist(),
            (exact.gather(-1, best) - log_total).tolist(),
            alternatives,
            strict=True,
        )
    ]


def logprobs_by_masses(
    ordered: torch.Tensor, masses: torch.Tensor, token_ids: Sequence[int], alternatives: Sequence[int]
) -> list[TokenLogprob]:
    """Of one token in each row of masses `[rows, kept]`, which are of the tokens `ordered` alike, in falling order.

    A mass of 0 is that of a token that was filtered out.
    """
    logs = (masses / masses.cumsum(-1)[:, -1:]).log()
    found = []
    for token_id, ids, values, wanted in zip(token_ids, ordered.tolist(), logs.tolist(), alternatives, strict=True):
        kept = [(i, value) for i, value in zip(ids, values, strict=True) if value != float("-inf")]
        rank = [i for i, _ in kept].index(token_id) + 1
        told = kept[:wanted]
        best = _alternatives([i for i, _ in told], [value for _, value in told])
        found.append(TokenLogprob(token_id, kept[rank - 1][1], rank, best))
    return found


def _alternatives(token_ids: Sequence[int], logprobs: Sequence[float]) -> tuple[Alternative, ...]:
    return tuple(
        Alternative(token_id, logprob)
        for token_id, logprob in zip(token_ids, logprobs, strict=True)
        if logprob != float("-inf")
    )
