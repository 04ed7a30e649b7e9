"""Blocks of equal beginnings: shared while they run, computed once, and waited for no longer than they are coming."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.events import Failure
from server.engine.plan import StepPlan
from server.engine.request import Request, Stopping
from server.engine.seeding import sibling_seed
from tests.server.engine.driver import GREEDY, Arrival, Driver, Heard, expected_tokens, request
from tests.server.fakes import FakeModel, describe

LONG = tuple(range(41))
"""Ten full blocks of four and a token."""


def siblings(prompt: Sequence[int], count: int, new_tokens: int = 3, temperature: float = 1.0) -> list[Request]:
    """What a call for several generations of a prompt comes to."""
    stopping = Stopping(max_new_tokens=new_tokens, ignore_eos=True)
    samplings = [replace(GREEDY, temperature=temperature, seed=sibling_seed(5, i)) for i in range(count)]
    return [request(prompt, stopping, sampling) for sampling in samplings]


def computed_count(model: FakeModel) -> int:
    return sum(len(span.token_ids) for plan in model.plans for span in plan.spans)


def check_tokens(asked: Sequence[Request], heard: Sequence[Heard]) -> None:
    for req, one in zip(asked, heard, strict=True):
        one.check_shape()
        assert one.token_ids == expected_tokens(req, describe())


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.integers(6, 70))
def test_siblings_hold_the_full_blocks_of_their_prompt_once_and_compute_them_once(
    prompt_count: int, count: int, max_step_tokens: int
) -> None:
    used: list[int] = []
    model = FakeModel(before_step=lambda plan: used.append(driver.scheduler.pool.used_count))
    driver = Driver(model, max_slots=5, max_step_tokens=max_step_tokens)
    asked = siblings(list(range(prompt_count)), count, new_tokens=8)
    heard = driver.serve(*asked)
    check_tokens(asked, heard)
    shared = (prompt_count - 1) // 4 * 4  # the last token's logits are needed
    assert [one.cached_count for one in heard] == [0] + [shared] * (count - 1)
    assert computed_count(model) == prompt_count + (count - 1) * (prompt_count - shared) + count * 7
    own_blocks = -(-(prompt_count + 8) // 4) - shared // 4
    assert max(used) <= shared // 4 + count * own_blocks


def test_siblings_run_together_once_the_prompt_is_computed() -> None:
    running: list[int] = []
    model = FakeModel(before_step=lambda plan: running.append(len(plan.spans)))
    Driver(model, max_slots=5, max_step_tokens=64).serve(*siblings(LONG, 4, new_tokens=5))
    assert running == [1, 4, 4, 4, 4, 3]


def test_prompts_that_begin_alike_and_arrive_together_compute_the_beginning_once() -> None:
    model = FakeModel()
    asked = [request([*LONG, 100 + i], Stopping(max_new_tokens=1, ignore_eos=True)) for i in range(4)]
    heard = Driver(model, max_step_tokens=9).serve(*asked)
    check_tokens(asked, heard)
    assert computed_count(model) == 42 + 3 * 2


def test_one_that_waits_for_a_coming_block_lets_others_pass() -> None:
    driver = Driver(FakeModel(), max_slots=3, max_step_tokens=9)
    first, second = siblings(LONG, 2)
    other = request([200, 201], Stopping(max_new_tokens=2, ignore_eos=True))
    heard = driver.serve(first, second, other)
    assert driver.scheduler.admitted == [first, other, second]
    check_tokens([first, second, other], heard)


def test_a_higher_priority_waits_for_no_block_that_a_lower_one_computes() -> None:
    driver = Driver(FakeModel(), max_slots=3, max_step_tokens=9)
    low, high = siblings(LONG, 2)
    high = replace(high, priority=5)
    heard = driver.serve(low, Arrival(high, at_step=2))
    assert driver.step > 4
    assert heard[1].cached_count == 16, "it was admitted late, or did not share what was there"
    check_tokens([low, high], heard)


def fail_once(at: int) -> Callable[[StepPlan], None]:
    steps = iter(range(1000))

    def fail(plan: StepPlan) -> None:
        if next(steps) == at:
            raise ValueError("once")

    return fail


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_one_that_waits_is_admitted_when_the_computing_one_goes_away(end: str) -> None:
    model = FakeModel(before_step=fail_once(2)) if end == "failed" else FakeModel()
    first, second = siblings(LONG, 2)
    arrival = Arrival(first, cancel_at_step=3 if end == "cancelled" else None)
    driver = Driver(model, max_step_tokens=9)
    heard = driver.serve(arrival, second)
    check_tokens([second], heard[1:])
    assert heard[0].token_ids == []
    if end == "failed":
        assert isinstance(heard[0].events[-1], Failure)
        assert heard[1].cached_count == 0
    assert driver.scheduler.admitted[-1] is second


def test_one_that_waits_comes_after_the_computing_one_also_where_that_is_preempted() -> None:
    first, second = siblings(LONG, 2)
    high = replace(request([200] * 10, Stopping(max_new_tokens=3, ignore_eos=True)), priority=5)
    driver = Driver(FakeModel(), max_slots=1, max_step_tokens=9, preempt_lower_priority=True)
    heard = driver.serve(first, second, Arrival(high, at_step=3))
    assert driver.scheduler.admitted == [first, high, first, second]
    assert heard[1].cached_count == 40
    check_tokens([first, second, high], heard)


@pytest.mark.parametrize(("prefix_cache", "salted"), [(False, False), (True, True)])
def test_without_sharing_nobody_waits_and_each_computes_its_own(prefix_cache: bool, salted: bool) -> None:
    asked = [replace(one, cache_salt=f"{i}" if salted else "") for i, one in enumerate(siblings(LONG, 3))]
    model = FakeModel(describe(kv_block_count=64))
    driver = Driver(model, max_step_tokens=64, prefix_cache=prefix_cache)
    heard = driver.serve(*asked)
    check_tokens(asked, heard)
    assert [one.cached_count for one in heard] == [0, 0, 0]
    assert {span.slot for span in model.plans[0].spans} == {0, 1}, "a step of 64 tokens holds one prompt and a half"
    assert computed_count(model) == 3 * (41 + 2)
