import math
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from server.engine.errors import StepFailed
from server.engine.events import Failure, FinishReason, Result, Started
from server.engine.faults import ModelBroken
from server.engine.plan import LogprobsWanted, StepPlan
from server.engine.request import Request, Stopping
from server.engine.sampling import Sampling
from server.engine.scheduler import MAX_FAILED_STEPS
from tests.server.engine.driver import (
    Arrival,
    Driver,
    Heard,
    expected_logprobs,
    expected_prompt_logprobs,
    expected_tokens,
    request,
)
from tests.server.fakes import EOS, VOCABULARY_SIZE, FakeModel, describe

START = time.monotonic() - 1000
token_ids = st.integers(0, VOCABULARY_SIZE - 1)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1.0]),
    top_k=st.just(0),
    top_p=st.just(1.0),
    seed=st.integers(0, 2**64 - 1),
    min_p=st.sampled_from([0.0, 0.1]),
    typical_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.5]),
    presence_penalty=st.sampled_from([0.0, 0.0, 2.0]),
    logit_bias=st.dictionaries(token_ids, st.sampled_from([-3.0, 4.0]), max_size=3).map(lambda bias: (*bias.items(),)),
    forbidden_sequences=st.lists(st.lists(token_ids, min_size=1, max_size=3).map(tuple), max_size=5).map(tuple),
)
plain_requests = st.builds(
    request,
    prompt=st.one_of(
        st.lists(token_ids, min_size=1, max_size=30),
        st.builds(lambda count, last: [7] * count + [last], st.integers(0, 29), st.integers(7, 9)),
    ),
    stopping=st.builds(
        lambda new, least, ids, ignore: Stopping(new, min(least, new), (), frozenset(ids), ignore),
        st.integers(1, 20),
        st.integers(0, 5),
        st.sets(st.integers(0, 255), max_size=40),
        st.booleans(),
    ),
    sampling=samplings,
    cache_salt=st.sampled_from(["", "", "other"]),
)
requests = st.builds(
    replace,
    plain_requests,
    arrived_at=st.integers(0, 100).map(lambda seconds: START + seconds),
    priority=st.one_of(st.just(0), st.integers(-5, 5)),
    logprobs=st.one_of(st.none(), st.builds(LogprobsWanted, st.integers(0, 3), st.booleans())),
    prompt_logprobs=st.one_of(st.none(), st.none(), st.integers(0, 3)),
    wants_mean_logprob=st.booleans(),
)
arrivals = st.builds(Arrival, requests, st.integers(0, 30), st.one_of(st.none(), st.none(), st.integers(0, 40)))


