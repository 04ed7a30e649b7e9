import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.faults import ModelBroken, probe, step_isolating_faults
from server.engine.plan import Draw, Drawn, Fault, Span, StepOutcome, StepPlan
from tests.server.fakes import FakeModel, next_token

GREEDY = Draw(temperature=0.0, top_k=0, top_p=1.0, uniform=0.0)


@given(st.integers(1, 12), st.sets(st.integers(0, 11)))
def test_exactly_the_faulty_spans_get_a_fault_and_the_others_their_tokens(count: int, faulty: set[int]) -> None:
    def poison(plan: StepPlan) -> None:
        if any(span.slot in faulty for span in plan.spans):
            raise RuntimeError("poison")

    plan = StepPlan(tuple(Span(i, 0, (i, i), (i,), GREEDY) for i in range(count)))
    outcome = step_isolating_faults(FakeModel(before_step=poison), plan)
    for slot, drawn in enumerate(outcome.draws):
        expected = Fault("its step raised RuntimeError") if slot in faulty else Drawn(next_token([slot, slot], GREEDY))
        assert drawn == expected


def test_one_faulty_span_of_many_is_found_by_halves() -> None:
    def poison(plan: StepPlan) -> None:
        if any(span.slot == 11 for span in plan.spans):
            raise RuntimeError("poison")

    model = FakeModel(before_step=poison)
    step_isolating_faults(model, StepPlan(tuple(Span(i, 0, (i,), (i,), GREEDY) for i in range(32))))
    assert len(model.plans) == 1 + 2 * 5


def test_a_model_that_computes_a_single_token_is_not_broken() -> None:
    model = FakeModel()
    probe(model, 3)
    (plan,) = model.plans
    assert [(span.start, span.block_ids) for span in plan.spans] == [(0, (3,))]


def test_a_model_whose_single_token_faults_is_broken() -> None:
    class WithoutNumbers(FakeModel):
        def step(self, plan: StepPlan) -> StepOutcome:
            return StepOutcome(tuple(Fault("its logits are not finite") for _ in plan.spans))

    with pytest.raises(ModelBroken, match="not finite"):
        probe(WithoutNumbers(), 0)
