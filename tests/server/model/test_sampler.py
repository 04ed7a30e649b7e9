"""The sampler against a plain reference in float64, against transformers' logits processors, and against statistics."""

import math
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from server.engine.forbidden_sequences import completing_tokens
from server.engine.plan import Draw, Drawn, Fault, LogitBias, LogprobsWanted, Penalties, TokenLogprob
from server.engine.token_history import TokenHistory
from server.model.distribution import FIRST_CANDIDATES
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
token_ids = st.integers(0, VOCABULARY_SIZE - 1)


@st.composite
def penalties(draw: st.DrawFn) -> Penalties:
    seen = draw(st.lists(token_ids, max_size=VOCABULARY_SIZE, unique=True))
    counts = draw(st.lists(st.integers(0, 4), min_size=len(seen), max_size=len(seen)))
    strengths = st.floats(-2, 2, width=32)
    repetition = draw(st.floats(0.5, 3, width=32))
    return Penalties(repetition, draw(strengths), draw(strengths), tuple(seen), tuple(counts))


biases = st.dictionaries(token_ids, st.floats(-100, 100, width=32), min_size=1).map(
    lambda bias: LogitBias(tuple(bias), tuple(bias.values()))
)
draws = st.builds(
    Draw,
    temperature=st.one_of(st.just(0.0), st.floats(0.01, 100)),
    top_k=st.integers(0, VOCABULARY_SIZE + 3),
    top_p=st.floats(0.001, 1.0),
    uniform=st.floats(0, 1, exclude_max=True),
    forbidden_token_ids=st.lists(token_ids, max_size=VOCABULARY_SIZE).map(tuple),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    typical_p=st.one_of(st.just(1.0), st.floats(0.001, 1.0)),
    penalties=st.one_of(st.none(), penalties()),
    bias=st.one_of(st.none(), biases),
    logprobs=st.one_of(st.none(), st.builds(LogprobsWanted, st.integers(0, 5), st.booleans())),
    allowed=st.none() | st.sets(token_ids).map(lambda ids: mask_of(ids, VOCABULARY_SIZE)),
)


def processed_logits(logits: list[float], draw: Draw) -> Any:
    """In float32, one token after the other, as Draw says."""
    values = np.array(logits, dtype=np.float32)
    if draw.penalties is not None:
        repetition, frequency, presence = map(
            np.float32, (draw.penalties.repetition, draw.penalties.frequency, draw.penalties.presence)
        )
        for i, count in zip(draw.penalties.token_ids, draw.penalties.output_counts, strict=True):
            values[i] = values[i] / repetition if values[i] > 0 else values[i] * repetition
            values[i] = values[i] - np.float32(count) * frequency - (presence if count else np.float32(0))
    if draw.bias is not None:
        for i, bias in zip(draw.bias.token_ids, draw.bias.values, strict=True):
            values[i] += np.float32(bias)
    values[list(draw.forbidden_token_ids)] = -math.inf
    if draw.allowed is not None:
        mask = draw.allowed.result()
        values[[not mask[i // 8] >> i % 8 & 1 for i in range(len(values))]] = -math.inf
    return values.astype(np.float64)


def acceptable_choices(logits: list[float], draw: Draw) -> set[int] | None:
    """Every id that rounding could make of this draw, one almost always; None where every token is forbidden."""
    values = processed_logits(logits, draw)
    if np.isneginf(values).all():
        return None
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    if draw.temperature == 0:
        return {order[0]}
    ids = order[: draw.top_k or None]
    whole = np.exp((values[ids] - values[ids[0]]) / draw.temperature)
    tolerance, choices = 1e-12, set()
    for nudge in (-tolerance, 0, tolerance):
        masses = whole * ((np.cumsum(whole) - whole) < (draw.top_p + nudge) * whole.sum())
        for min_p_nudge in (-tolerance, 0, tolerance):
            kept = masses * (masses >= min(1.0, draw.min_p + min_p_nudge) * masses[0])
            for typical in typical_sets(kept, draw.typical_p, tolerance):
                by_id = np.zeros(len(values))
                by_id[ids] = typical
                for uniform_nudge in (-tolerance, 0, tolerance):
                    above = np.flatnonzero(np.cumsum(by_id) > (draw.uniform + uniform_nudge) * by_id.sum())
                    choices.add(int(above[0] if len(above) else np.flatnonzero(by_id)[-1]))
    return choices


def typical_sets(masses: Any, typical_p: float, tolerance: float) -> list[Any]:
    """What rounding could make of it: in the share, and in which of two equally typical tokens comes first."""
    if typical_p == 1:
        return [masses]
    probabilities = masses[masses > 0] / masses.sum()
    entropy = -(probabilities * np.log(probabilities)).sum()
    distance = np.full(len(masses), np.inf)
    distance[masses > 0] = np.abs(-np.log(probabilities) - entropy)
    sets = []
    for nudge in (-tolerance, 0, tolerance):
        for by_id in (1, -1):
            order = sorted(range(len(masses)), key=lambda i: (round(float(distance[i]), 9), by_id * i))
            before = np.cumsum(masses[order]) - masses[order]
            kept = np.zeros(len(masses))
            inside = [i for i, b in zip(order, before, strict=True) if b < (typical_p + nudge) * masses.sum()]
            kept[inside] = masses[inside]
            sets.append(kept)
    return sets


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


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.02, 1.0, 3.0, 8.0]), draws, st.integers(0, 400))
def test_every_row_gets_the_reference_s_choice_of_more_tokens_than_are_looked_at_first(
    seed: int, spread: float, draw: Draw, top_k: int
) -> None:
    """From nearly equal tokens, where all must be put in order, to a few that have all the mass."""
    rng = np.random.default_rng(seed)
    # Halves of halves, so that there are ties.
    logits = ((rng.standard_normal(3 * FIRST_CANDIDATES) * spread * 4).round() / 4).tolist()
    draw = replace(draw, top_k=top_k if draw.top_k else 0, allowed=None)  # its mask is of a small vocabulary
    (outcome,) = draw_tokens(torch.tensor([logits]), [draw])
    assert isinstance(outcome, Drawn)
    expected = acceptable_choices(logits, draw)
    assert expected is not None
    assert outcome.token_id in expected


