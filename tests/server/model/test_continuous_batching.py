"""The real model under the real scheduler: what a request gets, whatever happens around it."""

import json
import random
from collections.abc import Callable
from dataclasses import replace

import jsonschema
from transformers import PreTrainedModel

from server.engine.constraint import JsonSchema
from server.engine.engine import Served
from server.engine.events import FinishReason, Started
from server.engine.request import Request, Stopping
from server.engine.sampling import Sampling
from tests.server.engine.driver import GREEDY, Arrival, Driver, request
from tests.server.model.driver import generate_by_transformers

NEW_TOKENS = 24
STOPPING = Stopping(max_new_tokens=NEW_TOKENS, ignore_eos=True)


def random_requests(seed: int, sampling: Callable[[int], Sampling]) -> list[Request]:
    rng = random.Random(seed)
    lengths = [1, 5, 16, 33, 70, 110]
    return [request([rng.randrange(3, 40_000) for _ in range(n)], STOPPING, sampling(n)) for n in lengths]


def serve_in_turmoil(served: Served, asked: list[Request], seed: int) -> tuple[list[list[int]], int]:
    """Each request's tokens when they arrive over time, with others that leave; and how many were preempted."""
    rng = random.Random(seed)
    others = [
        Arrival(
            request([rng.randrange(3, 40_000) for _ in range(40)], STOPPING), rng.randrange(20), rng.randrange(3, 30)
        )
        for _ in range(4)
    ]
    steps = [Arrival(one, at_step=rng.randrange(8)) for one in asked]
    driver = Driver(served.model, max_slots=6, max_step_tokens=48, tokenizer=served.tokenizer)
    heard = driver.serve(*steps, *others)[: len(asked)]
    for one in heard:
        one.check_shape()
        assert sum(isinstance(event, Started) for event in one.events) == 1
    return [one.token_ids for one in heard], len(driver.preempted)


def test_greedy_output_is_that_of_generate_whatever_joins_leaves_is_preempted_or_cancelled(
    cramped: Served, reference: PreTrainedModel
) -> None:
    asked = random_requests(1, lambda _: GREEDY)
    tokens, preemptions = serve_in_turmoil(cramped, asked, seed=2)
    assert preemptions > 0
    for one, got in zip(asked, tokens, strict=True):
        assert got == generate_by_transformers(reference, one.prompt_token_ids, NEW_TOKENS)


def test_seeded_sampling_gives_the_same_tokens_alone_and_in_any_company(cramped: Served) -> None:
    def sampling(seed: int) -> Sampling:
        return Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=seed)

    asked = random_requests(3, sampling)
    alone = []
    for one in random_requests(3, sampling):
        (heard,) = Driver(cramped.model, max_slots=1, tokenizer=cramped.tokenizer).serve(one)
        alone.append(heard.token_ids)
    tokens, preemptions = serve_in_turmoil(cramped, asked, seed=2)
    assert preemptions > 0
    assert tokens == alone


def test_a_constrained_output_among_free_ones_is_valid_and_leaves_their_tokens_as_they_are(cramped: Served) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Lyon"]},
            "population": {"type": "integer", "minimum": 1, "maximum": 99_999_999},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
        },
        "required": ["city", "population", "tags"],
        "additionalProperties": False,
    }
    constraint = cramped.constraints.compile(JsonSchema(json.dumps(schema)))
    prompt = cramped.tokenizer.encode("A French city as JSON: ", add_special_tokens=False)

    def constrained() -> list[Request]:
        """Greedy, sampled, and going on past the end of sequence."""
        sampled = Sampling(temperature=1.5, top_k=0, top_p=1.0, seed=5)
        asked = [
            request(prompt, Stopping(max_new_tokens=150)),
            request(prompt, Stopping(max_new_tokens=150), sampled),
            request(prompt, Stopping(max_new_tokens=150, ignore_eos=True), sampled),
        ]
        return [replace(one, constraint=constraint) for one in asked]

    def free() -> list[Request]:
        return random_requests(1, lambda _: GREEDY)[:4]

    tokens, _ = serve_in_turmoil(cramped, [*constrained(), *free()], seed=2)
    free_alone, _ = serve_in_turmoil(cramped, free(), seed=2)
    assert tokens[3:] == free_alone
    for got, one in zip(tokens[:3], constrained(), strict=True):
        (alone,) = Driver(cramped.model, max_slots=1, tokenizer=cramped.tokenizer).serve(one)
        assert got == alone.token_ids
        assert alone.reason is FinishReason.END_OF_SEQUENCE
        assert alone.result.satisfies_constraint is True
        jsonschema.Draft202012Validator(schema).validate(json.loads(alone.text))
