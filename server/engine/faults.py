"""What a failing step means: whose fault it is, found by splitting the batch."""

import logging

from server.engine.model import Model
from server.engine.plan import Fault, StepOutcome, StepPlan

log = logging.getLogger("treadle.engine")


def step_isolating_faults(model: Model, plan: StepPlan) -> StepOutcome:
    """Executes the plan; where the model raises, executes its halves, down to the spans that fail alone.

    Those get a Fault, and the others their tokens as if the faulty had not been there: a step may be executed again,
    since it writes only the positions its spans name.
    """
    try:
        return model.step(plan)
    except Exception as error:
        if len(plan.spans) == 1:
            log.exception("step failed for one sequence")
            # Not the message, which may tell a client of paths and shapes; the log has it.
            return StepOutcome((Fault(f"its step raised {type(error).__name__}"),))
        log.warning("step of %d sequences failed, splitting it: %s: %s", len(plan.spans), type(error).__name__, error)
    half = len(plan.spans) // 2
    first = step_isolating_faults(model, StepPlan(plan.spans[:half]))
    second = step_isolating_faults(model, StepPlan(plan.spans[half:]))
    return StepOutcome(first.draws + second.draws, {**first.prompt_logprobs, **second.prompt_logprobs})