@given(st.lists(st.tuples(logit_rows, draws), min_size=1, max_size=6))
def test_a_row_s_choice_does_not_depend_on_its_company(rows: list[tuple[list[float], Draw]]) -> None:
    together = draw_tokens(torch.tensor([logits for logits, _ in rows]), [draw for _, draw in rows])
    alone = [draw_tokens(torch.tensor([logits]), [draw])[0] for logits, draw in rows]
    assert together == alone


def test_company_does_not_matter_over_a_real_vocabulary() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(24, 49152, generator=generator) * 3
    seen = Penalties(1.3, 0.5, 0.2, tuple(range(0, 40_000, 7)), (1,) * 5715)
    kinds = [
        Draw(0.8, 50, 1.0, 0.0, logprobs=LogprobsWanted(5, processed=True)),
        Draw(1.3, 0, 0.95, 0.0, typical_p=0.9, logprobs=LogprobsWanted(3, processed=False)),
        Draw(1.0, 7, 0.5, 0.0, penalties=seen),
        Draw(2.0, 0, 1.0, 0.0, min_p=0.05, bias=LogitBias((5, 6), (2.0, -2.0))),
        replace(GREEDY, logprobs=LogprobsWanted(20, processed=False), penalties=seen),
        replace(GREEDY, logprobs=LogprobsWanted(2, processed=True), penalties=seen),
    ]
    uniforms = torch.rand(24, generator=generator).tolist()
    drawn = [replace(kind, uniform=uniform) for kind, uniform in zip(kinds * 4, uniforms, strict=True)]
    together = draw_tokens(logits.clone(), drawn)
    assert together == [draw_tokens(logits[i : i + 1].clone(), [draw])[0] for i, draw in enumerate(drawn)]


PROMPT, OUTPUT = [0, 3, 3], [1, 4, 1]


def penalised(repetition: float = 1.0, frequency: float = 0.0, presence: float = 0.0) -> Penalties:
    history = TokenHistory(PROMPT)
    for token_id in OUTPUT:
        history.append(token_id)
    return Penalties(repetition, frequency, presence, history.token_ids, history.output_counts)


FORBIDDEN = [[2], [4, 1, 5], [3, 1, 6], [1, 4, 7]]

