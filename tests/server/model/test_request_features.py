"""What requests ask for, on the real model under the real scheduler: against transformers, and in any mix."""

import random
from dataclasses import replace

import pytest
from transformers import PreTrainedModel

from server.engine.constraint import Choice, JsonSchema
from server.engine.engine import Served
from server.engine.plan import LogprobsWanted, TokenLogprob
from server.engine.request import Request, Stopping
from server.engine.sampling import Sampling
from server.engine.seeding import sibling_seed
from tests.server.engine.driver import GREEDY, Arrival, Driver, Heard, request
from tests.server.model.driver import generate_by_transformers

FEW_TOKENS = 12
FEW = Stopping(max_new_tokens=FEW_TOKENS, ignore_eos=True)
PROMPTS = ["The quick brown fox jumps over the lazy dog. The quick", "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "My name is"]


@pytest.mark.parametrize("repetition_penalty", [1.3, 0.8])
def test_a_repetition_penalty_gives_the_greedy_output_that_generate_gives_with_it(
    cramped: Served, reference: PreTrainedModel, repetition_penalty: float
) -> None:
    asked = [
        request(
            cramped.tokenizer.encode(text, add_special_tokens=True),
            FEW,
            replace(GREEDY, repetition_penalty=repetition_penalty),
        )
        for text in PROMPTS
    ]
    heard = Driver(cramped.model, max_slots=3, max_step_tokens=8, tokenizer=cramped.tokenizer).serve(*asked)
    for req, one in zip(asked, heard, strict=True):
        expected = generate_by_transformers(
            reference, req.prompt_token_ids, FEW_TOKENS, repetition_penalty=repetition_penalty
        )
        assert one.token_ids == expected


def test_forbidden_sequences_give_the_greedy_output_that_generate_gives_with_bad_words(
    cramped: Served, reference: PreTrainedModel
) -> None:
    """Those that come up: the first tokens, pairs and threes of the free output. None of them begins in the prompt."""
    asked, expected = [], []
    for text in PROMPTS:
        prompt = cramped.tokenizer.encode(text, add_special_tokens=True)
        free = generate_by_transformers(reference, prompt, FEW_TOKENS)
        candidates = [free[0:1], free[2:4], free[5:8], free[9:11]]
        words = [word for word in candidates if len(word) == 1 or not set(word[:-1]) & set(prompt)]
        expected.append(generate_by_transformers(reference, prompt, FEW_TOKENS, bad_words_ids=words))
        assert expected[-1] != free
        asked.append(request(prompt, FEW, replace(GREEDY, forbidden_sequences=tuple(map(tuple, words)))))
    heard = Driver(cramped.model, max_slots=3, max_step_tokens=8, tokenizer=cramped.tokenizer).serve(*asked)
    assert [one.token_ids for one in heard] == expected


SCHEMA = '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}'


def wide_requests(served: Served, seed: int) -> list[Request]:
    """Requests with every feature mixed at random, some of them several generations of one prompt."""
    rng = random.Random(seed)
    constraints = [served.constraints.compile(source) for source in (JsonSchema(SCHEMA), Choice(("yes, sir", "no")))]
    asked: list[Request] = []
    while len(asked) < 10:
        words = " ".join(
            rng.choices(["one", "two", "red", "sun", "and", "in a", "Once upon", "the"], k=rng.randint(2, 40))
        )
        prompt = served.tokenizer.encode(words, add_special_tokens=True)
        sampling = Sampling(
            temperature=rng.choice([0.0, 0.7, 1.0, 1.5]),
            top_k=rng.choice([0, 0, 20, 300]),
            top_p=rng.choice([1.0, 0.95, 0.5]),
            seed=rng.getrandbits(64),
            min_p=rng.choice([0.0, 0.0, 0.05]),
            typical_p=rng.choice([1.0, 1.0, 0.9]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
            frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
            presence_penalty=rng.choice([0.0, 0.0, -0.5]),
            logit_bias=rng.choice([(), ((rng.randrange(49_152), 3.0), (rng.choice(prompt), -4.0))]),
            forbidden_sequences=rng.choice([(), ((rng.choice(prompt),), (prompt[0], prompt[-1]))]),
        )
        one = replace(
            request(prompt, Stopping(max_new_tokens=rng.randint(3, 9), min_new_tokens=rng.choice([0, 0, 3])), sampling),
            priority=rng.randint(-2, 2),
            logprobs=rng.choice([None, LogprobsWanted(3, processed=False), LogprobsWanted(3, processed=True)]),
            prompt_logprobs=rng.choice([None, None, 2]),
            constraint=rng.choice([None, None, *constraints]),
            wants_mean_logprob=rng.random() < 0.5,
        )
        count = rng.choice([1, 1, 1, 3])
        asked += [replace(one, sampling=replace(sampling, seed=sibling_seed(sampling.seed, i))) for i in range(count)]
    return asked


def check_alike(told: list[TokenLogprob], alone: list[TokenLogprob]) -> None:
    """Ranks of the improbable, and alternatives as probable as each other, may differ by rounding."""
    assert [one.token_id for one in told] == [one.token_id for one in alone]
    for one, other in zip(told, alone, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [a.logprob for a in one.alternatives] == pytest.approx([a.logprob for a in other.alternatives], abs=1e-4)


def test_requests_of_every_kind_get_the_same_tokens_and_logprobs_alone_and_in_company(cramped: Served) -> None:
    alone: list[Heard] = []
    for one in wide_requests(cramped, seed=7):
        alone += Driver(cramped.model, max_slots=1, max_step_tokens=64, tokenizer=cramped.tokenizer).serve(one)
    asked = wide_requests(cramped, seed=7)
    driver = Driver(
        cramped.model, max_slots=3, max_step_tokens=24, tokenizer=cramped.tokenizer, preempt_lower_priority=True
    )
    rng = random.Random(8)
    # The higher come later, so that they find the lower in their way.
    heard = driver.serve(*[Arrival(one, at_step=3 * (one.priority + 2) + rng.randrange(3)) for one in asked])
    assert driver.scheduler.displacements
    assert any(one.cached_count for one in heard)
    for got, expected in zip(heard, alone, strict=True):
        got.check_shape()
        assert got.token_ids == expected.token_ids
        assert got.text == expected.text
        assert got.finish == expected.finish
        assert got.result.satisfies_constraint == expected.result.satisfies_constraint
        assert got.result.mean_logprob == pytest.approx(expected.result.mean_logprob, abs=1e-4)
        check_alike(got.logprobs, expected.logprobs)
        assert len(got.prompt_logprobs) == len(expected.prompt_logprobs)
        for told, told_alone in zip(got.prompt_logprobs, expected.prompt_logprobs, strict=True):
            check_alike(list(told), list(told_alone))