@settings(max_examples=400, deadline=None)
@given(
    st.lists(arrivals, min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(1, 12),
    st.integers(1, 8),
    st.integers(0, 12),
    st.booleans(),
    st.booleans(),
)
def test_every_request_gets_its_own_tokens_whatever_joins_leaves_or_is_preempted_beside_it(
    coming: list[Arrival],
    max_slots: int,
    extra_budget: int,
    block_size: int,
    spare_blocks: int,
    prefix_cache: bool,
    preempt_lower_priority: bool,
) -> None:
    block_count = math.ceil(51 / block_size) + spare_blocks
    model = FakeModel(describe(block_count, block_size, context_length=50))
    plan = [(arrival.request, arrival.cancel_at_step is not None) for arrival in coming]
    driver = Driver(
        model,
        max_slots,
        max_slots + extra_budget,
        prefix_cache=prefix_cache,
        preempt_lower_priority=preempt_lower_priority,
    )
    for (req, may_leave), one in zip(plan, driver.serve(*coming), strict=True):
        check_heard(req, one, expected_tokens(req, model.description), cancelled=may_leave)
    for displacement in driver.scheduler.displacements:
        assert preempt_lower_priority
        most_urgent = max(seq.request.priority for seq in displacement.admitted)
        assert all(seq.request.priority < most_urgent for seq in displacement.preempted)


def check_heard(req: Request, heard: Heard, expected: list[int], *, cancelled: bool) -> None:
    heard.check_shape(cancelled=cancelled)
    ended = bool(heard.events) and isinstance(heard.events[-1], Result | Failure)
    got = heard.token_ids
    assert got == (expected if ended else expected[: len(got)])
    assert heard.logprobs == expected_logprobs(req, got)
    assert heard.prompt_logprobs == expected_prompt_logprobs(req) or not (ended or got or heard.prompt_logprobs)
    if ended:
        own = expected_logprobs(replace(req, logprobs=LogprobsWanted(0, processed=False)), got)
        mean = pytest.approx(sum(told.logprob for told in own) / len(own)) if req.wants_mean_logprob else None
        assert heard.result.mean_logprob == mean
        assert heard.result.usage.completion_tokens == len(expected)
        assert heard.result.usage.prompt_tokens == len(req.prompt_token_ids)


def test_running_out_of_blocks_preempts_the_newest_and_recomputes_it() -> None:
    model = FakeModel(describe(kv_block_count=6, kv_block_size=4, context_length=24))
    asked = [request("abcd", Stopping(max_new_tokens=16, ignore_eos=True)) for _ in range(3)]
    heard = Driver(model, max_slots=3, prefix_cache=False).serve(*asked)
    starts = [[s.start for s in plan.spans].count(0) for plan in model.plans]
    assert sum(starts) > 3, "nothing was computed twice, so nothing was preempted"
    for req, one in zip(asked, heard, strict=True):
        assert one.token_ids == expected_tokens(req, model.description)
        assert [type(e) for e in one.events].count(Started) == 1
    ends = [one.result.timing.total for one in heard]
    assert ends == sorted(ends), "an older request ended after a newer one"


def test_requests_are_admitted_first_come_first_served() -> None:
    model = FakeModel()
    order: list[int] = []
    driver = Driver(model, max_slots=1)
    asked = [request([i, i], Stopping(max_new_tokens=2, ignore_eos=True)) for i in range(5)]
    driver.serve(*asked)
    for plan in model.plans:
        if plan.spans[0].start == 0:
            order.append(plan.spans[0].token_ids[0])
    assert order == [0, 1, 2, 3, 4]


def test_a_request_joins_at_the_next_step_and_leaves_at_the_step_it_finishes() -> None:
    model = FakeModel()
    long = request("long", Stopping(max_new_tokens=10, ignore_eos=True))
    short = request("s", Stopping(max_new_tokens=2, ignore_eos=True))
    Driver(model).serve(long, Arrival(short, at_step=3))
    assert [len(plan.spans) for plan in model.plans] == [1, 1, 1, 2, 2, 1, 1, 1, 1, 1]


def test_a_long_prompt_is_computed_in_chunks_while_the_others_get_a_token_every_step() -> None:
    model = FakeModel()
    running = request("x", Stopping(max_new_tokens=12, ignore_eos=True))
    long = request([7] * 60, Stopping(max_new_tokens=1, ignore_eos=True))
    heard = Driver(model, max_slots=4, max_step_tokens=10).serve(running, Arrival(long, at_step=1))
    assert [len(s.token_ids) for plan in model.plans for s in plan.spans if s.token_ids[0] == 7] == [9] * 6 + [6]
    assert all(any(len(s.token_ids) == 1 for s in plan.spans) for plan in model.plans[:12])
    assert heard[1].token_ids == expected_tokens(long, model.description)


long_requests = st.builds(request, prompt=st.lists(st.integers(0, 255), min_size=1, max_size=90))


class StepClock:
    """Time that passes while the model computes, and only then."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.now, self.seconds = time.monotonic(), seconds

    def __call__(self) -> float:
        return self.now

    def before_step(self, plan: StepPlan) -> None:
        self.now += self.seconds()


@settings(max_examples=50, deadline=None)
@given(st.lists(long_requests, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_tokens_do_not_depend_on_how_long_steps_take_and_thus_on_how_many_each_computes(
    asked: list[Request], rng: Random
) -> None:
    clock = StepClock(lambda: rng.choice([0.0, 0.0, 9.0]))
    model = FakeModel(before_step=clock.before_step)
    driver = Driver(model, max_slots=4, max_step_tokens=100, max_step_time=1.0, clock=clock)
    for req, one in zip(asked, driver.serve(*asked), strict=True):
        assert one.token_ids == expected_tokens(req, model.description)


def test_after_steps_that_took_too_long_a_prompt_is_computed_in_smaller_pieces() -> None:
    clock = StepClock(lambda: 9.0)
    model = FakeModel(before_step=clock.before_step)
    driver = Driver(model, max_step_tokens=100, max_step_time=1.0, clock=clock)
    driver.serve(request([7] * 112, Stopping(max_new_tokens=1)))
    assert [len(span.token_ids) for plan in model.plans for span in plan.spans] == [64, 32, 16]


def test_one_delivery_a_step_carries_every_sequences_token() -> None:
    model = FakeModel()
    driver = Driver(model, max_slots=8, max_step_tokens=64)
    driver.serve(*[request([i], Stopping(max_new_tokens=5, ignore_eos=True)) for i in range(8)])
    assert len(model.plans) == 5
    assert driver.deliver_calls == 5


def test_requests_whose_time_is_up_are_told_in_one_delivery_and_before_the_step_that_follows() -> None:
    heard_before_step: list[list[bool]] = []

    def look(plan: StepPlan) -> None:
        clock.before_step(plan)
        heard_before_step.append([req.number in driver.heard for req in waiting])

    clock = StepClock(lambda: 700.0)
    driver = Driver(FakeModel(before_step=look), max_slots=1, clock=clock)
    running = request("a", Stopping(max_new_tokens=4, ignore_eos=True))
    waiting = [request("b", Stopping(time_limit=1000.0)) for _ in range(2)]
    driver.serve(running, *waiting)
    assert heard_before_step == [[False, False], [False, False], [True, True], [True, True]]
    assert driver.deliver_calls == 4 + 1


def test_a_cancelled_request_frees_its_slot_and_blocks_within_one_step_in_the_middle_of_its_prefill() -> None:
    model = FakeModel()
    long = request([7] * 100, Stopping(max_new_tokens=20, ignore_eos=True))
    driver = Driver(model, max_slots=1, max_step_tokens=10)
    heard = driver.serve(Arrival(long, cancel_at_step=3))
    assert len(model.plans) == 3
    assert not heard[0].token_ids


def test_a_request_cancelled_while_it_waits_never_runs() -> None:
    model = FakeModel()
    first, second = request("a"), request("b")
    heard = Driver(model, max_slots=1).serve(first, Arrival(second, cancel_at_step=2))
    assert heard[0].token_ids == expected_tokens(first, model.description)
    assert heard[1].events == []
    assert all(len(plan.spans) == 1 for plan in model.plans)


def test_a_time_limit_ends_a_running_request_with_what_it_has() -> None:
    model = FakeModel(before_step=lambda plan: time.sleep(0.02))
    heard = Driver(model).serve(request("a", Stopping(max_new_tokens=100, ignore_eos=True, time_limit=0.1)))[0]
    heard.check_shape()
    assert heard.reason is FinishReason.TIME_LIMIT
    assert 0 < len(heard.token_ids) < 100


def test_a_time_limit_ends_a_waiting_request_too() -> None:
    model = FakeModel(before_step=lambda plan: time.sleep(0.02))
    first = request("a", Stopping(max_new_tokens=20, ignore_eos=True))
    second = request("b", Stopping(max_new_tokens=1, time_limit=0.05))
    heard = Driver(model, max_slots=1).serve(first, second)
    assert len(heard[0].token_ids) == 20
    heard[1].check_shape()
    assert heard[1].reason is FinishReason.TIME_LIMIT
    assert heard[1].token_ids == []
    assert heard[1].result.timing.time_to_first_token is None


def test_end_of_sequence_ends_and_is_not_text() -> None:
    model = FakeModel(choose=lambda tokens, draw: EOS if len(tokens) == 7 else ord("x"))
    heard = Driver(model).serve(request("hello", Stopping(max_new_tokens=50)))[0]
    assert heard.reason is FinishReason.END_OF_SEQUENCE
    assert heard.token_ids == [ord("x"), ord("x"), EOS]
    assert heard.text == "xx"


def test_min_new_tokens_forbids_the_ending_tokens_until_then() -> None:
    def choose(tokens: object, draw: object) -> int:
        return next(i for i in (EOS, 65, 66) if i not in draw.forbidden_token_ids)  # type: ignore[attr-defined]

    heard = Driver(FakeModel(choose=choose)).serve(
        request("p", Stopping(max_new_tokens=9, min_new_tokens=3, stop_token_ids=frozenset({65})))
    )[0]
    assert heard.token_ids == [66, 66, 66, EOS]


def test_without_max_new_tokens_a_request_goes_on_to_the_context_length() -> None:
    model = FakeModel(describe(context_length=40))
    heard = Driver(model).serve(request([1] * 10, Stopping(ignore_eos=True)))[0]
    assert heard.reason is FinishReason.CONTEXT_LENGTH
    assert len(heard.token_ids) == 30


def test_without_max_new_tokens_a_request_goes_on_until_the_kv_cache_is_full() -> None:
    model = FakeModel(describe(kv_block_count=3, kv_block_size=4, context_length=1000))
    heard = Driver(model).serve(request([1] * 5, Stopping(ignore_eos=True)))[0]
    assert heard.reason is FinishReason.CONTEXT_LENGTH
    assert len(heard.token_ids) == 7


def test_a_sequence_that_breaks_every_step_it_is_in_ends_alone_and_the_others_keep_their_tokens() -> None:
    def poison(plan: StepPlan) -> None:
        if any(13 in span.token_ids for span in plan.spans):
            raise ValueError("thirteen")

    model = FakeModel(before_step=poison)
    good = [request([i] * 3, Stopping(max_new_tokens=6, stop_token_ids=frozenset({13}))) for i in range(3)]
    driver = Driver(model)
    bad = request([1, 13], Stopping(max_new_tokens=6))
    heard = driver.serve(*good[:2], bad, good[2])
    for req, one in zip(good, [heard[0], heard[1], heard[3]], strict=True):
        assert one.token_ids == expected_tokens(req, model.description)
    (failure,) = heard[2].events
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, StepFailed)


def test_a_model_that_fails_for_everybody_for_long_and_by_itself_ends_the_scheduler() -> None:
    def broken(plan: StepPlan) -> None:
        raise OSError("gone")

    driver = Driver(FakeModel(before_step=broken), max_slots=1)
    with pytest.raises(ModelBroken, match="OSError: gone"):
        driver.serve(*[request() for _ in range(MAX_FAILED_STEPS)])
    driver.scheduler.check_integrity()


def test_however_many_faulty_requests_come_one_after_another_the_next_good_one_is_served() -> None:
    def poison(plan: StepPlan) -> None:
        if any(13 in span.token_ids for span in plan.spans):
            raise ValueError("thirteen")

    model = FakeModel(before_step=poison)
    good = request([7] * 10, Stopping(max_new_tokens=4, stop_token_ids=frozenset({13})))
    bad = [request([13] * 10) for _ in range(3 * MAX_FAILED_STEPS)]
    heard = Driver(model, max_slots=1).serve(*bad, good)
    assert all(isinstance(one.events[-1], Failure) for one in heard[:-1])
    assert heard[-1].token_ids == expected_tokens(good, model.description)


def test_seeing_whether_the_model_works_leaves_cached_prefixes_as_they_were() -> None:
    def poison(plan: StepPlan) -> None:
        if any(span.start == 0 and span.token_ids == (13,) for span in plan.spans):
            raise ValueError("thirteen")

    model = FakeModel(describe(kv_block_count=8), before_step=poison)
    driver = Driver(model, max_slots=1)
    first, again = request([7] * 17), request([7] * 17)
    (before,) = driver.serve(first)
    driver.serve(*[request([13]) for _ in range(MAX_FAILED_STEPS)])
    (after,) = driver.serve(again)
    assert after.cached_count == 16
    assert after.token_ids == before.token_ids


def test_every_line_about_a_request_that_the_model_could_not_compute_has_its_id() -> None:
    def poison(plan: StepPlan) -> None:
        if any(13 in span.token_ids for span in plan.spans):
            raise ValueError("thirteen")

    with capture_logs() as lines:
        Driver(FakeModel(before_step=poison)).serve(request([13], request_id="bad"), request([7], request_id="good"))
    about_requests = [line for line in lines if line["log_level"] == "error"]
    assert [(line["request_id"], str(line["exc_info"])) for line in about_requests] == [("bad", "thirteen")]


def test_a_budget_that_would_starve_a_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="max_step_tokens"):
        Driver(FakeModel(), max_slots=16, max_step_tokens=16)


def test_the_load_counts_what_runs_and_what_waits() -> None:
    seen = []
    model = FakeModel(before_step=lambda plan: seen.append(driver.scheduler.load()))
    driver = Driver(model, max_slots=2)
    driver.serve(*[request([i], Stopping(max_new_tokens=3, ignore_eos=True)) for i in range(5)])
    assert (seen[0].running, seen[0].waiting, seen[0].kv_blocks_used) == (2, 3, 2)
    idle = driver.scheduler.load()
    assert (idle.running, idle.waiting, idle.kv_blocks_used, idle.tokens_generated) == (0, 0, 0, 15)


def test_a_second_request_with_the_same_prefix_computes_only_what_differs() -> None:
    model = FakeModel()
    driver = Driver(model, max_step_tokens=64)
    first, second = request([7] * 41, Stopping(max_new_tokens=3)), request([7] * 40 + [8], Stopping(max_new_tokens=3))
    (one,) = driver.serve(first)
    computed = sum(len(span.token_ids) for plan in model.plans for span in plan.spans)
    (other,) = driver.serve(second)
    assert (one.cached_count, other.cached_count) == (0, 40)
    assert other.result.usage.cached_tokens == 40
    assert sum(len(s.token_ids) for plan in model.plans for s in plan.spans) - computed == 1 + 2
    assert other.token_ids == expected_tokens(second, model.description)


def test_a_running_sequences_blocks_are_shared_too() -> None:
    model = FakeModel()
    first = request([7] * 20, Stopping(max_new_tokens=10, ignore_eos=True))
    second = request([7] * 20, Stopping(max_new_tokens=2, ignore_eos=True))
    heard = Driver(model, max_step_tokens=64).serve(first, Arrival(second, at_step=3))
    assert [one.cached_count for one in heard] == [0, 16]
    assert heard[1].token_ids == expected_tokens(second, model.description)


def test_requests_of_different_salts_share_nothing() -> None:
    driver = Driver(FakeModel(), max_step_tokens=64)
    for salt, cached in (("a", 0), ("b", 0), ("a", 40), ("b", 40)):
        assert driver.serve(request([7] * 41, cache_salt=salt))[0].cached_count == cached


def test_without_the_prefix_cache_nothing_is_shared() -> None:
    driver = Driver(FakeModel(), max_step_tokens=64, prefix_cache=False)
    for _ in range(2):
        assert driver.serve(request([7] * 41))[0].cached_count == 0
    assert driver.scheduler.load().kv_blocks_cached == 0


def test_a_preempted_sequence_finds_its_own_blocks_again_where_they_are_left() -> None:
    model = FakeModel(describe(kv_block_count=8, kv_block_size=4, context_length=32))
    asked = [request([i] * 8, Stopping(max_new_tokens=12, ignore_eos=True)) for i in range(3)]
    heard = Driver(model, max_slots=3, max_step_tokens=64).serve(*asked)
    assert any(span.start > 0 and len(span.token_ids) > 1 for plan in model.plans for span in plan.spans)
    for req, one in zip(asked, heard, strict=True):
        assert one.token_ids == expected_tokens(req, model.description)


def test_the_blocks_of_a_sequence_that_failed_are_shared_with_nobody() -> None:
    def fail_late(plan: StepPlan) -> None:
        if len(model.plans) == 3:
            raise ValueError("once")

    model = FakeModel(before_step=fail_late)
    driver = Driver(model, max_step_tokens=64)
    failed, again = driver.serve(request([7] * 41, Stopping(max_new_tokens=9))), driver.serve(request([7] * 41))
    assert isinstance(failed[0].events[-1], Failure)
    assert again[0].cached_count == 0