PROCESSORS: list[tuple[Draw, list[LogitsProcessor]]] = [
    (Draw(1.0, 0, 1.0, 0.0), []),
    (Draw(0.7, 5, 1.0, 0.0), [TemperatureLogitsWarper(0.7), TopKLogitsWarper(5)]),
    (Draw(1.5, 0, 0.8, 0.0), [TemperatureLogitsWarper(1.5), TopPLogitsWarper(0.8)]),
    (Draw(0.9, 8, 0.9, 0.0), [TemperatureLogitsWarper(0.9), TopKLogitsWarper(8), TopPLogitsWarper(0.9)]),
    (Draw(1.0, 1, 1.0, 0.0), [TopKLogitsWarper(1)]),
    (Draw(1.0, 0, 1.0, 0.0, min_p=0.2), [MinPLogitsWarper(0.2)]),
    (Draw(1.0, 0, 1.0, 0.0, typical_p=0.5), [TypicalLogitsWarper(0.5)]),
    (Draw(1.0, 0, 1.0, 0.0, penalties=penalised(repetition=1.4)), [RepetitionPenaltyLogitsProcessor(1.4)]),
    (
        Draw(1.0, 0, 1.0, 0.0, bias=LogitBias((3, 4), (1.5, -2.0))),
        [SequenceBiasLogitsProcessor([[[3], 1.5], [[4], -2.0]])],
    ),
    (
        Draw(1.0, 0, 1.0, 0.0, forbidden_token_ids=tuple(completing_tokens(FORBIDDEN, OUTPUT))),
        [NoBadWordsLogitsProcessor(FORBIDDEN)],
    ),
    (
        Draw(0.8, 9, 0.95, 0.0, min_p=0.05, typical_p=0.9, penalties=penalised(repetition=1.2)),
        [
            RepetitionPenaltyLogitsProcessor(1.2),
            TemperatureLogitsWarper(0.8),
            TopKLogitsWarper(9),
            TopPLogitsWarper(0.95),
            MinPLogitsWarper(0.05),
            TypicalLogitsWarper(0.9),
        ],
    ),
]


@pytest.mark.parametrize(
    ("draw", "processors"), PROCESSORS, ids=["+".join(type(p).__name__ for p in parts) for _, parts in PROCESSORS]
)
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_the_kept_tokens_and_their_probabilities_are_those_of_transformers_processors(
    draw: Draw, processors: list[LogitsProcessor], seed: int
) -> None:
    logits = torch.randn(1, VOCABULARY_SIZE, generator=torch.Generator().manual_seed(seed)) * 2
    # What transformers forbids counts the prompt in; ours the output alone.
    seen = OUTPUT if any(isinstance(p, NoBadWordsLogitsProcessor) for p in processors) else PROMPT + OUTPUT
    scores = LogitsProcessorList(processors)(torch.tensor([seen]), logits.clone())  # type: ignore[arg-type]
    expected = scores.softmax(-1)[0].numpy()

    steps = 4000
    uniforms = [(i + 0.5) / steps for i in range(steps)]
    outcomes = draw_tokens(logits.repeat(steps, 1), [replace(draw, uniform=u) for u in uniforms])
    chosen = [outcome.token_id for outcome in outcomes if isinstance(outcome, Drawn)]
    shares = np.bincount(chosen, minlength=VOCABULARY_SIZE) / steps
    np.testing.assert_allclose(shares, expected, atol=2 / steps)


def logprob_of(logits: list[float], draw: Draw) -> TokenLogprob | None:
    """What is told of the token drawn; None where every token is forbidden."""
    (outcome,) = draw_tokens(torch.tensor([logits]), [draw])
    if not isinstance(outcome, Drawn):
        return None
    assert outcome.logprob is not None
    assert outcome.logprob.token_id == outcome.token_id
    return outcome.logprob


def test_frequency_and_presence_penalties_are_subtracted_by_count_and_once() -> None:
    logits = torch.randn(VOCABULARY_SIZE, generator=torch.Generator().manual_seed(9))
    wanted = LogprobsWanted(VOCABULARY_SIZE, processed=True)
    told = logprob_of(
        logits.tolist(), replace(GREEDY, penalties=penalised(frequency=0.3, presence=0.7), logprobs=wanted)
    )
    for token_id in range(VOCABULARY_SIZE):
        logits[token_id] -= 0.3 * OUTPUT.count(token_id) + 0.7 * (token_id in OUTPUT)
    assert told is not None
    found = {alternative.token_id: alternative.logprob for alternative in told.alternatives}
    expected = logits.double().log_softmax(-1).tolist()
    np.testing.assert_allclose([found[i] for i in range(VOCABULARY_SIZE)], expected, atol=1e-6)


