"""Constraints over the default model's own tokenizer: what is allowed, what is refused, and what is kept."""

import json
import random
import resource
import threading
import traceback
from collections.abc import Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from llguidance import LLTokenizer
from transformers import AutoTokenizer

from server.engine.constraint import (
    MAX_CHOICES,
    MAX_SOURCE_BYTES,
    Choice,
    Constraint,
    ConstraintSource,
    ConstraintState,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
)
from server.engine.engine import Served
from server.engine.errors import InvalidArgument
from server.engine.model import ModelDescription
from server.engine.tokenizer import Tokenizer
from server.model import constraints
from server.model.constraint_trial import TrialFailed, TrialLimits, try_compiling
from server.model.constraints import (
    MAX_CACHED,
    MAX_REASON_LENGTH,
    MAX_REFUSALS,
    LLGuidanceCompiler,
    constraint_compiler,
)
from server.model.default_model import ensure_default_model
from server.model.tokenizer import TransformersTokenizer
from tests.server.model.tiny import word_level_tokenizer
from tests.server.model.walking import bits, walk

NOTHING: Set[int] = frozenset()


@pytest.fixture(scope="module")
def tokenizer(cache: Path) -> TransformersTokenizer:
    return TransformersTokenizer(AutoTokenizer.from_pretrained(ensure_default_model(cache)))


def compiler(
    served: Served,
    tokenizer: TransformersTokenizer,
    limits: TrialLimits = TrialLimits(),  # noqa: B008  # frozen
) -> LLGuidanceCompiler:
    """One of its own limits, which has compiled nothing yet."""
    ends = sorted(served.model.description.eos_token_ids)
    return LLGuidanceCompiler(LLTokenizer(tokenizer.definition, eos_token=ends), tokenizer.special_token_ids, limits)


def with_vocabulary_of(served: Served, size: int) -> ModelDescription:
    return replace(served.model.description, vocabulary_size=size)


