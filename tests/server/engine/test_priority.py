"""Who is admitted first, who is preempted for whom, and that nobody waits forever. Time is that of arrived_at alone."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.request import Request, Stopping
from tests.server.engine.driver import Arrival, Driver, Heard, expected_tokens, request
from tests.server.fakes import FakeModel, describe

START = time.monotonic() - 10_000
AGING = 10.0


def prioritised(priority: int, second: float, prompt: Sequence[int] = (1, 2, 3), new_tokens: int = 2) -> Request:
    """A request that arrives `second` seconds after the start."""
    one = request(prompt, Stopping(max_new_tokens=new_tokens, ignore_eos=True))
    return replace(one, priority=priority, arrived_at=START + second)


def check_tokens(asked: Sequence[Request], heard: Sequence[Heard]) -> None:
    for req, one in zip(asked, heard, strict=True):
        one.check_shape()
        assert one.token_ids == expected_tokens(req, describe())


def test_the_higher_priority_is_admitted_first_and_within_one_the_first_to_come() -> None:
    asked = [prioritised(priority, second) for second, priority in enumerate([0, 0, 2, -1, 2, 7])]
    driver = Driver(FakeModel(), max_slots=1)
    driver.serve(*asked)
    assert [req.priority for req in driver.scheduler.admitted] == [7, 2, 2, 0, 0, -1]
    times = [req.arrived_at for req in driver.scheduler.admitted]
    assert times[1] < times[2]
    assert times[3] < times[4]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(-10, 10), st.integers(0, 300)), min_size=1, max_size=10), st.sampled_from([0, 1, 10])
)
def test_one_that_has_waited_longer_than_its_lower_priority_costs_comes_before_a_newcomer(
    asked: list[tuple[int, int]], aging: int
) -> None:
    driver = Driver(FakeModel(), max_slots=1, priority_aging=aging)
    driver.serve(*[prioritised(priority, second) for priority, second in asked])
    admitted = driver.scheduler.admitted
    for earlier, later in pairwise(admitted):
        points = later.priority - earlier.priority
        assert later.arrived_at - earlier.arrived_at >= points * aging


@pytest.mark.parametrize("preempt", [False, True])
def test_nobody_starves_under_a_flood_of_higher_priority(preempt: bool) -> None:
    """A step is a second: one of priority 5 comes each second, and a slot serves one in two."""
    low = prioritised(0, 0)
    flood = [Arrival(prioritised(5, second), at_step=second) for second in range(200)]
    driver = Driver(FakeModel(), max_slots=1, priority_aging=AGING, preempt_lower_priority=preempt)
    driver.serve(low, *flood)
    admitted = driver.scheduler.admitted
    last = max(i for i, req in enumerate(admitted) if req is low)
    assert all(req.arrived_at <= START + 5 * AGING for req in admitted[:last])
    assert all(req.arrived_at >= START + 5 * AGING for req in admitted[last + 1 :])


def test_the_slot_of_a_lower_priority_is_taken_where_that_is_allowed_and_it_goes_on_later_with_the_same_tokens() -> (
    None
):
    low, middle, high = (prioritised(p, p, [p] * 6, new_tokens=10) for p in (0, 1, 2))
    driver = Driver(FakeModel(), max_slots=2, preempt_lower_priority=True)
    heard = driver.serve(low, middle, Arrival(high, at_step=4))
    (displacement,) = driver.scheduler.displacements
    assert [seq.request for seq in displacement.preempted] == [low]
    assert [seq.request for seq in displacement.admitted] == [high]
    assert driver.scheduler.admitted == [middle, low, high, low]
    check_tokens([low, middle, high], heard)


def test_no_slot_is_taken_where_that_is_not_allowed() -> None:
    low, high = prioritised(0, 0, new_tokens=10), prioritised(100, 1)
    driver = Driver(FakeModel(), max_slots=1)
    heard = driver.serve(low, Arrival(high, at_step=4))
    assert driver.scheduler.displacements == []
    assert driver.scheduler.admitted == [low, high]
    check_tokens([low, high], heard)


def test_one_that_has_waited_long_enough_keeps_its_slot() -> None:
    old, high = prioritised(0, 0, new_tokens=10), prioritised(5, 5 * AGING + 1)
    driver = Driver(FakeModel(), max_slots=1, priority_aging=AGING, preempt_lower_priority=True)
    driver.serve(old, Arrival(high, at_step=4))
    assert driver.scheduler.displacements == []


@pytest.mark.parametrize("second", [0.0, 1.0, 100.0])
def test_equal_priorities_never_take_each_other_s_slots(second: float) -> None:
    running, other = prioritised(3, 50, new_tokens=10), prioritised(3, second)
    driver = Driver(FakeModel(), max_slots=1, preempt_lower_priority=True)
    driver.serve(running, Arrival(other, at_step=4))
    assert driver.scheduler.displacements == []
    assert driver.scheduler.admitted == [running, other]


def cramped() -> FakeModel:
    """Eight blocks of four tokens."""
    return FakeModel(describe(8, 4, context_length=32))


def test_the_blocks_of_lower_priorities_are_taken_as_far_as_they_are_needed() -> None:
    lower = [prioritised(p, 0, [p] * 5, new_tokens=2) for p in (1, 2, 3)]
    high = prioritised(9, 1, [9] * 5, new_tokens=2)
    driver = Driver(cramped(), max_slots=4, max_step_tokens=40, preempt_lower_priority=True)
    driver.serve(*lower, Arrival(high, at_step=1))
    (displacement,) = driver.scheduler.displacements
    assert [seq.request for seq in displacement.preempted] == lower[:1]


def test_nobody_is_preempted_in_vain() -> None:
    """With the lower one's blocks too there would be too few: those of an equal are in the way."""
    equal, lower = prioritised(5, 0, [5] * 16, new_tokens=8), prioritised(0, 0, [1] * 4, new_tokens=2)
    high = prioritised(5, 1, [6] * 16, new_tokens=2)
    driver = Driver(cramped(), max_slots=3, max_step_tokens=40, preempt_lower_priority=True)
    heard = driver.serve(equal, lower, Arrival(high, at_step=1))
    assert driver.scheduler.displacements == []
    check_tokens([equal, lower, high], heard)


def test_blocks_that_the_newcomer_shares_with_one_it_would_preempt_are_not_counted_as_won() -> None:
    """The lower one holds five of the eight blocks, all of which the newcomer needs and four more."""
    lower = prioritised(0, 0, [1] * 17, new_tokens=3)
    equal = prioritised(5, 0, [5] * 3, new_tokens=8)
    high = prioritised(5, 1, [1] * 16 + [2] * 12, new_tokens=2)
    driver = Driver(cramped(), max_slots=3, max_step_tokens=40, preempt_lower_priority=True)
    heard = driver.serve(lower, equal, Arrival(high, at_step=1))
    assert driver.scheduler.displacements == []
    check_tokens([lower, equal, high], heard)