@pytest.mark.parametrize(
    "draw",
    [
        Draw(1.0, 0, 1.0, 0.0),
        Draw(0.7, 6, 0.9, 0.0),
        Draw(1.2, 0, 1.0, 0.0, min_p=0.1, typical_p=0.8),
        Draw(0.9, 0, 0.95, 0.0, penalties=penalised(1.3, 0.4, 0.2), bias=LogitBias((2,), (1.0,))),
    ],
)
def test_draws_at_random_numbers_follow_the_reference_s_distribution(draw: Draw) -> None:
    logits = torch.randn(1, VOCABULARY_SIZE, generator=torch.Generator().manual_seed(11))
    uniforms = np.random.default_rng(12).random(20_000)
    outcomes = draw_tokens(logits.repeat(len(uniforms), 1), [replace(draw, uniform=float(u)) for u in uniforms])
    counts = np.bincount([o.token_id for o in outcomes if isinstance(o, Drawn)], minlength=VOCABULARY_SIZE)
    expected = reference_distribution(logits[0].tolist(), draw) * len(uniforms)
    assert not counts[expected == 0].any()
    assert scipy.stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue > 0.01


def reference_distribution(logits: list[float], draw: Draw) -> Any:
    """The probability of each token, in float64."""
    values = processed_logits(logits, draw)
    if draw.temperature == 0:
        masses = np.exp(values - values.max())
        return masses / masses.sum()
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    masses = np.exp((values[order] - values[order[0]]) / draw.temperature)
    masses[draw.top_k or len(masses) :] = 0
    masses *= (np.cumsum(masses) - masses) < draw.top_p * masses.sum()
    masses *= masses >= draw.min_p * masses[0]
    masses = typical_sets(masses, draw.typical_p, 0.0)[0]
    probabilities = np.zeros(len(values))
    probabilities[order] = masses / masses.sum()
    return probabilities


@given(logit_rows, draws.filter(lambda draw: draw.logprobs is not None))
def test_logprobs_are_those_of_the_distribution_asked_for(logits: list[float], draw: Draw) -> None:
    assert draw.logprobs is not None
    told = logprob_of(logits, draw)
    if told is None:
        return
    if draw.logprobs.processed:
        probabilities = reference_distribution(logits, draw)
        everything = logprob_of(logits, replace(draw, logprobs=LogprobsWanted(VOCABULARY_SIZE, processed=True)))
        assert everything is not None
        # Which tokens are kept is tested above; here no filter may stand on a knife's edge.
        assume({a.token_id for a in everything.alternatives} == set(np.flatnonzero(probabilities)))
    else:
        probabilities = reference_distribution(logits, GREEDY)
    order = sorted(np.flatnonzero(probabilities), key=lambda i: (-probabilities[i], i))
    assert math.isclose(told.logprob, math.log(probabilities[told.token_id]), rel_tol=1e-6, abs_tol=1e-6)
    best = [alternative.logprob for alternative in told.alternatives]
    expected = [math.log(probabilities[i]) for i in order[: draw.logprobs.alternatives]]
    np.testing.assert_allclose(best, expected, rtol=1e-6, atol=1e-6)
    more_probable = sum(p > probabilities[told.token_id] * (1 + 1e-9) for p in probabilities)
    as_probable = sum(p >= probabilities[told.token_id] * (1 - 1e-9) for p in probabilities)
    assert more_probable < told.rank <= as_probable