def peak_memory() -> int:
    """Bytes that the process has had in memory at most."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@dataclass(frozen=True)
class Vocabulary:
    served: Served

    @property
    def tokenizer(self) -> Tokenizer:
        return self.served.tokenizer

    @property
    def ends(self) -> frozenset[int]:
        return self.served.model.description.eos_token_ids

    def compile(self, source: ConstraintSource) -> Constraint:
        return self.served.constraints.compile(source)

    def start(self, source: ConstraintSource, output: str = "") -> ConstraintState:
        state = self.compile(source).start()
        for token_id in self.tokenizer.encode(output, add_special_tokens=False):
            assert token_id in bits(state.allowed(NOTHING, NOTHING).result()), (source, output)
            state.advance(token_id)
        return state

    def accepts(self, source: ConstraintSource, output: str) -> bool:
        """Whether the output is one that the masks let through to its end."""
        state = self.compile(source).start()
        for token_id in self.tokenizer.encode(output, add_special_tokens=False):
            if token_id not in bits(state.allowed(self.ends, NOTHING).result()):
                return False
            state.advance(token_id)
        return self.ends <= bits(state.allowed(self.ends, NOTHING).result())


@pytest.fixture(scope="module")
def vocabulary(served: Served) -> Vocabulary:
    return Vocabulary(served)


PERSON = JsonSchema(
    json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    )
)
ARITHMETIC = Grammar('start: term ("+" term)*\nterm: /[0-9]+/ | "(" start ")"')


@pytest.mark.parametrize(
    ("source", "instances", "others"),
    [
        (
            PERSON,
            ['{"name":"Zoë 🦊","age":3}', '{ "name": "",\n  "age": 0 }'],
            ['{"age":3}', '{"name":"","age":-1}', "{"],
        ),
        (JsonObject(), ["{}", '{"a":[1,null,{"b":"é\\n"}]}'], ["[]", '{"a":}', "{'a':1}"]),
        (Regex(r"[a-z]+@[a-z]+\.(com|org)"), ["me@there.org"], ["me@there.net", "me@there.or", " me@there.org"]),
        (ARITHMETIC, ["1", "1+(22+3)"], ["1+", "(1", "1-1"]),
        (Choice(("a", "ab", "abc d")), ["a", "ab", "abc d"], ["abc", "b"]),
        (
            Choice(('"\\ \n\t\x00\x7f', "é🦊\u2028", " a ", "|")),
            ['"\\ \n\t\x00\x7f', "é🦊\u2028", " a ", "|"],
            ["a", "é"],
        ),
        (JsonSchema(json.dumps({"enum": list(range(2000))})), ["0", "1999"], ["2000"]),
        (Choice(tuple(f"choice {i}" for i in range(MAX_CHOICES))), ["choice 1", "choice 1023"], ["choice 1024"]),
    ],
    ids=[
        "json_schema",
        "json_object",
        "regex",
        "grammar",
        "choice",
        "choice of strange ones",
        "enum of many",
        "choice of many",
    ],
)
def test_the_masks_let_instances_through_and_nothing_else(
    vocabulary: Vocabulary, source: ConstraintSource, instances: list[str], others: list[str]
) -> None:
    for text in instances:
        assert vocabulary.accepts(source, text), text
    for text in others:
        assert not vocabulary.accepts(source, text), text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (JsonSchema('{"type": '), "EOF while parsing"),
        (JsonSchema("not json"), "expected"),
        (JsonSchema("3"), "schema"),
        (JsonSchema('{"type": "text"}'), "text"),
        (JsonSchema("false"), "schema is false"),
        (JsonSchema('{"type": "string", "minLength": 5, "maxLength": 3}'), "minLength"),
        (JsonSchema('{"enum": []}'), "empty"),
        (JsonSchema('{"type": "array", "uniqueItems": true}'), "uniqueItems"),
        (JsonSchema('{"not": {"type": "string"}}'), "not"),
        (JsonSchema('{"oneOf": [{"minimum": 1}, {"maximum": 3}]}'), "oneOf"),
        (JsonSchema('{"$ref": "http://example.com/schema"}'), "http://example.com/schema"),
        (JsonSchema('{"$ref": "file:///etc/passwd"}'), "file:///etc/passwd"),
        (JsonSchema('{"x-guidance": {"lenient": true}, "type": "array", "uniqueItems": true}'), "uniqueItems"),
        (
            Grammar('start: %json {"x-guidance": {"lenient": true}, "type": "array", "uniqueItems": true}'),
            "uniqueItems",
        ),
        (Regex("(a"), "unclosed group"),
        (Regex("(?=a)a"), "look-ahead"),
        (Regex(r"\ba"), "lookaround"),
        (Regex("a{0}"), "only the empty one"),
        (Regex("[a--a]"), "instance"),
        (Grammar('first: "a"'), "no start rule"),
        (Grammar("start: second"), "second"),
        (Grammar('start: "a'), "lexer error"),
        (Grammar('start: start "a"'), "instance"),
        (Grammar("start: <|im_end|>"), "<|im_end|> is a token: only text can be constrained"),
        (Grammar('start: "a" <[5]>'), "<[5]> is a token"),
        (Grammar("start: x\nx[temperature=2.0]: /[a-z]+/"), "the attribute temperature is not supported"),
        (Grammar('{"grammars": [{"lark_grammar": "start: x\\nx[temperature=2.0]: /a/"}]}'), "expecting rule"),
    ],
)
def test_what_is_malformed_unsupported_or_unsatisfiable_is_refused_with_the_reason_in_a_line(
    vocabulary: Vocabulary, source: JsonSchema | Regex | Grammar, reason: str
) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        vocabulary.compile(source)
    assert refusal.value.field == source.field
    assert reason in refusal.value.limit
    assert "\n" not in str(refusal.value)
    assert len(refusal.value.limit) <= MAX_REASON_LENGTH


def nested(before: str, middle: str, after: str, depth: int) -> str:
    return before * depth + middle + after * depth


CHAIN = {f"d{i}": {"properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(1000)} | {"d1000": {}}

TOO_MUCH: dict[str, JsonSchema | Regex | Grammar] = {
    "an automaton of all multiples": JsonSchema('{"type": "integer", "multipleOf": 99999989}'),
    "a chain of references": JsonSchema(json.dumps({"$ref": "#/$defs/d0", "$defs": CHAIN}, separators=(",", ":"))),
    "nested schemas": JsonSchema(nested('{"items":', "{}", "}", 5000)),
    "nested brackets": JsonSchema(nested("[", "", "]", 30_000)),
    "nested groups": Regex(nested("(", "a", ")", 30_000)),
    "nested rules": Grammar("start: " + nested("(", '"a"', ")", 30_000)),
    "a chain of rules": Grammar("start: r0\n" + "".join(f'r{i}: "a" r{i + 1}\n' for i in range(3000)) + 'r3000: "a"'),
}


@pytest.mark.parametrize("source", TOO_MUCH.values(), ids=TOO_MUCH)
def test_what_is_too_much_to_compile_is_refused_and_does_the_process_no_harm(
    served: Served, tokenizer: TransformersTokenizer, source: JsonSchema | Regex | Grammar
) -> None:
    before = peak_memory()
    with pytest.raises(InvalidArgument) as refusal:
        compiler(served, tokenizer, TrialLimits(seconds=1.0, memory=1 << 29)).compile(source)
    assert refusal.value.field == source.field
    assert len(str(refusal.value)) < 2 * MAX_REASON_LENGTH
    assert peak_memory() - before < 2**28


def test_the_time_and_the_memory_that_a_constraint_would_take_are_told(
    served: Served, tokenizer: TransformersTokenizer
) -> None:
    slow = TOO_MUCH["an automaton of all multiples"]
    with pytest.raises(InvalidArgument, match=r"takes more than 0\.5 s to compile"):
        compiler(served, tokenizer, TrialLimits(seconds=0.5)).compile(slow)
    with pytest.raises(InvalidArgument, match="takes more memory to compile than the server allows"):
        compiler(served, tokenizer, TrialLimits(seconds=60.0, memory=1 << 27)).compile(slow)


@pytest.mark.parametrize("kind", [JsonSchema, Regex, Grammar])
def test_a_source_is_from_1_to_the_most_bytes_long(kind: type[JsonSchema | Regex | Grammar]) -> None:
    for text in ("", "é" * (MAX_SOURCE_BYTES // 2) + "x"):
        with pytest.raises(InvalidArgument, match=f"must be from 1 to {MAX_SOURCE_BYTES}"):
            kind(text)
    assert kind("é" * (MAX_SOURCE_BYTES // 2)).text


@pytest.mark.parametrize(
    "choices",
    [(), ("a",) * (MAX_CHOICES + 1), ("a", ""), ("x" * (MAX_SOURCE_BYTES // 2), "y" * (MAX_SOURCE_BYTES // 2 + 1))],
)
def test_choices_are_bounded_and_none_is_empty(choices: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"^constraint\.choice"):
        Choice(choices)


def test_what_a_schema_says_to_the_library_does_not_make_the_output_another_than_json(vocabulary: Vocabulary) -> None:
    options = {"item_separator": ";", "key_separator": "=", "whitespace_pattern": "x+", "coerce_one_of": True}
    source = JsonSchema(json.dumps({"x-guidance": options, "type": "array", "items": {"type": "integer"}}))
    assert vocabulary.accepts(source, "[1, 2]")
    assert not vocabulary.accepts(source, "[1;2]")
    assert not vocabulary.accepts(source, "[x1]")


def test_whitespace_between_the_parts_of_a_json_text_comes_to_an_end(vocabulary: Vocabulary) -> None:
    assert vocabulary.accepts(JsonObject(), "{" + " " * 40 + "}")
    assert not vocabulary.accepts(JsonObject(), "{" + " " * 41 + "}")


def test_an_end_is_allowed_only_where_the_output_is_an_instance(vocabulary: Vocabulary) -> None:
    ends = vocabulary.ends
    for output, instance, complete in (
        ("", False, False),
        ("a", True, False),
        ("ab", False, False),
        ("abc", True, True),
    ):
        state = vocabulary.start(Regex("a(bc)?"), output)
        allowed = bits(state.allowed(ends, NOTHING).result())
        assert (ends <= allowed, state.is_instance()) == (instance, instance)
        assert (allowed - ends == set(), state.is_complete()) == (complete, complete)
        assert not ends & bits(state.allowed(NOTHING, NOTHING).result())


def test_special_tokens_are_never_part_of_the_text(vocabulary: Vocabulary) -> None:
    special = vocabulary.tokenizer.special_token_ids
    assert special
    assert not special & bits(vocabulary.start(Regex(r"(?s:.)*x")).allowed(NOTHING, NOTHING).result())


def test_the_text_of_a_special_token_is_spelt_with_ordinary_ones(vocabulary: Vocabulary) -> None:
    constraint = vocabulary.compile(Choice(("<|im_end|>", "<b>")))
    texts = set()
    for seed in range(10):
        output = walk(constraint.start(), vocabulary.ends, random.Random(seed), most_tokens=20)
        assert output is not None
        assert not vocabulary.tokenizer.special_token_ids & set(output)
        texts.add(vocabulary.tokenizer.decode(output))
    assert texts == {"<|im_end|>", "<b>"}


def test_what_is_unwanted_is_left_out_where_anything_else_is_possible(vocabulary: Vocabulary) -> None:
    (x, y) = (vocabulary.tokenizer.encode(text, add_special_tokens=False)[0] for text in "xy")
    ends = vocabulary.ends
    one_letter = vocabulary.start(Regex("[xy]z?"))
    assert bits(one_letter.allowed(ends, ends | {x}).result()) == {y}
    assert bits(one_letter.allowed(ends, ends | {x, y}).result()) == {x, y}
    may_go_on = vocabulary.start(Regex("xy?"), "x")
    assert bits(may_go_on.allowed(ends, ends).result()) == {y}
    complete = vocabulary.start(Regex("x"), "x")
    assert bits(complete.allowed(ends, ends).result()) == ends


def test_nothing_is_allowed_after_a_token_that_was_not(vocabulary: Vocabulary) -> None:
    state = vocabulary.start(Regex("[ab]+"))
    state.advance(vocabulary.tokenizer.encode("7", add_special_tokens=False)[0])
    assert state.failure is not None
    assert bits(state.allowed(vocabulary.ends, NOTHING).result()) == set()
    assert not state.is_instance()
    assert not state.is_complete()


def test_what_only_a_special_token_could_continue_is_a_failure(vocabulary: Vocabulary) -> None:
    state = vocabulary.start(Grammar('start: "a" "<|im_end|>"'), "a")
    assert bits(state.allowed(vocabulary.ends, NOTHING).result()) == set()
    assert state.failure == "no token of the vocabulary continues it"


def test_states_of_one_constraint_are_independent(vocabulary: Vocabulary) -> None:
    constraint = vocabulary.compile(Choice(("ab", "cd")))
    (a, b, c) = (vocabulary.tokenizer.encode(text, add_special_tokens=False)[0] for text in "abc")
    first, second = constraint.start(), constraint.start()
    first.advance(a)
    second.advance(c)
    assert bits(first.allowed(NOTHING, NOTHING).result()) == {b}
    assert {a, c} <= bits(constraint.start().allowed(NOTHING, NOTHING).result())
    assert second.failure is None


def test_no_id_beyond_the_tokenizers_own_is_allowed(served: Served, tokenizer: TransformersTokenizer) -> None:
    padded = served.model.description.vocabulary_size + 77
    state = constraint_compiler(tokenizer, with_vocabulary_of(served, padded)).compile(Regex(r"(?s:.)*x")).start()
    mask = state.allowed(NOTHING, NOTHING).result()
    assert len(mask) == -(-padded // 8)
    assert max(bits(mask)) <= tokenizer.highest_token_id


def test_a_bounded_number_of_constraints_is_kept_those_used_last(
    served: Served, tokenizer: TransformersTokenizer
) -> None:
    kept = compiler(served, tokenizer)
    first, second = Choice(("first",)), Choice(("second",))
    compiled = kept.compile(first)
    kept.compile(second)
    assert kept.cached(Choice(("first",))) is compiled
    for i in range(MAX_CACHED - 1):
        kept.compile(Choice((str(i),)))
    assert kept.cached(first) is compiled
    assert kept.cached(second) is None
    assert kept.cached(Regex("first")) is None


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The grammars that were compiled on trial."""
    tried: list[str] = []

    def count(grammar: str, limits: TrialLimits) -> None:
        tried.append(grammar)
        try_compiling(grammar, limits)

    monkeypatch.setattr(constraints, "try_compiling", count)
    return tried


