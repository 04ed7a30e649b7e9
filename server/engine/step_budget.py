"""The StepBudget: how many tokens a step may compute, so that steps stay short while long prompts arrive."""

from server.engine.plan import Span, StepPlan

FIRST_PROMPT_TOKENS = 64
"""Of prompts in the first step, when it is not known yet how long one lasts."""
LEAST_PROMPT_TOKENS = 32
"""Of prompts in any step, however long it lasts, so that they always progress. Fewer would save little: reading the
weights and a long context takes its time for any number of tokens."""
SHORT = 0.75
"""The share of the longest time below which a step leaves room for more: a quarter more tokens stay within it."""


class StepBudget:
    """Shares out at most `max_tokens` a step: one to each sequence that generates, and to prompts as many as let a step
    last about `max_time` seconds.

    The tokens of prompts follow from how long the steps before took: half as many after one that lasted longer, a
    quarter more after one that was short (additive increase would take too long, the range is a thousandfold). They
    are never fewer than the sequences that generate, so that prompts are not starved where generating alone takes all
    the time.
    """

    def __init__(self, max_tokens: int, max_time: float) -> None:
        self.max_tokens, self.max_time = max_tokens, max_time
        self._prompt_tokens = FIRST_PROMPT_TOKENS

    def tokens(self, generating: int) -> int:
        """For the next step, in which `generating` sequences compute one token each."""
        return min(self.max_tokens, generating + max(self._prompt_tokens, generating))

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """Takes into account how long a step lasted; one without tokens of prompts says nothing of them."""
        computed = sum(len(span.token_ids) for span in plan.spans if not _generates(span))
        if computed and seconds > self.max_time:
            self._prompt_tokens = max(LEAST_PROMPT_TOKENS, min(computed, self._prompt_tokens) // 2)
        elif computed >= self._prompt_tokens and seconds < SHORT * self.max_time:
            self._prompt_tokens = min(self.max_tokens, computed + computed // 4)


def _generates(span: Span) -> bool:
    return len(span.token_ids) == 1 and span.draw is not None
