"""What a generation tells of how probable its tokens were, through chunks, sharing, preemption and faults."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.events import FinishReason, PromptLogprobs, Started, Tokens
from server.engine.plan import LogprobsWanted, StepPlan
from server.engine.request import Request, Stopping
from tests.server.engine.driver import (
    Arrival,
    Driver,
    expected_logprobs,
    expected_prompt_logprobs,
    expected_tokens,
    request,
)
from tests.server.fakes import FakeModel, describe


def telling(prompt: Sequence[int], new_tokens: int = 4, logprobs: int = 2, prompt_logprobs: int = 1) -> Request:
    one = request(prompt, Stopping(max_new_tokens=new_tokens, ignore_eos=True))
    return replace(
        one,
        logprobs=LogprobsWanted(logprobs, processed=False),
        prompt_logprobs=prompt_logprobs,
        wants_mean_logprob=True,
    )


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(2, 50), st.integers(1, 8))
def test_of_a_prompt_all_but_the_first_token_are_told_once_before_the_first_token_in_chunks_of_any_size(
    prompt_count: int, max_step_tokens: int, block_size: int
) -> None:
    asked = telling(list(range(prompt_count)))
    model = FakeModel(describe(kv_block_size=block_size))
    (heard,) = Driver(model, max_slots=1, max_step_tokens=max_step_tokens).serve(asked)
    assert heard.prompt_logprobs == expected_prompt_logprobs(asked)
    assert [type(event) for event in heard.events[:3]] == [Started, PromptLogprobs, Tokens]


def test_what_the_cache_holds_of_a_prompt_is_computed_again_to_be_told_and_shared_with_one_that_does_not_ask() -> None:
    prompt = list(range(20))
    driver = Driver(FakeModel())
    plain = request(prompt, Stopping(max_new_tokens=2, ignore_eos=True))
    (first,) = driver.serve(plain)
    asked = telling(prompt)
    (second,) = driver.serve(asked)
    (third,) = driver.serve(replace(plain))
    assert [one.cached_count for one in (first, second, third)] == [0, 0, 16]
    assert second.prompt_logprobs == expected_prompt_logprobs(asked)


def test_what_was_told_before_a_preemption_in_the_middle_of_a_prompt_is_neither_told_again_nor_left_out() -> None:
    low, high = telling(list(range(40))), replace(telling([100] * 8), priority=5)
    model = FakeModel()
    driver = Driver(model, max_slots=1, max_step_tokens=7, preempt_lower_priority=True)
    heard = driver.serve(low, Arrival(high, at_step=3))
    assert len(driver.scheduler.displacements) == 1
    assert len(driver.scheduler.displacements[0].preempted) > 0
    for req, one in zip((low, high), heard, strict=True):
        assert one.prompt_logprobs == expected_prompt_logprobs(req)
        assert one.logprobs == expected_logprobs(req, one.token_ids)
    told = [len(span.prompt_logprobs.successors) for plan in model.plans for span in plan.spans if span.prompt_logprobs]
    assert sum(told) == 39 + 7, "something was asked for twice"


def test_a_prompt_is_told_once_though_the_generation_is_preempted_later() -> None:
    low, high = telling(list(range(10)), new_tokens=12), replace(telling([100] * 8), priority=5)
    driver = Driver(FakeModel(), max_slots=1, preempt_lower_priority=True)
    heard = driver.serve(low, Arrival(high, at_step=5))
    assert len(driver.scheduler.displacements) == 1
    assert heard[0].prompt_logprobs == expected_prompt_logprobs(low)
    assert heard[0].logprobs == expected_logprobs(low, heard[0].token_ids)
    assert len(heard[0].logprobs) == 12


def test_a_request_whose_time_is_up_before_its_prompt_is_computed_tells_nothing_of_it() -> None:
    one = telling(list(range(10)))
    (heard,) = Driver(FakeModel()).serve(replace(one, stopping=replace(one.stopping, time_limit=1e-9)))
    assert heard.reason is FinishReason.TIME_LIMIT
    assert heard.prompt_logprobs == []
    assert heard.result.mean_logprob is None


def test_a_step_that_is_executed_in_parts_loses_nothing_that_was_to_be_told() -> None:
    def fail_together(plan: StepPlan) -> None:
        if len(plan.spans) > 1 or 255 in plan.spans[0].token_ids:
            raise ValueError("together, or with 255")

    model = FakeModel(before_step=fail_together)
    asked = [telling([i] * 10) for i in range(3)]
    heard = Driver(model, max_step_tokens=16).serve(asked[0], telling([9, 255]), *asked[1:])
    for req, one in zip(asked, [heard[0], *heard[2:]], strict=True):
        assert one.token_ids == expected_tokens(req, model.description)
        assert one.prompt_logprobs == expected_prompt_logprobs(req)
        assert one.logprobs == expected_logprobs(req, one.token_ids)


def test_the_mean_is_of_the_model_s_own_distribution_whatever_the_tokens_are_told_of() -> None:
    asked = telling([1, 2, 3])
    others = [replace(asked, logprobs=None), replace(asked, logprobs=LogprobsWanted(2, processed=True))]
    heard = Driver(FakeModel()).serve(asked, *others)
    means = {one.result.mean_logprob for one in heard}
    assert len(means) == 1
    assert None not in means
    assert heard[1].logprobs == []
    assert heard[2].logprobs == expected_logprobs(others[1], heard[2].token_ids) != heard[0].logprobs
