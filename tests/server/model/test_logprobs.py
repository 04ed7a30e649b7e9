"""What the real model tells of how probable tokens were, against transformers' forward over the whole text at once."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from server.engine.engine import Served
from server.engine.plan import LogprobsWanted, TokenLogprob
from server.engine.request import Request, Stopping
from tests.server.engine.driver import Driver, request

ALTERNATIVES = 4
TOLERANCE = 1e-3


def asking(served: Served, text: str, temperature: float) -> Request:
    one = request(served.tokenizer.encode(text, add_special_tokens=True), Stopping(max_new_tokens=6, ignore_eos=True))
    return replace(
        one,
        sampling=replace(one.sampling, temperature=temperature, seed=3),
        logprobs=LogprobsWanted(ALTERNATIVES, processed=False),
        prompt_logprobs=ALTERNATIVES,
    )


TEXTS = [
    "The capital of France is",
    "The capital of France is Paris, and that of Italy is Rome. The capital of Spain, as every child learns, is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "x",
]


def check_told(told: Sequence[TokenLogprob], token_ids: Sequence[int], logprobs: torch.Tensor) -> None:
    """`logprobs` `[tokens, vocabulary]` are transformers', each row before the token."""
    assert [one.token_id for one in told] == list(token_ids)
    for one, row in zip(told, logprobs, strict=True):
        assert one.logprob == pytest.approx(row[one.token_id].item(), abs=TOLERANCE)
        # Tokens nearer than the tolerance may change places.
        assert (row > row[one.token_id] + 2 * TOLERANCE).sum() < one.rank
        assert (row > row[one.token_id] - 2 * TOLERANCE).sum() >= one.rank
        best = row.topk(ALTERNATIVES).values.tolist()
        assert [a.logprob for a in one.alternatives] == pytest.approx(best, abs=TOLERANCE)
        for alternative in one.alternatives:
            assert row[alternative.token_id].item() == pytest.approx(alternative.logprob, abs=TOLERANCE)


def test_logprobs_of_prompts_and_outputs_are_the_log_softmax_of_a_plain_forward_in_mixed_batches_and_chunks(
    served: Served, reference: PreTrainedModel
) -> None:
    asked = [asking(served, text, temperature) for text, temperature in zip(TEXTS, (0, 1, 0, 1), strict=True)]
    rng = random.Random(1)
    plain = request([rng.randrange(3, 40_000) for _ in range(20)], Stopping(max_new_tokens=12, ignore_eos=True))
    driver = Driver(served.model, max_slots=4, max_step_tokens=11, tokenizer=served.tokenizer)
    heard = driver.serve(plain, *asked)[1:]
    for req, one in zip(asked, heard, strict=True):
        tokens = [*req.prompt_token_ids, *one.token_ids]
        with torch.inference_mode():
            logprobs = reference(torch.tensor([tokens])).logits[0, :-1].double().log_softmax(-1)
        (told_of_prompt,) = one.prompt_logprobs
        check_told([*told_of_prompt, *one.logprobs], tokens[1:], logprobs)
