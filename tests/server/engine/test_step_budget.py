from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from server.engine.plan import Draw, Span, StepPlan
from server.engine.step_budget import LEAST_PROMPT_TOKENS, StepBudget

GREEDY = Draw(temperature=0, top_k=0, top_p=1.0, uniform=0.0)
MAX_TIME = 0.25


def step(generating: int, prompt_tokens: int) -> StepPlan:
    """A step of one prompt's tokens beside sequences that generate."""
    spans = [Span(slot, 5, (1,), (slot,), GREEDY) for slot in range(generating)]
    if prompt_tokens:
        spans.append(Span(generating, 0, (2,) * prompt_tokens, (generating,), None))
    return StepPlan(tuple(spans))


def take_steps(budget: StepBudget, count: int, generating: int, seconds: Callable[[int], float]) -> list[int]:
    """The prompt's tokens in each of `count` steps, where one with n of them takes `seconds(n)`."""
    sizes = []
    for _ in range(count):
        sizes.append(budget.tokens(generating) - generating)
        budget.learn(step(generating, sizes[-1]), seconds(sizes[-1]))
    return sizes


@given(st.integers(0, 20), st.floats(0.0001, 0.008), st.floats(0, 0.1))
def test_steps_come_to_last_no_longer_than_they_may_and_use_most_of_that(
    generating: int, per_token: float, fixed: float
) -> None:
    def seconds(prompt_tokens: int) -> float:
        return fixed + prompt_tokens * per_token

    sizes = take_steps(StepBudget(10_000, MAX_TIME), 50, generating, seconds)[30:]
    least = max(LEAST_PROMPT_TOKENS, generating)
    assert all(seconds(size) <= MAX_TIME or size <= least for size in sizes)
    assert all(seconds(size) >= MAX_TIME / 2 - per_token for size in sizes)


def test_a_step_that_took_too_long_is_followed_by_one_of_half_as_many_tokens() -> None:
    budget = StepBudget(512, MAX_TIME)
    fast = take_steps(budget, 30, 0, lambda _: 0.01)
    assert fast[-1] == 512
    assert take_steps(budget, 7, 0, lambda _: 1.0) == [512, 256, 128, 64, 32, 32, 32]


@given(st.lists(st.tuples(st.integers(0, 31), st.integers(0, 600), st.floats(0, 10)), max_size=50), st.integers(0, 31))
def test_prompts_always_progress_and_the_most_is_never_passed(
    steps: list[tuple[int, int, float]], generating: int
) -> None:
    budget = StepBudget(64, MAX_TIME)
    for beside, prompt_tokens, seconds in steps:
        budget.learn(step(beside, prompt_tokens), seconds)
    assert generating + max(LEAST_PROMPT_TOKENS, generating) <= budget.tokens(generating) <= 64


def test_prompts_are_not_starved_where_generating_alone_takes_longer_than_a_step_may() -> None:
    assert take_steps(StepBudget(512, MAX_TIME), 20, 100, lambda _: 9.0)[-1] == 100


def test_steps_that_only_generate_and_prompts_that_need_less_say_nothing_of_how_many_tokens_fit() -> None:
    budget = StepBudget(512, MAX_TIME)
    before = budget.tokens(8)
    budget.learn(step(8, 0), 9.0)
    budget.learn(step(8, 0), 0.001)
    budget.learn(step(8, 3), 0.001)
    assert budget.tokens(8) == before
