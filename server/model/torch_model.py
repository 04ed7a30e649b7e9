"""Executes step plans with a transformers model: one forward over a ragged batch, then one draw per span that asks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from server.engine.model import ModelDescription
from server.engine.plan import Draw, Drawn, Fault, Span, StepOutcome, StepPlan, TokenLogprob
from server.model.attention import PagedBatch
from server.model.kv_cache import KVCache
from server.model.logprobs import logprobs_by_logits
from server.model.sampler import draw_tokens

GREEDY = Draw(temperature=0, top_k=0, top_p=1.0, uniform=0.0)
SAMPLED = Draw(temperature=1.0, top_k=50, top_p=0.9, uniform=0.5)


@dataclass(frozen=True, slots=True)
class LargestSteps:
    """The largest steps the scheduler may ask for."""

    max_slots: int
    max_step_tokens: int


class TorchModel:
    """The engine's Model. Its transformers model must be loaded with `attention.ATTENTION`."""

    def __init__(
        self, transformer: PreTrainedModel, cache: KVCache, description: ModelDescription, largest: LargestSteps
    ) -> None:
        self.description = description
        self._transformer, self._cache, self._largest = transformer, cache, largest

    def step(self, plan: StepPlan) -> StepOutcome:
        order = sorted(range(len(plan.spans)), key=lambda i: len(plan.spans[i].token_ids) > 1)
        spans = [plan.spans[i] for i in order]
        with torch.inference_mode():
            computed = self._compute(spans)
            drawn = iter(draw_tokens(computed.to_draw, [span.draw for span in spans if span.draw is not None]))
            prompt_logprobs = _prompt_logprobs(computed.of_prompts, spans)
        outcomes: list[Drawn | Fault | None] = [None] * len(spans)
        for i in order:
            if plan.spans[i].draw is not None:
                outcomes[i] = next(drawn)
            if isinstance(faulty := prompt_logprobs.get(plan.spans[i].slot), Fault):
                outcomes[i] = faulty
        told = {slot: logprobs for slot, logprobs in prompt_logprobs.items() if not isinstance(logprobs, Fault)}
        return StepOutcome(tuple(outcomes), told)

    def _compute(self, spans: Sequence[Span]) -> "_Logits":
        device = self._cache.keys.device
        token_ids = [token_id for span in spans for token_id in span.token_ids]
        positions = [span.start + i for span in spans for i in range(len(span.token_ids))]
        last_rows, prompt_rows, row = [], list[int](), 0
        for span in spans:
            if wanted := span.prompt_logprobs:
                prompt_rows += range(row + wanted.first, row + wanted.first + len(wanted.successors))
            row += len(span.token_ids)
            if span.draw is not None:
                last_rows.append(row - 1)
        output = self._transformer(
            input_ids=torch.tensor([token_ids], device=device),
            position_ids=torch.tensor([positions], device=device),
            use_cache=False,
            logits_to_keep=torch.tensor(last_rows + prompt_rows, dtype=torch.long, device=device),
            paged_batch=PagedBatch.of(spans, self._cache),
        )
        logits: torch.Tensor = output.logits[0]
        return _Logits(logits[: len(last_rows)], logits[len(last_rows) :])

    def warm_up(self) -> None:
        """Runs the longest prefill, decode steps of one and of all slots, and both ways of drawing."""
        longest = min(self._largest.max_step_tokens, self.description.max_total_tokens)
        slots = self._largest.max_slots
        prefill = Span(0, 0, (0,) * longest, self._blocks(longest), GREEDY)
        self.step(StepPlan((prefill,)))
        for count in (1, slots):
            for draw in (GREEDY, SAMPLED):
                # All slots in the same block: what is written there is of no interest.
                self.step(StepPlan(tuple(Span(slot, 0, (0,), self._blocks(1), draw) for slot in range(count))))

    def _blocks(self, tokens: int) -> tuple[int, ...]:
        return tuple(range(-(-tokens // self.description.kv_block_size)))


@dataclass(frozen=True, slots=True)
class _Logits:
    to_draw: torch.Tensor
    """After the last tokens of the spans with a draw: `[those spans, vocabulary]`."""
    of_prompts: torch.Tensor
    """After each token whose successor's probability is asked for: `[those tokens, vocabulary]`."""


def _prompt_logprobs(logits: torch.Tensor, spans: Sequence[Span]) -> dict[int, tuple[TokenLogprob, ...] | Fault]:
    """By slot, of the spans that ask."""
    asking = [(span.slot, span.prompt_logprobs) for span in spans if span.prompt_logprobs is not None]
    found: dict[int, tuple[TokenLogprob, ...] | Fault] = {}
    row = 0
    for slot, wanted in asking:
        count = len(wanted.successors)
        rows = logits[row : row + count].float()
        row += count
        if rows.isfinite().all():
            found[slot] = tuple(
                logprobs_by_logits(rows, [1.0] * count, wanted.successors, [wanted.alternatives] * count)
            )
        else:
            found[slot] = Fault("its logits are not finite")
    return found
