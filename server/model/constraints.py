"""Constraints by llguidance: https://github.com/guidance-ai/llguidance. Its matchers work over the model's vocabulary.

Where a constraint leaves one way for the text to go on, llguidance allows only the tokens that the tokenizer itself
would make of it. Where that way is the text of a special token, none of them is left, and the constraint fails.
"""

import json
import re
import threading
from collections.abc import Iterable, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLTokenizer

from server.engine.constraint import (
    Choice,
    Constraint,
    ConstraintCompiler,
    ConstraintSource,
    ConstraintState,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
)
from server.engine.errors import InvalidArgument
from server.engine.model import ModelDescription
from server.model.constraint_trial import PARSER_LIMITS, TrialFailed, TrialLimits, try_compiling
from server.model.lark_text import check_supported
from server.model.recently_used import RecentlyUsed
from server.model.tokenizer import TransformersTokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # in the library's stub alone

MAX_CACHED = 64
"""Compiled constraints that are kept, those used last."""
MAX_REFUSALS = 256
"""Sources that were refused and whose refusals are kept, those that came last: each costs its seconds once."""
MASK_WORKERS = 2

JSON_OPTIONS: "JsonCompileOptions" = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r"[ \n\r\t]{1,40}",
    "coerce_one_of": False,
    "lenient": False,
}
"""In place of what a schema sets in "x-guidance", which is no part of JSON Schema and could make the output no JSON.
Whitespace is bounded because a small model may otherwise write nothing else."""

MAX_SHOWN_LENGTH = 60
MAX_REASON_LENGTH = 300
CONTEXT_LINE = re.compile(r"\s*(\d+ \|.*|\^+|<non-verbose/>)?")
"""In llguidance's messages: where in the source something is."""


def constraint_compiler(tokenizer: TransformersTokenizer, description: ModelDescription) -> ConstraintCompiler:
    """One that refuses everything, with the reason, for a tokenizer that llguidance cannot read."""
    special, size = tokenizer.special_token_ids, description.vocabulary_size
    # llguidance wants an end; which one is of no matter, since special tokens are masked here.
    ends = sorted(description.eos_token_ids or special) or None
    try:
        llguidance_tokenizer = LLTokenizer(tokenizer.definition, n_vocab=size, eos_token=ends)
    except ValueError as error:
        return NoConstraints(_reason(str(error)))
    not_text = special | frozenset(llguidance_tokenizer.eos_tokens)
    return LLGuidanceCompiler(llguidance_tokenizer, not_text)


class NoConstraints:
    """A ConstraintCompiler that refuses every source."""

    can_compile = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def cached(self, source: ConstraintSource) -> None:  # noqa: ARG002  # the protocol has it
        return None

    def compile(self, source: ConstraintSource) -> Constraint:
        raise _refusal(source, f"this model's tokenizer cannot be constrained: {self._reason}")


