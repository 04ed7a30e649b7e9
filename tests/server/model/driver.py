"""Drives a TorchModel as the scheduler would, by plans made at random: an adversary that owns all of its freedom.

Sequences join and leave at any step, prompts are cut into chunks of any length, blocks are scattered over the cache and
used again, and the spans of a plan come in any order.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from server.engine.plan import Draw, Drawn, Span, StepPlan
from server.model.torch_model import TorchModel

GREEDY = Draw(temperature=0, top_k=0, top_p=1.0, uniform=0.0)


@dataclass(eq=False)
class Running:
    """One sequence under way."""

    prompt: Sequence[int]
    new_tokens: int
    slot: int
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def generated(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def is_finished(self) -> bool:
        return len(self.generated) == self.new_tokens


def generate_in_company(
    model: TorchModel,
    prompts: Sequence[Sequence[int]],
    new_tokens: Sequence[int],
    rng: random.Random,
    slots: int = 8,
    longest_chunk: int = 40,
) -> list[list[int]]:
    """The greedy continuation of every prompt, `new_tokens` long, computed side by side."""
    waiting = [
        Running(prompt, count, slot=0, tokens=list(prompt)) for prompt, count in zip(prompts, new_tokens, strict=True)
    ]
    everyone = list(waiting)
    running: list[Running] = []
    free_slots = list(range(slots))
    free_blocks = list(range(model.description.kv_block_count))
    rng.shuffle(free_blocks)
    while waiting or running:
        while waiting and free_slots and (not running or rng.random() < 0.7):
            joining = waiting.pop(0)
            joining.slot = free_slots.pop(rng.randrange(len(free_slots)))
            running.append(joining)
        taking_part = [sequence for sequence in running if rng.random() < 0.8] or running[:1]
        rng.shuffle(taking_part)
        spans = tuple(_next_span(sequence, model, free_blocks, rng, longest_chunk) for sequence in taking_part)
        outcome = model.step(StepPlan(spans))
        for sequence, span, drawn in zip(taking_part, spans, outcome.draws, strict=True):
            sequence.computed += len(span.token_ids)
            if span.draw is None:
                assert drawn is None
                continue
            assert isinstance(drawn, Drawn)
            sequence.tokens.append(drawn.token_id)
            if sequence.is_finished:
                running.remove(sequence)
                free_slots.append(sequence.slot)
                free_blocks.extend(sequence.blocks)
                rng.shuffle(free_blocks)
    return [sequence.generated for sequence in everyone]


def _next_span(
    sequence: Running, model: TorchModel, free_blocks: list[int], rng: random.Random, longest_chunk: int
) -> Span:
    left = len(sequence.tokens) - sequence.computed
    count = min(left, rng.choice([1, rng.randint(1, longest_chunk)]))
    end = sequence.computed + count
    while len(sequence.blocks) * model.description.kv_block_size < end:
        sequence.blocks.append(free_blocks.pop())
    return Span(
        slot=sequence.slot,
        start=sequence.computed,
        token_ids=tuple(sequence.tokens[sequence.computed : end]),
        block_ids=tuple(sequence.blocks),
        draw=GREEDY if count == left else None,
    )


def generate_by_transformers(
    model: PreTrainedModel, prompt: Sequence[int], new_tokens: int, **options: Any
) -> list[int]:
    """The oracle: the greedy continuation by `generate` with its `options`, going on past the end of sequence."""
    assert model.generation_config is not None
    model.generation_config.eos_token_id = None
    ids = torch.tensor([list(prompt)])
    output = model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False, **options
    )
    return [int(token_id) for token_id in output[0, len(prompt) :]]
