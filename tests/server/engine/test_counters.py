from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.request import Stopping
from tests.server.engine.driver import Arrival, Driver, request
from tests.server.fakes import FakeModel, describe


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 10)), min_size=1, max_size=6), st.booleans())
def test_the_counts_are_those_of_what_the_model_did_and_the_clients_heard(
    wanted: list[tuple[int, int]], prefix_cache: bool
) -> None:
    model = FakeModel(describe(kv_block_count=16))
    driver = Driver(model, prefix_cache=prefix_cache)
    requests = [
        request("a" * prompt, Stopping(max_new_tokens=count, ignore_eos=True), request_id=str(i))
        for i, (prompt, count) in enumerate(wanted)
    ]
    heard = driver.serve(*requests)
    counts = driver.scheduler.counts()
    assert counts.prompt_tokens == sum(prompt for prompt, _ in wanted)
    assert counts.generated_tokens == sum(len(each.token_ids) for each in heard)
    assert sum(counts.step_durations.counts) == sum(counts.step_tokens.counts) == len(model.plans)
    assert counts.step_tokens.total == sum(len(span.token_ids) for plan in model.plans for span in plan.spans)
    assert sum(counts.token_gaps.counts) == sum(len(each.token_ids) - 1 for each in heard)
    assert counts.prefix_queried_tokens == (counts.prompt_tokens if prefix_cache else 0)
    assert counts.prefix_found_tokens == sum(each.cached_count for each in heard)


def test_a_generation_that_loses_its_slot_is_counted_once_as_a_prompt_and_each_time_as_a_preemption() -> None:
    model = FakeModel(describe(kv_block_count=9))
    driver = Driver(model, max_slots=3, prefix_cache=False)
    requests = [
        request(bytes([65 + i]) * 6, Stopping(max_new_tokens=20, ignore_eos=True), request_id=str(i)) for i in range(3)
    ]
    driver.serve(*requests)
    counts = driver.scheduler.counts()
    assert driver.preempted
    assert counts.preemptions >= len(driver.preempted)
    assert counts.prompt_tokens == 18


def test_time_between_tokens_is_measured_by_the_clock_of_the_loop() -> None:
    now = 0.0

    def clock() -> float:
        return now

    def step(_: object) -> None:
        nonlocal now
        now += 0.5

    driver = Driver(FakeModel(before_step=step), clock=clock)
    driver.serve(Arrival(request("x", Stopping(max_new_tokens=4, ignore_eos=True))))
    counts = driver.scheduler.counts()
    assert counts.token_gaps.total == 1.5
    assert counts.step_durations.total == 2.0