class LLGuidanceCompiler:
    """The engine's ConstraintCompiler. Keeps MAX_CACHED compiled constraints and MAX_REFUSALS refusals."""

    can_compile = True

    def __init__(
        self,
        tokenizer: LLTokenizer,
        not_text: Set[int],
        limits: TrialLimits = TrialLimits(),  # noqa: B008  # frozen
    ) -> None:
        self._tokenizer, self._limits = tokenizer, limits
        self._vocabulary = _Vocabulary(tokenizer.vocab_size, (1 << tokenizer.vocab_size) - 1 & ~_bits(not_text))
        self._workers = ThreadPoolExecutor(MASK_WORKERS, thread_name_prefix="mask")
        self._compiled: RecentlyUsed[ConstraintSource, _Compiled] = RecentlyUsed(MAX_CACHED)
        self._refusals: RecentlyUsed[ConstraintSource, _Refusal] = RecentlyUsed(MAX_REFUSALS)
        self._in_work: dict[ConstraintSource, Future[_Compiled | _Refusal]] = {}
        """As many as there are threads that compile."""
        self._lock = threading.Lock()

    def cached(self, source: ConstraintSource) -> Constraint | None:
        with self._lock:
            known = self._known(source)
        return None if known is None else _accepted(known)

    def compile(self, source: ConstraintSource) -> Constraint:
        with self._lock:
            known, elsewhere = self._known(source), self._in_work.get(source)
            if known is None and elsewhere is None:
                here = self._in_work[source] = Future()
        if known is None:
            known = self._work(source, here) if elsewhere is None else elsewhere.result()
        return _accepted(known)

    def _known(self, source: ConstraintSource) -> "_Compiled | _Refusal | None":
        return self._compiled.get(source) or self._refusals.get(source)

    def _work(self, source: ConstraintSource, future: "Future[_Compiled | _Refusal]") -> "_Compiled | _Refusal":
        """Compiles, and lets those know who wait for the future."""
        try:
            outcome = self._outcome(source)
        except BaseException as error:
            with self._lock:
                del self._in_work[source]
            future.set_exception(error)
            raise
        with self._lock:
            del self._in_work[source]
            if isinstance(outcome, _Compiled):
                self._compiled.put(source, outcome)
            else:
                self._refusals.put(source, outcome)
        future.set_result(outcome)
        return outcome

    def _outcome(self, source: ConstraintSource) -> "_Compiled | _Refusal":
        try:
            return _Compiled(self._matcher(source), self._vocabulary, self._workers)
        except InvalidArgument as error:
            return _Refusal(error.field, str(error.value), error.limit)

    def _matcher(self, source: ConstraintSource) -> LLMatcher:
        """At the beginning, and warm. Raises InvalidArgument."""
        try:
            grammar = _llguidance_grammar(source)
            try_compiling(grammar, self._limits)
        except (ValueError, TrialFailed) as error:
            raise _refusal(source, _reason(str(error))) from error
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=PARSER_LIMITS)
        text = self._vocabulary.text_that_continues(matcher)
        if reason := _error_of(matcher):
            raise _refusal(source, reason)
        # A schema within a grammar may ask llguidance to warn of what it does not support, and go on without.
        if warnings := matcher.get_grammar_warnings():
            raise _refusal(source, _reason(warnings[0]))
        if not text:
            raise _refusal(source, "no text, or only the empty one, is an instance of it")
        return matcher


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    size: int
    text_ids: int
    """Bit i for id i where it may be part of a constrained text."""

    def text_that_continues(self, matcher: LLMatcher) -> int:
        """Bit i where id i does. Nothing does after an error."""
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        return 0 if matcher.is_error() else mask & self.text_ids


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The engine's Constraint. Its matcher stays at the beginning, and is only ever copied."""

    matcher: LLMatcher
    vocabulary: _Vocabulary
    workers: ThreadPoolExecutor

    def start(self) -> ConstraintState:
        return _State(self.matcher.deep_copy(), self.vocabulary, self.workers)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a source is refused. Not the exception, which would hold on to what it was raised through."""

    field: str
    value: str
    limit: str


def _accepted(outcome: _Compiled | _Refusal) -> _Compiled:
    """Raises InvalidArgument where it is a refusal."""
    if isinstance(outcome, _Refusal):
        raise InvalidArgument(outcome.field, outcome.value, outcome.limit)
    return outcome


class _State:
    """The engine's ConstraintState."""

    def __init__(self, matcher: LLMatcher, vocabulary: _Vocabulary, workers: ThreadPoolExecutor) -> None:
        self.failure: str | None = None
        self._matcher, self._vocabulary, self._workers = matcher, vocabulary, workers

    def allowed(self, end_token_ids: Set[int], unwanted: Set[int]) -> "Future[bytes]":
        return self._workers.submit(self._allowed, end_token_ids, unwanted)

    def advance(self, token_id: int) -> None:
        if not self._matcher.consume_token(token_id):
            self.failure = _error_of(self._matcher) or "the last token does not continue it"

    def is_instance(self) -> bool:
        return self._matcher.is_accepting()

    def is_complete(self) -> bool:
        return self.is_instance() and not self._vocabulary.text_that_continues(self._matcher)

    def _allowed(self, end_token_ids: Set[int], unwanted: Set[int]) -> bytes:
        text = self._vocabulary.text_that_continues(self._matcher)
        possible = text | (_bits(end_token_ids) if self.is_instance() else 0)
        if not possible:
            self.failure = _error_of(self._matcher) or "no token of the vocabulary continues it"
        return (possible & ~_bits(unwanted) or possible).to_bytes(-(-self._vocabulary.size // 8), "little")


def _llguidance_grammar(source: ConstraintSource) -> str:
    match source:
        case JsonSchema():
            return _json_grammar(source.text)
        case JsonObject():
            return _json_grammar('{"type": "object"}')
        case Regex():
            return LLMatcher.grammar_from_regex(source.text)
        case Grammar():
            check_supported(source.text)
            # Named as Lark's, since llguidance takes a text that begins with a brace for a grammar in its own JSON.
            return json.dumps({"grammars": [{"lark_grammar": source.text}]})
        case Choice():
            # One terminal, and so one automaton, of strings, which Lark writes as JSON does.
            return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, source.choices)))


def _json_grammar(schema: str) -> str:
    # true and false are schemas too, and have no place for options.
    is_object = schema.lstrip().startswith("{")
    return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS if is_object else None)


def _bits(token_ids: Iterable[int]) -> int:
    bits = 0
    for token_id in token_ids:
        bits |= 1 << token_id
    return bits


def _refusal(source: ConstraintSource, reason: str) -> InvalidArgument:
    shown = getattr(source, "text", None)
    value = (
        "set" if shown is None else repr(shown if len(shown) <= MAX_SHOWN_LENGTH else shown[:MAX_SHOWN_LENGTH] + "…")
    )
    return InvalidArgument(source.field, value, reason)


def _error_of(matcher: LLMatcher) -> str | None:
    """What has gone wrong, other than that nothing can follow."""
    error = matcher.get_error()
    return _reason(error) if error and not error.startswith("NoExtension") else None


def _reason(message: str) -> str:
    """The reason in one line of bounded length, without the excerpts of the source that llguidance adds."""
    stated = re.search(r"^error: (.*)$", message, re.MULTILINE)
    lines = [line.strip() for line in message.splitlines() if not CONTEXT_LINE.fullmatch(line)]
    reason = stated.group(1) if stated else " ".join(lines)
    return reason if len(reason) <= MAX_REASON_LENGTH else reason[: MAX_REASON_LENGTH - 1] + "…"