def test_of_a_token_of_many_the_place_the_probability_and_the_alternatives_are_the_same_however_few_are_looked_at() -> (
    None
):
    logits = torch.randn(1, 2000, generator=torch.Generator().manual_seed(3)) * 2
    of_all = logits[0].double().log_softmax(-1)
    order = of_all.argsort(descending=True).tolist()
    draw = Draw(1.0, 0, 1.0, 0.0, logprobs=LogprobsWanted(20, processed=True))
    drawn = 0
    for uniform in np.linspace(0, 0.999, 40):
        (outcome,) = draw_tokens(logits.clone(), [replace(draw, uniform=float(uniform))])
        assert isinstance(outcome, Drawn)
        told = outcome.logprob
        assert told is not None
        assert order[told.rank - 1] == outcome.token_id
        assert math.isclose(told.logprob, of_all[outcome.token_id], abs_tol=1e-9)
        assert [a.token_id for a in told.alternatives] == order[:20]
        np.testing.assert_allclose([a.logprob for a in told.alternatives], of_all[order[:20]], atol=1e-9)
        drawn += told.rank > FIRST_CANDIDATES
    assert 0 < drawn < 40


@given(logit_rows, draws)
def test_the_model_s_own_logprob_is_told_beside_any_other(logits: list[float], draw: Draw) -> None:
    (plain,) = draw_tokens(torch.tensor([logits]), [draw])
    (outcome,) = draw_tokens(torch.tensor([logits]), [replace(draw, own_logprob=True)])
    if not isinstance(outcome, Drawn):
        assert outcome == plain
        return
    assert replace(outcome, own_logprob=None) == plain
    assert outcome.own_logprob is not None
    own = torch.tensor(logits).double().log_softmax(-1)[outcome.token_id]
    assert math.isclose(outcome.own_logprob, own, abs_tol=1e-9)


@pytest.mark.parametrize("repetition", [1e-45, 1e-38, 1e-20])
def test_the_least_repetition_penalties_leave_a_token_to_choose(repetition: float) -> None:
    penalties = Penalties(repetition, 0.0, 0.0, (1, 2), (0, 0))
    for draw in (GREEDY, Draw(1.0, 0, 0.9, 0.5), Draw(1.0, 2, 1.0, 0.5)):
        outcome = draw_tokens(torch.tensor([[9.0, 5.0, -5.0, 1.0]]), [replace(draw, penalties=penalties)])
        assert outcome == [Drawn(1)]


def test_alternatives_are_the_most_probable_falling_and_ties_go_by_id() -> None:
    told = logprob_of([1.0, 2.0, 2.0, 0.0], replace(GREEDY, logprobs=LogprobsWanted(3, processed=False)))
    assert told is not None
    assert told.rank == 1
    assert [alternative.token_id for alternative in told.alternatives] == [1, 2, 0]
    total = math.log(math.e + 2 * math.e**2 + 1)
    for alternative, logit in zip(told.alternatives, (2, 2, 1), strict=True):
        assert math.isclose(alternative.logprob, logit - total, rel_tol=1e-12)


def test_the_uniform_number_runs_from_the_lowest_id_to_the_highest() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    below_one = math.nextafter(1.0, 0.0)
    ends = [draw_tokens(logits.clone(), [Draw(1.0, 0, 1.0, u)])[0] for u in (0.0, below_one)]
    assert ends == [Drawn(0), Drawn(2)]


def test_the_last_bits_of_nearly_equal_logits_do_not_change_what_is_drawn() -> None:
    """As the matrix products of a larger batch may leave them."""
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(1, 49_152, generator=generator) / 10
    uniforms = torch.rand(64, generator=generator).tolist()
    for draw in (Draw(3.0, 0, 1.0, 0.0), Draw(3.0, 0, 0.999999, 0.0), Draw(3.0, 40_000, 1.0, 0.0, min_p=0.001)):
        rows = [replace(draw, uniform=uniform) for uniform in uniforms]
        nudged = logits * (1 + 1e-6 * torch.randn(64, 49_152, generator=generator))
        one, other = draw_tokens(logits.repeat(64, 1), rows), draw_tokens(nudged, rows)
        assert sum(a != b for a, b in zip(one, other, strict=True)) <= 2


def test_a_token_without_mass_is_never_chosen() -> None:
    below_one = math.nextafter(1.0, 0.0)
    assert draw_tokens(torch.tensor([[5.0, -1e30, 5.0]]), [Draw(0.01, 0, 1.0, below_one)]) == [Drawn(2)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_a_fault_and_leaves_the_others_alone(bad: float) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]] * 3)
    logits[1, 0] = bad
    sampled = Draw(1.0, 0, 1.0, 0.99)
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
