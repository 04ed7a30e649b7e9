"""What a failing step means: whose fault it is, found by splitting the batch, or by a step nobody can be to blame for.

Each faulty span is logged by the scheduler, which knows whose it is.
"""

import structlog

from server.engine.model import Model
from server.engine.plan import Draw, Fault, Span, StepOutcome, StepPlan

log = structlog.stdlib.get_logger("treadle.engine")


class ModelBroken(Exception):
    """The model cannot compute the simplest of steps."""


def step_isolating_faults(model: Model, plan: StepPlan) -> StepOutcome:
    """Executes the plan; where the model raises, executes its halves, down to the spans that fail alone.

    Those get a Fault, and the others their tokens as if the faulty had not been there: a step may be executed again,
    since it writes only the positions its spans name.
    """
    try:
        return model.step(plan)
    except Exception as error:
        if len(plan.spans) == 1:
            # Not the message, which may tell a client of paths and shapes; the log has it.
            return StepOutcome((Fault(f"its step raised {type(error).__name__}", error=error),))
        log.warning("a step failed, splitting it", sequences=len(plan.spans), error=f"{type(error).__name__}: {error}")
    half = len(plan.spans) // 2
    first = step_isolating_faults(model, StepPlan(plan.spans[:half]))
    second = step_isolating_faults(model, StepPlan(plan.spans[half:]))
    return StepOutcome(first.draws + second.draws, {**first.prompt_logprobs, **second.prompt_logprobs})


def probe(model: Model, block_id: int) -> None:
    """Has the model compute one token, in a KV block that nobody uses. Raises ModelBroken where it fails even that."""
    greedy = Draw(temperature=0.0, top_k=0, top_p=1.0, uniform=0.0)
    try:
        (drawn,) = model.step(StepPlan((Span(0, 0, (0,), (block_id,), greedy),))).draws
    except Exception as error:
        raise ModelBroken(f"the model cannot compute a single token: {type(error).__name__}: {error}") from error
    if isinstance(drawn, Fault):
        raise ModelBroken(f"the model cannot compute a single token: {drawn.reason}")
