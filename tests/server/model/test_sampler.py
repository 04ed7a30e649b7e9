"""The sampler against a plain reference in float64, against transformers' logits warpers, and against statistics."""

import math
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from server.engine.plan import Draw, Drawn, Fault
from server.model.sampler import draw_tokens


def mask_of(token_ids: Iterable[int], vocabulary_size: int) -> "Future[bytes]":
    """The ids as a constraint allows them."""
    bits = sum(1 << token_id for token_id in set(token_ids))
    mask: Future[bytes] = Future()
    mask.set_result(bits.to_bytes(-(-vocabulary_size // 8), "little"))
    return mask


GREEDY = Draw(temperature=0, top_k=0, top_p=1.0, uniform=0.0)
VOCABULARY_SIZE = 12

# Few distinct values, so that ties are common, and both zeros.
logit_values = st.one_of(st.sampled_from([-2.0, -0.0, 0.0, 0.5, 3.0]), st.floats(-30, 30, width=32))
logit_rows = st.lists(logit_values, min_size=VOCABULARY_SIZE, max_size=VOCABULARY_SIZE)
draws = st.builds(
    Draw,
    temperature=st.one_of(st.just(0.0), st.floats(0.01, 100)),
    top_k=st.integers(0, VOCABULARY_SIZE + 3),
    top_p=st.floats(0.001, 1.0),
    uniform=st.floats(0, 1, exclude_max=True),
    forbidden_token_ids=st.lists(st.integers(0, VOCABULARY_SIZE - 1), max_size=VOCABULARY_SIZE).map(tuple),
    allowed=st.none() | st.sets(st.integers(0, VOCABULARY_SIZE - 1)).map(lambda ids: mask_of(ids, VOCABULARY_SIZE)),
)


def acceptable_choices(logits: list[float], draw: Draw) -> set[int] | None:
    """Every id that rounding could make of this draw, one almost always; None where every token is forbidden."""
    values = np.array(logits, dtype=np.float64)
    values[list(draw.forbidden_token_ids)] = -math.inf
    if draw.allowed is not None:
        mask = draw.allowed.result()
        values[[i for i in range(len(values)) if not mask[i // 8] >> i % 8 & 1]] = -math.inf
    if np.isneginf(values).all():
        return None
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    if draw.temperature == 0:
        return {order[0]}
    ids = order[: draw.top_k or None]
    masses = np.exp((values[ids] - values[ids[0]]) / draw.temperature)
    tolerance, choices = 1e-12, set()
    for nudge in (-tolerance, 0, tolerance):
        before = np.concatenate([[0.0], np.cumsum(masses)[:-1]])
        kept = masses[before < (draw.top_p + nudge) * masses.sum()]
        for other_nudge in (-tolerance, 0, tolerance):
            above = np.flatnonzero(np.cumsum(kept) > (draw.uniform + other_nudge) * kept.sum())
            choices.add(ids[above[0] if len(above) else np.flatnonzero(kept)[-1]])
    return choices


@given(st.lists(st.tuples(logit_rows, draws), min_size=1, max_size=5))
def test_every_row_gets_the_reference_s_choice(rows: list[tuple[list[float], Draw]]) -> None:
    outcomes = draw_tokens(torch.tensor([logits for logits, _ in rows]), [draw for _, draw in rows])
    for outcome, (logits, draw) in zip(outcomes, rows, strict=True):
        expected = acceptable_choices(logits, draw)
        if expected is None:
            assert outcome == Fault("every token is forbidden", by_request=True)
        else:
            assert isinstance(outcome, Drawn)
            assert outcome.token_id in expected


@given(st.lists(st.tuples(logit_rows, draws), min_size=1, max_size=6))
def test_a_row_s_choice_does_not_depend_on_its_company(rows: list[tuple[list[float], Draw]]) -> None:
    together = draw_tokens(torch.tensor([logits for logits, _ in rows]), [draw for _, draw in rows])
    alone = [draw_tokens(torch.tensor([logits]), [draw])[0] for logits, draw in rows]
    assert together == alone


def test_company_does_not_matter_over_a_real_vocabulary() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(24, 49152, generator=generator) * 3
    kinds = [Draw(0.8, 50, 1.0, 0.0), Draw(1.3, 0, 0.95, 0.0), Draw(1.0, 7, 0.5, 0.0), Draw(2.0, 0, 1.0, 0.0), GREEDY]
    uniforms = torch.rand(24, generator=generator).tolist()
    drawn = [
        Draw(kind.temperature, kind.top_k, kind.top_p, uniform)
        for kind, uniform in zip(kinds * 5, uniforms, strict=False)
    ]
    together = draw_tokens(logits.clone(), drawn)
    assert together == [draw_tokens(logits[i : i + 1].clone(), [draw])[0] for i, draw in enumerate(drawn)]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 5, 1.0), (1.5, 0, 0.8), (0.9, 8, 0.9), (1.0, 1, 1.0)]
)
def test_the_kept_tokens_and_their_probabilities_are_those_of_transformers_warpers(
    temperature: float, top_k: int, top_p: float
) -> None:
    logits = torch.randn(1, VOCABULARY_SIZE, generator=torch.Generator().manual_seed(3)) * 2
    ids = torch.zeros(1, 1, dtype=torch.long)
    scores = TemperatureLogitsWarper(temperature)(ids, logits)
    if top_k:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    scores = TopPLogitsWarper(top_p)(ids, scores)
    expected = scores.softmax(-1)[0].numpy()

    steps = 4000
    uniforms = [(i + 0.5) / steps for i in range(steps)]
    outcomes = draw_tokens(logits.repeat(steps, 1), [Draw(temperature, top_k, top_p, u) for u in uniforms])
    chosen = [outcome.token_id for outcome in outcomes if isinstance(outcome, Drawn)]
    shares = np.bincount(chosen, minlength=VOCABULARY_SIZE) / steps
    np.testing.assert_allclose(shares, expected, atol=2 / steps)


def test_draws_at_random_numbers_follow_the_softmax() -> None:
    logits = torch.randn(1, VOCABULARY_SIZE, generator=torch.Generator().manual_seed(11))
    uniforms = np.random.default_rng(12).random(20_000)
    outcomes = draw_tokens(logits.repeat(len(uniforms), 1), [Draw(1.0, 0, 1.0, float(u)) for u in uniforms])
    counts = np.bincount([outcome.token_id for outcome in outcomes if isinstance(outcome, Drawn)])
    expected = logits.double().softmax(-1)[0].numpy() * len(uniforms)
    assert scipy.stats.chisquare(counts, expected).pvalue > 0.01


def test_the_uniform_number_runs_from_the_most_probable_token_to_the_least() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    below_one = math.nextafter(1.0, 0.0)
    ends = [draw_tokens(logits.clone(), [Draw(1.0, 0, 1.0, u)])[0] for u in (0.0, below_one)]
    assert ends == [Drawn(1), Drawn(0)]


def test_a_token_without_mass_is_never_chosen() -> None:
    below_one = math.nextafter(1.0, 0.0)
    assert draw_tokens(torch.tensor([[5.0, -1e30, 5.0]]), [Draw(0.01, 0, 1.0, below_one)]) == [Drawn(2)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_a_fault_and_leaves_the_others_alone(bad: float) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]] * 3)
    logits[1, 0] = bad
    sampled = Draw(1.0, 0, 1.0, 0.0)
    # Forbidding the bad logit does not hide it.
    faulty = Draw(1.0, 0, 1.0, 0.0, forbidden_token_ids=(0,))
    assert draw_tokens(logits, [GREEDY, faulty, sampled]) == [
        Drawn(2),
        Fault("its logits are not finite"),
        Drawn(2),
    ]


def test_of_a_real_vocabulary_only_what_is_allowed_is_drawn_and_rows_without_a_mask_are_as_they_were() -> None:
    generator = np.random.default_rng(4)
    size = 49152 + 5
    logits = torch.tensor(generator.normal(size=(6, size)), dtype=torch.float32)
    allowed = [{7}, {0, size - 1}, set(generator.choice(size, 300).tolist())]
    masked = [
        Draw(temperature, 0, 1.0, 0.99, allowed=mask_of(ids, size))
        for ids, temperature in zip(allowed, (0.0, 1.0, 5.0), strict=True)
    ]
    free = [Draw(1.0, 0, 1.0, 0.99)] * 3
    drawn = draw_tokens(logits.clone(), [draw for pair in zip(masked, free, strict=True) for draw in pair])
    assert drawn[1::2] == draw_tokens(logits[1::2].clone(), free)
    for outcome, ids in zip(drawn[::2], allowed, strict=True):
        assert isinstance(outcome, Drawn)
        assert outcome.token_id in ids


def test_a_mask_is_waited_for_only_once_the_logits_are_there() -> None:
    mask = mask_of({1}, 3)
    late: Future[bytes] = Future()
    threading.Timer(0.05, lambda: late.set_result(mask.result())).start()
    assert draw_tokens(torch.tensor([[0.0, 1.0, 2.0]]), [replace(GREEDY, allowed=late)]) == [Drawn(1)]


def test_half_precision_logits_are_drawn_from_too() -> None:
    logits = torch.tensor([[0.0, 4.0, 4.0]], dtype=torch.bfloat16)
    assert draw_tokens(logits, [GREEDY]) == [Drawn(1)]


def test_no_rows_get_no_outcomes() -> None:
    assert draw_tokens(torch.empty(0, 5), []) == []
