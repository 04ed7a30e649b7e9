"""Chooses tokens from logits as `server/engine/plan.py: Draw` says, for all rows of a step at once.

A row's choice depends on its own logits and Draw alone: ties are broken by integer keys rather than by the order a sort
leaves, and sums are running sums in float64, which do not depend on how wide the batch makes the row.
"""

from collections.abc import Sequence

import torch

from server.engine.plan import Draw, Drawn, Fault

INT32_MAX = 2**31 - 1


def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Drawn | Fault]:
    """One outcome per row of logits `[rows, vocabulary]`, a Fault where the row is not finite or forbids every token.

    `logits` is overwritten.
    """
    logits = logits.float()
    finite = (logits.amax(-1).isfinite() & logits.amin(-1).isfinite()).tolist()
    _forbid(logits, draws)
    _allow_only(logits, draws)
    highest, choices = logits.max(-1)
    possible = highest.isfinite().tolist()
    sampled = [i for i, draw in enumerate(draws) if draw.temperature > 0 and finite[i] and possible[i]]
    # Apart, so that a row that keeps few tokens does not pay for the sorting of one that keeps all.
    for group in ([i for i in sampled if draws[i].top_k], [i for i in sampled if not draws[i].top_k]):
        if group:
            rows = torch.tensor(group, device=logits.device)
            choices[rows] = _sample(logits[rows], [draws[i] for i in group])
    return [_outcome(*row) for row in zip(choices.tolist(), finite, possible, strict=True)]


def _outcome(token_id: int, finite: bool, possible: bool) -> Drawn | Fault:
    if not finite:
        return Fault("its logits are not finite")
    return Drawn(token_id) if possible else Fault("every token is forbidden", by_request=True)


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


def _sample(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """The token ids `[rows]` at each draw's `uniform` in the distribution of logits `[rows, vocabulary]`."""
    vocabulary = logits.shape[-1]

    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    keep = [min(draw.top_k or vocabulary, vocabulary) for draw in draws]
    ordered = _falling_order(logits, max(keep))
    falling = logits.gather(-1, ordered).double()
    masses = ((falling - falling[:, :1]) / column([draw.temperature for draw in draws])).exp()
    ranks = torch.arange(max(keep), device=logits.device)
    masses = masses.masked_fill(ranks >= column(keep), 0.0)
    running = masses.cumsum(-1)
    before = running - masses
    kept = before < column([draw.top_p for draw in draws]) * running[:, -1:]
    masses = masses.masked_fill(~kept, 0.0)
    running = masses.cumsum(-1)
    target = column([draw.uniform for draw in draws]) * running[:, -1:]
    # The rank drawn is the number of tokens whose mass lies wholly at or below the target. Rounding could put the
    # target at the very end, hence the bound: the last token of any mass.
    last = (masses > 0).sum(-1, keepdim=True) - 1
    rank = torch.minimum((running <= target).sum(-1, keepdim=True), last)
    return ordered.gather(-1, rank)[:, 0]


def _falling_order(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Ids `[rows, count]` of the largest float32 logits, falling; of equals the lower id first.

    Sorts integers that order as the floats do, with the id in the low bits: no two are equal, so every way of sorting,
    partial or whole, on any device, gives the same order.
    """
    bits = (logits + 0.0).view(torch.int32)  # adding zero turns -0.0 into 0.0, its equal
    ascending = torch.where(bits < 0, bits ^ INT32_MAX, bits).long()
    ids = torch.arange(logits.shape[-1], device=logits.device)
    keys = (ascending << 32) + (INT32_MAX - ids)
    whole = count == logits.shape[-1]
    falling = keys.sort(-1, descending=True).values if whole else keys.topk(count).values
    return INT32_MAX - (falling & 0xFFFFFFFF)
