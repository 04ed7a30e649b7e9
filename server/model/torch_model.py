"""Executes step plans with a transformers model: one forward over a ragged batch, then one draw per span that asks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from server.engine.model import ModelDescription
from server.engine.plan import Draw, Drawn, Fault, Span, StepOutcome, StepPlan
from server.model.attention import PagedBatch
from server.model.kv_cache import KVCache
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
            drawn = iter(draw_tokens(self._logits(spans), [span.draw for span in spans if span.draw is not None]))
        outcomes: list[Drawn | Fault | None] = [None] * len(spans)
        for i in order:
            if plan.spans[i].draw is not None:
                outcomes[i] = next(drawn)
        return StepOutcome(tuple(outcomes))

    def _logits(self, spans: Sequence[Span]) -> torch.Tensor:
        """The logits `[spans with a draw, vocabulary]` that follow those spans' last tokens; computes all spans."""
        device = self._cache.keys.device
        token_ids = [token_id for span in spans for token_id in span.token_ids]
        positions = [span.start + i for span in spans for i in range(len(span.token_ids))]
        last_rows, row = [], 0
        for span in spans:
            row += len(span.token_ids)
            if span.draw is not None:
                last_rows.append(row - 1)
        output = self._transformer(
            input_ids=torch.tensor([token_ids], device=device),
            position_ids=torch.tensor([positions], device=device),
            use_cache=False,
            logits_to_keep=torch.tensor(last_rows, dtype=torch.long, device=device),
            paged_batch=PagedBatch.of(spans, self._cache),
        )
        logits: torch.Tensor = output.logits[0]
        return logits

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
