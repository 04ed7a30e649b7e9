from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.constraint import Choice
from server.engine.errors import ConstraintFailed
from server.engine.events import Failure
from server.engine.forbidden_sequences import completing_tokens
from server.engine.plan import Draw
from server.engine.request import Request, Stopping
from tests.server.engine.driver import GREEDY, Driver, expected_tokens, request
from tests.server.fakes import EOS, FakeConstraints, FakeModel, describe, may_be_chosen

runs = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=6)


def contains(output: Sequence[int], run: Sequence[int]) -> bool:
    return any(list(output[i : i + len(run)]) == list(run) for i in range(len(output)))


def forbidding(prompt: Sequence[int], forbidden: Sequence[Sequence[int]], stopping: Stopping) -> Request:
    return request(prompt, stopping, replace(GREEDY, forbidden_sequences=tuple(map(tuple, forbidden))))


@given(runs, st.lists(st.integers(0, 3), max_size=8), st.integers(0, 3))
def test_a_token_is_refused_exactly_where_a_forbidden_sequence_would_end_with_it(
    forbidden: list[list[int]], output: list[int], token_id: int
) -> None:
    longer = [*output, token_id]
    ends = any(longer[-len(run) :] == run for run in forbidden if len(run) <= len(longer))
    assert (token_id in completing_tokens(forbidden, output)) == ends


def few_letters(token_ids: Sequence[int], draw: Draw) -> int:
    """Says the ids 0 to 3 where it may, so that forbidden sequences of them come near at every token."""
    may = sorted(may_be_chosen(draw))
    return may[len(token_ids) * sum(token_ids) % min(4, len(may))]


@settings(deadline=None)
@given(runs, st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(0, 6))
def test_no_forbidden_sequence_appears_in_an_output_also_after_preemption(
    forbidden: list[list[int]], prompt: list[int], spare_blocks: int
) -> None:
    model = FakeModel(describe(6 + spare_blocks, 4, context_length=24), choose=few_letters)
    asked = [forbidding([i, *prompt], forbidden, Stopping(max_new_tokens=15, ignore_eos=True)) for i in range(3)]
    for heard in Driver(model, max_slots=3).serve(*asked):
        assert len(heard.token_ids) == 15
        assert not any(contains(heard.token_ids, run) for run in forbidden)


def test_a_forbidden_sequence_that_begins_in_the_prompt_is_not_in_the_output() -> None:
    model = FakeModel(choose=lambda seen, draw: 1 if 1 in may_be_chosen(draw) else 2)
    (heard,) = Driver(model).serve(forbidding([5, 1], [[5, 1, 1], [1, 1]], Stopping(max_new_tokens=3, ignore_eos=True)))
    assert heard.token_ids == [1, 2, 1]


def test_the_end_of_sequence_may_be_forbidden_at_a_place() -> None:
    model = FakeModel(choose=lambda seen, draw: EOS if EOS in may_be_chosen(draw) else 1)
    heard = Driver(model).serve(forbidding([5], [[1, EOS]], Stopping(max_new_tokens=6)))[0]
    assert heard.token_ids == [EOS]
    heard = Driver(model).serve(forbidding([5], [[1, EOS], [EOS]], Stopping(max_new_tokens=6)))[0]
    assert heard.token_ids == [1] * 6


def test_a_request_whose_constraint_and_forbidden_sequences_leave_no_token_fails_alone() -> None:
    model = FakeModel()
    good = [request([i], Stopping(max_new_tokens=8, ignore_eos=True)) for i in range(3)]
    bad = forbidding([9], [[ord("a"), ord("b")]], Stopping(max_new_tokens=8))
    *heard, failed = Driver(model).serve(*good, replace(bad, constraint=FakeConstraints().compile(Choice(("abc",)))))
    assert [one.token_ids for one in heard] == [expected_tokens(req, model.description) for req in good]
    failed.check_shape()
    assert failed.text == "a"
    assert isinstance(failed.events[-1], Failure)
    assert isinstance(failed.events[-1].error, ConstraintFailed)
    assert failed.events[-1].error.field == "sampling.forbidden_sequences"
