"""The process of `python -m server`, but for its model: a fake one that is slow, and that a "!" in a prompt kills.

With --model=long it is slower still, takes requests of thousands of tokens and survives them.
"""

import sys
import time

import server.__main__ as process
from server.config import Config
from server.engine.engine import Served
from server.engine.plan import StepPlan
from server.model.errors import ModelNotServable
from tests.server.fakes import FakeConstraints, FakeModel, FakeTokenizer, describe

STEP_SECONDS = 0.02
LONG_STEP_SECONDS = 0.1
DEADLY = ord("!")


def before_step(plan: StepPlan) -> None:
    time.sleep(STEP_SECONDS)
    if any(DEADLY in span.token_ids for span in plan.spans):
        raise SystemExit("the prompt was deadly")


def load(config: Config) -> Served:
    match config.model:
        case "endless":
            time.sleep(3600)
        case "unservable":
            raise ModelNotServable("unservable cannot be served: it is a test")
        case "broken":
            raise RuntimeError("broken on purpose")
        case "long":
            description = describe(kv_block_count=4096, context_length=4096)
            slow = FakeModel(description, before_step=lambda plan: time.sleep(LONG_STEP_SECONDS))
            return Served(slow, FakeTokenizer(), FakeConstraints())
    return Served(FakeModel(before_step=before_step), FakeTokenizer(), FakeConstraints())


if __name__ == "__main__":
    process.load = load
    process.run(sys.argv[1:])
