import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.sequence import Sequence
from server.engine.waiting_line import WaitingLine
from tests.server.engine.driver import FAKE_TOKENIZER, request
from tests.server.fakes import describe

MODEL = describe()


def waiting(priority: int, arrived_at: float) -> Sequence:
    return Sequence(replace(request([1]), priority=priority, arrived_at=arrived_at), MODEL, FAKE_TOKENIZER)


# Whole numbers, so that no rounding decides between equals.
sequences = st.builds(waiting, st.integers(-100, 100), st.integers(0, 3000).map(float))
agings = st.integers(0, 60).map(float)


@given(st.lists(sequences, max_size=12), agings)
def test_one_comes_first_by_its_priority_and_by_the_time_it_has_waited_worth_aging_a_point(
    arriving: list[Sequence], aging: float
) -> None:
    line = WaitingLine(aging)
    for seq in arriving:
        line.add(seq)
    for first, second in zip(list(line), list(line)[1:], strict=False):
        waited_longer = second.request.arrived_at - first.request.arrived_at
        outranked_by = second.request.priority - first.request.priority
        assert waited_longer >= outranked_by * aging
        if waited_longer == outranked_by * aging:
            assert first.request.number < second.request.number


@given(st.lists(sequences, max_size=12), agings, st.randoms(use_true_random=False))
def test_the_order_is_the_same_whatever_is_added_and_removed_in_between(
    arriving: list[Sequence], aging: float, rng: random.Random
) -> None:
    line, kept = WaitingLine(aging), []
    for seq in arriving:
        line.add(seq)
        kept.append(seq)
        if rng.random() < 0.4:
            line.remove(kept.pop(rng.randrange(len(kept))))
    assert list(line) == sorted(kept, key=line.turn)
    assert len(line) == len(kept)
    assert bool(line) == bool(kept)


@given(st.lists(sequences, max_size=12), st.lists(sequences, max_size=6), st.sets(st.integers(0, 11)))
def test_those_removed_on_the_way_are_met_once_and_those_added_where_their_turn_is_to_come(
    arriving: list[Sequence], others: list[Sequence], leaving: set[int]
) -> None:
    line = WaitingLine(10.0)
    for seq in arriving:
        line.add(seq)
    met, due = [], sorted(arriving, key=line.turn)
    for i, seq in enumerate(line):
        met.append(seq)
        if i in leaving:
            line.remove(seq)
        if others:
            line.add(joining := others.pop())
            if line.turn(joining) > line.turn(seq):
                due.append(joining)
    assert met == sorted(due, key=line.turn)


@pytest.mark.parametrize("aging", [-1.0, math.inf, math.nan])
def test_an_aging_that_is_no_time_is_refused(aging: float) -> None:
    with pytest.raises(ValueError, match="aging"):
        WaitingLine(aging)