def test_a_source_that_was_refused_costs_its_trial_once(
    served: Served, tokenizer: TransformersTokenizer, trials: list[str]
) -> None:
    kept = compiler(served, tokenizer, TrialLimits(seconds=1.0))
    slow = JsonSchema('{"type": "integer", "multipleOf": 99999989}')
    assert kept.cached(slow) is None
    for ask in (kept.compile, kept.cached, kept.compile):
        with pytest.raises(InvalidArgument, match=r"^constraint\.json_schema .* takes more than 1 s") as refusal:
            ask(slow)
        assert len(list(traceback.walk_tb(refusal.value.__traceback__))) < 10
    assert len(trials) == 1


def test_a_bounded_number_of_refusals_is_kept_and_none_in_place_of_what_compiled(
    served: Served, tokenizer: TransformersTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(grammar: str, limits: TrialLimits) -> None:
        raise TrialFailed("too much")

    kept = compiler(served, tokenizer)
    compiled = kept.compile(Choice(("good",)))
    monkeypatch.setattr(constraints, "try_compiling", refuse)
    for i in range(MAX_REFUSALS + 1):
        with pytest.raises(InvalidArgument, match="too much"):
            kept.compile(Choice((str(i),)))
    assert kept.cached(Choice(("0",))) is None
    with pytest.raises(InvalidArgument, match="too much"):
        kept.cached(Choice(("1",)))
    assert kept.cached(Choice(("good",))) is compiled


@pytest.mark.parametrize("source", [Choice(("good",)), JsonSchema("false")], ids=["compiled", "refused"])
def test_equal_sources_at_the_same_time_are_compiled_once(
    served: Served, tokenizer: TransformersTokenizer, monkeypatch: pytest.MonkeyPatch, source: ConstraintSource
) -> None:
    tried: list[str] = []
    all_asked = threading.Event()

    def hold(grammar: str, limits: TrialLimits) -> None:
        tried.append(grammar)
        assert all_asked.wait(60)

    monkeypatch.setattr(constraints, "try_compiling", hold)
    kept = compiler(served, tokenizer)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(kept.compile, source) for _ in range(4)]
        all_asked.set()
        outcomes = {one.result() if one.exception() is None else str(one.exception()) for one in asked}
    assert len(outcomes) == 1
    assert len(tried) == 1


