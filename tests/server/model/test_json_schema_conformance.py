"""JSON Schema constraints against the public JSON-Schema-Test-Suite, draft 2020-12.

The suite's schemas with their instances are in `json_schema_test_suite/`, as its version in jsonschema 4.26.0's source
distribution has them: https://github.com/json-schema-org/JSON-Schema-Test-Suite.
"""

import json
import logging
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from server.engine.constraint import Constraint, JsonSchema
from server.engine.engine import Served
from server.engine.errors import InvalidArgument
from tests.server.model.walking import bits, walk

log = logging.getLogger(__name__)

SUITE = Path(__file__).parent / "json_schema_test_suite" / "draft2020-12.jsonl"
WALKS = 4
MOST_TOKENS = 150
CALENDARS = tuple(f"optional/format/{name}.json" for name in ("date", "date-time", "time"))
"""llguidance's formats have no leap years, and leap seconds in every minute."""
CLOSING = ('"', '"}', "}", "]", '":', "0", "1", "a")


@dataclass(frozen=True)
class Group:
    """A schema of the suite and instances that are valid or not under it."""

    file: str
    description: str
    schema: Any
    tests: tuple[tuple[Any, bool], ...]

    @property
    def name(self) -> str:
        return f"{self.file}: {self.description}"


@dataclass(frozen=True)
class Supported:
    group: Group
    constraint: Constraint


def groups() -> Iterator[Group]:
    for line in SUITE.read_text().splitlines():
        group = json.loads(line)
        tests = tuple((test["data"], test["valid"]) for test in group["tests"])
        yield Group(group["file"], group["description"], group["schema"], tests)


@pytest.fixture(scope="module")
def supported(served: Served) -> list[Supported]:
    constraints, refused = [], Counter[str]()
    for group in groups():
        try:
            constraints.append(Supported(group, served.constraints.compile(JsonSchema(json.dumps(group.schema)))))
        except InvalidArgument as refusal:
            refused[refusal.limit] += 1
    log.info(f"{len(constraints)} schemas are supported, {refused.total()} refused: {refused.most_common()}")
    return constraints


def test_an_output_that_is_let_through_to_its_end_is_valid_by_the_suite(
    served: Served, supported: list[Supported]
) -> None:
    verdicts = Counter[tuple[bool, bool]]()
    for one in supported:
        for data, valid in one.group.tests:
            accepted = accepts(served, one.constraint, json.dumps(data, ensure_ascii=False))
            assert valid or not accepted or one.group.file in CALENDARS, f"{one.group.name}: {data!r}"
            verdicts[valid, accepted] += 1
    log.info(f"{verdicts[True, True]} of {verdicts[True, True] + verdicts[True, False]} valid instances can be written")
    assert verdicts[True, True] > 4 * verdicts[True, False]
    assert verdicts[False, False] > 200


def test_every_output_of_a_random_walk_is_valid_by_the_jsonschema_library(
    served: Served, supported: list[Supported]
) -> None:
    ends = served.model.description.eos_token_ids
    closing = {served.tokenizer.encode(text, add_special_tokens=False)[0] for text in CLOSING}
    formats = jsonschema.FormatChecker(("email", "ipv4", "ipv6", "uuid"))
    finished = Counter[str]()
    for one in supported:
        validator = jsonschema.Draft202012Validator(one.group.schema, format_checker=formats)
        for seed in range(WALKS):
            output = walk(one.constraint.start(), ends, random.Random(seed), MOST_TOKENS, closing)
            if output is not None:
                text = served.tokenizer.decode(output)
                validator.validate(json.loads(text))
                finished[one.group.name] += 1
    log.info(f"{finished.total()} of {WALKS * len(supported)} walks came to an end, for {len(finished)} schemas")
    assert len(finished) > 0.9 * len(supported)


def test_most_of_the_suites_schemas_of_every_keyword_that_is_served_are_supported(supported: list[Supported]) -> None:
    count = Counter(one.group.file for one in supported)
    total = Counter(group.file for group in groups())
    served_keywords = (
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "items",
        "prefixItems",
        "anyOf",
        "allOf",
        "ref",
    )
    for keyword in served_keywords:
        assert count[f"{keyword}.json"] > total[f"{keyword}.json"] / 2
    assert len(supported) >= 170


def accepts(served: Served, constraint: Constraint, text: str) -> bool:
    """Whether the masks let the text through to its end."""
    state, ends = constraint.start(), served.model.description.eos_token_ids
    for token_id in served.tokenizer.encode(text, add_special_tokens=False):
        if token_id not in bits(state.allowed(ends, frozenset()).result()):
            return False
        state.advance(token_id)
    return state.is_instance()
