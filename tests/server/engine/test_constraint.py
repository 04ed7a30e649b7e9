"""Constrained sequences under the real scheduler, mixed with free ones, preempted and cancelled."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.constraint import Choice, Constraint, ConstraintState
from server.engine.errors import ConstraintFailed
from server.engine.events import Failure, FinishReason
from server.engine.plan import Draw, StepPlan
from server.engine.request import Request, Stopping
from server.engine.sampling import Sampling
from server.engine.scheduler import MAX_FAILED_STEPS
from tests.server.engine.driver import Arrival, Driver, Heard, request
from tests.server.fakes import EOS, VOCABULARY_SIZE, FakeConstraints, FakeModel, describe, next_token

STOP_SPECIAL = 259
"""A special token of the fake vocabulary that is no end of sequence."""


def constrained(one: Request, *choices: str) -> Request:
    return replace(one, constraint=FakeConstraints().compile(Choice(choices)))


def constrain(one: Request, choices: tuple[str, ...] | None) -> Request:
    return one if choices is None else constrained(one, *choices)


choices = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=5, unique=True).map(tuple)
requests = st.builds(
    lambda one, choices: constrain(one, choices),
    st.builds(
        request,
        prompt=st.lists(st.integers(0, VOCABULARY_SIZE - 1), min_size=1, max_size=30),
        stopping=st.builds(
            lambda new, least, ids, ignore: Stopping(new, min(least, new), (), frozenset(ids), ignore),
            st.integers(1, 12),
            st.integers(0, 8),
            st.sets(st.sampled_from([ord("a"), ord("b"), STOP_SPECIAL]), max_size=2),
            st.booleans(),
        ),
        sampling=st.builds(Sampling, st.sampled_from([0.0, 1.0]), st.just(0), st.just(1.0), st.integers(0, 2**64 - 1)),
    ),
    st.one_of(st.none(), choices),
)
arrivals = st.builds(Arrival, requests, st.integers(0, 30), st.one_of(st.none(), st.none(), st.integers(0, 40)))


def choices_of(one: Request) -> tuple[bytes, ...]:
    found: tuple[bytes, ...] = one.constraint.choices  # type: ignore[union-attr]
    return found


def output_of(one: Request, heard: Heard) -> bytes:
    """The bytes of the tokens, the last one apart where it ended the generation."""
    ends = {EOS, STOP_SPECIAL}
    assert not ends & set(heard.token_ids[:-1])
    return bytes(i for i in heard.token_ids if i not in ends)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(arrivals, min_size=1, max_size=10),
    st.integers(1, 6),
    st.integers(1, 12),
    st.integers(1, 8),
    st.integers(0, 12),
)
def test_a_constrained_output_is_a_beginning_of_an_instance_and_the_same_alone_and_in_company(
    coming: list[Arrival], max_slots: int, extra_budget: int, block_size: int, spare_blocks: int
) -> None:
    block_count = math.ceil(43 / block_size) + spare_blocks
    description = describe(block_count, block_size, context_length=42)
    plan = [(arrival.request, arrival.cancel_at_step is not None) for arrival in coming]
    heard = Driver(FakeModel(description), max_slots, max_slots + extra_budget).serve(*coming)
    for (asked, may_leave), one in zip(plan, heard, strict=True):
        (alone,) = Driver(FakeModel(description), max_slots=1).serve(asked)
        assert one.token_ids == alone.token_ids or (
            may_leave and one.token_ids == alone.token_ids[: len(one.token_ids)]
        )
        if asked.constraint is not None:
            check_constrained(asked, alone)
        else:
            assert alone.result.satisfies_constraint is None


def check_constrained(asked: Request, heard: Heard) -> None:
    heard.check_shape()
    output, choices = output_of(asked, heard), choices_of(asked)
    assert any(choice.startswith(output) for choice in choices)
    stopped_by_text = heard.reason is FinishReason.STOP_TOKEN and heard.token_ids[-1] < EOS
    said = output[:-1] if stopped_by_text else output
    assert heard.text.encode() == said
    assert heard.result.satisfies_constraint == (said in choices)
    if heard.reason is FinishReason.END_OF_SEQUENCE:
        assert output in choices
    early = heard.reason is not FinishReason.MAX_NEW_TOKENS and len(heard.token_ids) <= asked.stopping.min_new_tokens
    if early and heard.reason is FinishReason.END_OF_SEQUENCE and not asked.stopping.ignore_eos:
        longer = [choice for choice in choices if choice.startswith(output) and choice != output]
        assert all(choice[len(output)] in asked.stopping.stop_token_ids for choice in longer)


def test_an_end_is_chosen_only_where_the_output_is_an_instance() -> None:
    likes_to_end = FakeModel(choose=prefer(EOS))
    heard = Driver(likes_to_end).serve(constrained(request(stopping=Stopping(max_new_tokens=9)), "ab", "abc"))[0]
    assert heard.token_ids == [*b"ab", EOS]
    assert heard.reason is FinishReason.END_OF_SEQUENCE
    assert heard.result.satisfies_constraint is True


def test_the_least_count_of_tokens_keeps_the_end_away_while_the_instance_can_grow() -> None:
    likes_to_end = FakeModel(choose=prefer(EOS))
    stopping = Stopping(max_new_tokens=9, min_new_tokens=5)
    heard = Driver(likes_to_end).serve(constrained(request(stopping=stopping), "a", "ab", "abc"))[0]
    assert heard.token_ids == [*b"abc", EOS]


def test_without_any_end_a_constrained_output_goes_on_until_it_can_grow_no_further() -> None:
    stopping = Stopping(max_new_tokens=9, ignore_eos=True)
    heard = Driver(FakeModel()).serve(constrained(request(stopping=stopping), "a", "ab", "abc"))[0]
    assert heard.token_ids == [*b"abc"]
    assert heard.reason is FinishReason.END_OF_SEQUENCE
    assert heard.result.satisfies_constraint is True


def test_a_special_stop_token_ends_an_instance_where_end_of_sequence_is_ignored() -> None:
    stopping = Stopping(max_new_tokens=9, ignore_eos=True, stop_token_ids=frozenset({STOP_SPECIAL}))
    heard = Driver(FakeModel(choose=prefer(STOP_SPECIAL))).serve(constrained(request(stopping=stopping), "ab", "abc"))[
        0
    ]
    assert heard.token_ids == [*b"ab", STOP_SPECIAL]
    assert heard.reason is FinishReason.STOP_TOKEN
    assert heard.result.satisfies_constraint is True


def test_a_result_that_ends_by_its_limit_says_that_the_output_is_no_instance() -> None:
    heard = Driver(FakeModel()).serve(constrained(request(stopping=Stopping(max_new_tokens=2)), "abc"))[0]
    assert heard.text == "ab"
    assert heard.reason is FinishReason.MAX_NEW_TOKENS
    assert heard.result.satisfies_constraint is False


def test_a_result_whose_text_a_stop_sequence_cut_does_not_say_whether_it_is_an_instance() -> None:
    heard = Driver(FakeModel()).serve(constrained(request(stopping=Stopping(max_new_tokens=9, stop=("b",))), "abc"))[0]
    assert heard.text == "a"
    assert heard.result.satisfies_constraint is None


class FailsAt:
    """A Constraint, and its only state, that allows the letter x until it has failed at a length."""

    def __init__(self, length: int) -> None:
        self.failure: str | None = None
        self._left = length

    def start(self) -> ConstraintState:
        return self

    def allowed(self, end_token_ids: object, unwanted: object) -> "Future[bytes]":
        mask: Future[bytes] = Future()
        if not self._left:
            self.failure = "too complex"
        mask.set_result((0 if self.failure else 1 << ord("x")).to_bytes(-(-VOCABULARY_SIZE // 8), "little"))
        return mask

    def advance(self, token_id: int) -> None:
        self._left -= 1

    def is_instance(self) -> bool:
        return False

    def is_complete(self) -> bool:
        return False


def fails_at(length: int) -> Request:
    failing: Constraint = FailsAt(length)
    return replace(request(stopping=Stopping(max_new_tokens=20)), constraint=failing)


def test_a_constraint_that_cannot_be_followed_ends_its_own_request_alone() -> None:
    good = [request([i], Stopping(max_new_tokens=8, ignore_eos=True)) for i in range(2)]
    good.append(constrained(request([3], Stopping(max_new_tokens=8)), "a" * 20))
    alone = [Driver(FakeModel()).serve(one)[0].token_ids for one in good]
    *heard, failed = Driver(FakeModel()).serve(*good, fails_at(3))
    assert [one.token_ids for one in heard] == alone
    assert failed.text == "xxx"
    failed.check_shape()
    assert isinstance(failed.events[-1], Failure)
    assert isinstance(failed.events[-1].error, ConstraintFailed)
    assert failed.events[-1].error.field == "constraint"
    assert "too complex" in failed.events[-1].error.limit


def test_constraints_that_cannot_be_followed_never_make_the_model_look_broken() -> None:
    driver = Driver(FakeModel(), max_slots=1)
    heard = driver.serve(*[fails_at(0) for _ in range(2 * MAX_FAILED_STEPS)])
    assert all(isinstance(one.events[-1], Failure) for one in heard)


def test_a_step_that_is_executed_again_uses_the_same_masks() -> None:
    executed: list[StepPlan] = []

    def fail_together(plan: StepPlan) -> None:
        executed.append(plan)
        for span in plan.spans:
            assert span.draw is None or span.draw.allowed is None or span.draw.allowed.result()
        if len(plan.spans) > 1:
            raise ValueError("together")

    asked = [constrained(request([i], Stopping(max_new_tokens=6)), "abc", "abd", "b") for i in range(3)]
    alone = [Driver(FakeModel()).serve(one)[0].token_ids for one in asked]
    heard = Driver(FakeModel(before_step=fail_together)).serve(*asked)
    assert [one.token_ids for one in heard] == alone
    assert len(executed) > max(map(len, alone))


def prefer(token_id: int) -> Callable[[Sequence[int], Draw], int]:
    """A model that chooses this token wherever it may."""

    def chosen(token_ids: Sequence[int], draw: Draw) -> int:
        assert draw.allowed is not None
        mask = draw.allowed.result()
        return token_id if mask[token_id // 8] >> token_id % 8 & 1 else next_token(token_ids, draw)

    return chosen
