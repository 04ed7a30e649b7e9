"""Constraints by llguidance: https://github.com/guidance-ai/llguidance. Its matchers work over the model's vocabulary.

Where a constraint leaves one way for the text to go on, llguidance allows only the tokens that the tokenizer itself
would make of it.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

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
from server.model.constraint_trial import TrialFailed, TrialLimits, on_deep_stack, parser_limits, try_compiling
from server.model.tokenizer import TransformersTokenizer

MAX_CACHED = 64
"""Compiled constraints that are kept, those used last."""
MAX_COMPILING = 2
"""Constraints that are compiled at once; each may take TrialLimits.memory meanwhile."""
MASK_WORKERS = 2

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
    return LLGuidanceCompiler(llguidance_tokenizer, size, not_text)


class NoConstraints:
    """A ConstraintCompiler that refuses every source."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def compile(self, source: ConstraintSource) -> Constraint:
        raise _refusal(source, f"this model's tokenizer cannot be constrained: {self._reason}")


class LLGuidanceCompiler:
    """The engine's ConstraintCompiler. Keeps MAX_CACHED compiled constraints."""

    def __init__(
        self,
        tokenizer: LLTokenizer,
        vocabulary_size: int,
        not_text: Set[int],
        limits: TrialLimits = TrialLimits(),  # noqa: B008  # frozen
    ) -> None:
        text_ids = (1 << vocabulary_size) - 1 & ~_bits(not_text)
        self._vocabulary = _Vocabulary(tokenizer, vocabulary_size, text_ids)
        self._limits = limits
        self._workers = ThreadPoolExecutor(MASK_WORKERS, thread_name_prefix="mask")
        self._compiling = threading.Semaphore(MAX_COMPILING)
        self._cache: OrderedDict[ConstraintSource, _Compiled] = OrderedDict()
        self._cache_lock = threading.Lock()

    def compile(self, source: ConstraintSource) -> Constraint:
        with self._cache_lock:
            if source in self._cache:
                self._cache.move_to_end(source)
                return self._cache[source]
        with self._compiling:
            compiled = _Compiled(self._matcher(source), self._vocabulary, self._workers)
        with self._cache_lock:
            self._cache[source] = compiled
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return compiled

    def _matcher(self, source: ConstraintSource) -> LLMatcher:
        """Raises InvalidArgument."""
        try:
            grammar = _llguidance_grammar(source)
            try_compiling(grammar, self._limits)
        except (ValueError, TrialFailed) as error:
            raise _refusal(source, _reason(str(error))) from error
        limits, tokenizer = parser_limits(), self._vocabulary.tokenizer
        matcher = on_deep_stack(lambda: LLMatcher(tokenizer, grammar, log_level=0, limits=limits))
        if matcher.is_error():
            raise _refusal(source, _reason(matcher.get_error()))
        # A schema may ask llguidance to warn of what it does not support, and go on without.
        if warnings := matcher.get_grammar_warnings():
            raise _refusal(source, _reason(warnings[0]))
        if not _Following.of(matcher.deep_copy(), self._vocabulary).text:
            raise _refusal(source, "no text, or only the empty one, is an instance of it")
        return matcher


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    tokenizer: LLTokenizer
    size: int
    text_ids: int
    """Bit i for id i where it may be part of a constrained text."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The engine's Constraint. Its matcher is at the beginning, and only ever copied."""

    matcher: LLMatcher
    vocabulary: _Vocabulary
    workers: ThreadPoolExecutor

    def start(self) -> ConstraintState:
        return _State(self.matcher.deep_copy(), self.vocabulary, self.workers)


@dataclass(frozen=True, slots=True)
class _Following:
    """What may follow an output."""

    text: int
    """Bit i where id i continues it."""
    is_instance: bool
    """Whether it may end here."""

    @classmethod
    def of(cls, matcher: LLMatcher, vocabulary: _Vocabulary) -> "_Following":
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        return cls(mask & vocabulary.text_ids, matcher.is_accepting())


class _State:
    """The engine's ConstraintState."""

    def __init__(self, matcher: LLMatcher, vocabulary: _Vocabulary, workers: ThreadPoolExecutor) -> None:
        self.failure: str | None = None
        self._matcher, self._vocabulary, self._workers = matcher, vocabulary, workers
        self._known: _Following | None = None

    def allowed(self, end_token_ids: Set[int], unwanted: Set[int]) -> "Future[bytes]":
        return self._workers.submit(self._allowed, end_token_ids, unwanted)

    def advance(self, token_id: int) -> None:
        self._known = None
        if self.failure is None and not self._matcher.consume_token(token_id):
            self.failure = f"token {token_id} does not continue it"

    def is_instance(self) -> bool:
        return self._following().is_instance

    def is_complete(self) -> bool:
        following = self._following()
        return following.is_instance and not following.text

    def _allowed(self, end_token_ids: Set[int], unwanted: Set[int]) -> bytes:
        following = self._following()
        possible = following.text | (_bits(end_token_ids) if following.is_instance else 0)
        chosen = possible & ~_bits(unwanted) or possible
        if not chosen and self.failure is None:
            self.failure = "no token of the vocabulary continues it"
        return chosen.to_bytes(-(-self._vocabulary.size // 8), "little")

    def _following(self) -> _Following:
        if self._known is None:
            self._known = _Following(0, is_instance=False) if self.failure else self._compute()
        return self._known

    def _compute(self) -> _Following:
        try:
            following = _Following.of(self._matcher, self._vocabulary)
        except BaseException as error:  # a panic in Rust is no Exception, and must not end the scheduler
            self.failure = f"the matcher failed: {type(error).__name__}"
            return _Following(0, is_instance=False)
        if not following.text and not following.is_instance and not self._matcher.stop_reason().startswith("NoExt"):
            self.failure = _reason(self._matcher.get_error())
        return following


def _llguidance_grammar(source: ConstraintSource) -> str:
    match source:
        case JsonSchema():
            return LLMatcher.grammar_from_json_schema(source.text)
        case JsonObject():
            return LLMatcher.grammar_from_json_schema('{"type": "object"}')
        case Regex():
            return LLMatcher.grammar_from_regex(source.text)
        case Grammar():
            return LLMatcher.grammar_from_lark(source.text)
        case Choice():
            # A string of Lark is written as one of JSON.
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, source.choices)))


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


def _reason(message: str) -> str:
    """The reason in one line of bounded length, without the excerpts of the source that llguidance adds."""
    stated = re.search(r"^error: (.*)$", message, re.MULTILINE)
    lines = [line.strip() for line in message.splitlines() if not CONTEXT_LINE.fullmatch(line)]
    reason = stated.group(1) if stated else " ".join(lines)
    return reason if len(reason) <= MAX_REASON_LENGTH else reason[: MAX_REASON_LENGTH - 1] + "…"