def test_a_mistake_while_compiling_is_told_and_not_kept(
    served: Served, tokenizer: TransformersTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(grammar: str, limits: TrialLimits) -> None:
        raise OSError("no more processes")

    kept = compiler(served, tokenizer)
    monkeypatch.setattr(constraints, "try_compiling", fail)
    with pytest.raises(OSError, match="no more processes"):
        kept.compile(JsonObject())
    monkeypatch.undo()
    assert kept.compile(JsonObject()) is kept.cached(JsonObject())


def test_a_tokenizer_that_the_library_cannot_read_refuses_every_constraint_with_the_reason(served: Served) -> None:
    refusing = constraint_compiler(TransformersTokenizer(word_level_tokenizer()), with_vocabulary_of(served, 300))
    assert refusing.cached(JsonObject()) is None
    with pytest.raises(InvalidArgument, match=r"constraint\.json_object is set: this model's tokenizer cannot be"):
        refusing.compile(JsonObject())


def test_a_grammar_too_ambiguous_to_follow_becomes_a_failure_with_the_reason(vocabulary: Vocabulary) -> None:
    state = vocabulary.compile(Grammar('start: e\ne: e e e | e e | "a" | ')).start()
    (a,) = vocabulary.tokenizer.encode("a", add_special_tokens=False)
    while bits(state.allowed(vocabulary.ends, NOTHING).result()):
        state.advance(a)
    assert state.failure is not None
    assert "items" in state.failure
    assert "\n" not in state.failure
    assert not state.is_complete()


def test_an_object_of_many_properties_that_are_not_required_can_be_followed(vocabulary: Vocabulary) -> None:
    properties = {f"p{i}": {"type": "integer"} for i in range(230)}
    source = JsonSchema(json.dumps({"type": "object", "properties": properties, "additionalProperties": False}))
    assert vocabulary.accepts(source, '{"p3": 1, "p229": 2}')
    assert not vocabulary.accepts(source, '{"p230": 1}')
