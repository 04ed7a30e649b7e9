"""A Model and a Tokenizer for engine tests: no torch, no weights, and an oracle for every token."""

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field

from server.engine.chat import Chat
from server.engine.constraint import Choice, Constraint, ConstraintSource
from server.engine.errors import InvalidArgument
from server.engine.model import ModelDescription, SamplingDefaults
from server.engine.plan import (
    Alternative,
    Draw,
    Drawn,
    Fault,
    LogitBias,
    Penalties,
    Span,
    StepOutcome,
    StepPlan,
    TokenLogprob,
)
from server.engine.tokenizer import TokenizerFile

EOS = 256
BOS = 257
VOCABULARY_SIZE = 260
GREEDY = Draw(temperature=0, top_k=0, top_p=1.0, uniform=0.0)


def next_token(token_ids: Sequence[int], draw: Draw) -> int:
    """The fake model's rule: a hash of all tokens so far, of penalties and bias and, when sampling, of the uniform.

    The next id that may be chosen is; one that may not where none may.
    """
    key = struct.pack(f"<{len(token_ids)}I", *token_ids) + _weight_key(draw.penalties, draw.bias)
    if draw.temperature > 0:
        key += struct.pack("<3d", draw.uniform, draw.min_p, draw.typical_p)
    token_id = _hash(key) % VOCABULARY_SIZE
    may = may_be_chosen(draw)
    while may and token_id not in may:
        token_id = (token_id + 1) % VOCABULARY_SIZE
    return token_id


def may_be_chosen(draw: Draw) -> set[int]:
    allowed = None if draw.allowed is None else draw.allowed.result()
    ids = range(VOCABULARY_SIZE)
    return {i for i in ids if allowed is None or allowed[i // 8] >> i % 8 & 1} - set(draw.forbidden_token_ids)


def logprob_of(token_ids: Sequence[int], token_id: int, alternatives: int, *, processed: bool = False) -> TokenLogprob:
    """Invented: a number for a token after these tokens, which differs with all of them."""
    key = struct.pack(f"<{len(token_ids)}II?", *token_ids, token_id, processed)
    told = tuple(Alternative(i, -float(i + 1)) for i in range(alternatives))
    return TokenLogprob(token_id, -(_hash(key) % 1000) / 100, 1 + _hash(key) % 7, told)


def _weight_key(penalties: Penalties | None, bias: LogitBias | None) -> bytes:
    counted = None if penalties is None else sorted(zip(penalties.token_ids, penalties.output_counts, strict=True))
    strengths = None if penalties is None else (penalties.repetition, penalties.frequency, penalties.presence)
    weighed = None if bias is None else sorted(zip(bias.token_ids, bias.values, strict=True))
    return repr((strengths, counted, weighed)).encode()


def _hash(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def describe(kv_block_count: int = 64, kv_block_size: int = 4, context_length: int = 128) -> ModelDescription:
    return ModelDescription(
        id="fake",
        architecture="FakeForCausalLM",
        context_length=context_length,
        vocabulary_size=VOCABULARY_SIZE,
        weight_type="none",
        device="cpu",
        bos_token_id=BOS,
        eos_token_ids=frozenset({EOS}),
        pad_token_id=None,
        kv_block_size=kv_block_size,
        kv_block_count=kv_block_count,
        sampling_defaults=SamplingDefaults(temperature=0.0, top_k=0, top_p=1.0, sampled_temperature=1.0),
        default_max_new_tokens=None,
    )


@dataclass
class FakeModel:
    """Keeps each computed token where its key and value would be, and reads all of a sequence's tokens back from there.

    A block given to two sequences, lost or left unwritten therefore changes tokens, as it would in a real KV cache.
    `before_step` may raise, wait or count.
    """

    description: ModelDescription = field(default_factory=describe)
    before_step: Callable[[StepPlan], None] = lambda plan: None
    choose: Callable[[Sequence[int], Draw], int] = next_token
    plans: list[StepPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._kv: dict[int, int] = {}

    def step(self, plan: StepPlan) -> StepOutcome:
        self.plans.append(plan)
        self.before_step(plan)
        assert len({span.slot for span in plan.spans}) == len(plan.spans)
        drawn = tuple(self._compute(span) for span in plan.spans)
        told = {span.slot: self._tell_prompt(span) for span in plan.spans if span.prompt_logprobs is not None}
        return StepOutcome(drawn, told)

    def warm_up(self) -> None:
        pass

    def _compute(self, span: Span) -> Drawn | Fault | None:
        assert span.token_ids
        for i, token_id in enumerate(span.token_ids):
            self._kv[self._place(span, span.start + i)] = token_id
        if span.draw is None:
            return None
        seen, draw = self._read(span, span.start + len(span.token_ids)), span.draw
        if not may_be_chosen(draw):
            return Fault("every token is forbidden", by_request=True)
        token_id, told = self.choose(seen, draw), None
        if draw.logprobs is not None:
            told = logprob_of(seen, token_id, draw.logprobs.alternatives, processed=draw.logprobs.processed)
        return Drawn(token_id, told, logprob_of(seen, token_id, 0).logprob if draw.own_logprob else None)

    def _tell_prompt(self, span: Span) -> tuple[TokenLogprob, ...]:
        wanted = span.prompt_logprobs
        assert wanted is not None
        first = span.start + wanted.first + 1
        assert first + len(wanted.successors) <= span.start + len(span.token_ids) + 1
        return tuple(
            logprob_of(self._read(span, i), successor, wanted.alternatives)
            for i, successor in enumerate(wanted.successors, start=first)
        )

    def _read(self, span: Span, count: int) -> list[int]:
        """The sequence's first tokens, as the cache has them."""
        return [self._kv[self._place(span, i)] for i in range(count)]

    def _place(self, span: Span, position: int) -> int:
        size = self.description.kv_block_size
        block_id = span.block_ids[position // size]
        assert 0 <= block_id < self.description.kv_block_count
        return block_id * size + position % size


class FakeTokenizer:
    """One token a byte, as ids 0 to 255; the ids above are special."""

    special_token_ids = frozenset(range(256, VOCABULARY_SIZE))
    byte_fallback_ids: frozenset[int] = frozenset()
    has_chat_template = True
    takes_tools = False
    allows_request_templates = False

    def files(self) -> tuple[TokenizerFile, ...]:
        return (TokenizerFile("tokenizer.json", b"{}" * 50_000),)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [BOS] * add_special_tokens + list(text.encode())

    def decode(self, token_ids: Sequence[int], *, keep_special_tokens: bool = False) -> str:
        shown = [i for i in token_ids if keep_special_tokens or i not in self.special_token_ids]
        return b"".join(map(self.token_bytes, shown)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else f"<{token_id}>".encode()

    longest_token_bytes = 5

    def token_text(self, token_id: int) -> str:
        return self.decode([token_id], keep_special_tokens=True)

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        return [self.decode([i], keep_special_tokens=True) for i in token_ids]

    def render_chat(self, chat: Chat) -> str:
        if chat.messages[0].role == "assistant":
            raise InvalidArgument("chat.messages", "assistant first", "the chat template refuses: a user must begin")
        if chat.tools:
            raise InvalidArgument("chat.tools", f"{len(chat.tools)} long", "the chat template takes no tools")
        text = "".join(f"{m.role}: {m.content}\n" for m in chat.messages)
        return text.removesuffix("\n") if chat.continue_final_message else text + "assistant: "


@dataclass
class FakeConstraints:
    """A ConstraintCompiler for the fake tokenizer, of choices alone. `before_compiling` may raise, wait or count."""

    can_compile: bool = True
    before_compiling: Callable[[ConstraintSource], None] = lambda source: None
    compiled: dict[ConstraintSource, Constraint] = field(default_factory=dict)

    def cached(self, source: ConstraintSource) -> Constraint | None:
        return self.compiled.get(source)

    def compile(self, source: ConstraintSource) -> Constraint:
        if not self.can_compile:
            raise InvalidArgument(source.field, "set", "the fake takes none")
        if not isinstance(source, Choice):
            raise InvalidArgument(source.field, "set", "the fake takes only choices")
        self.before_compiling(source)
        return self.compiled.setdefault(source, _FakeConstraint(tuple(choice.encode() for choice in source.choices)))


@dataclass(frozen=True)
class _FakeConstraint:
    choices: tuple[bytes, ...]

    def start(self) -> "_FakeConstraintState":
        return _FakeConstraintState(self.choices)


@dataclass
class _FakeConstraintState:
    choices: tuple[bytes, ...]
    output: bytes = b""
    failure: str | None = None

    def allowed(self, end_token_ids: Set[int], unwanted: Set[int]) -> "Future[bytes]":
        following = self._following() | (end_token_ids if self.output in self.choices else set())
        mask: Future[bytes] = Future()
        mask.set_result(_bits(following - unwanted or following))
        return mask

    def advance(self, token_id: int) -> None:
        self.output += bytes([token_id])

    def is_instance(self) -> bool:
        return self.output in self.choices

    def is_complete(self) -> bool:
        return self.is_instance() and not self._following()

    def _following(self) -> set[int]:
        size = len(self.output)
        return {choice[size] for choice in self.choices if choice.startswith(self.output) and len(choice) > size}


def _bits(token_ids: Iterable[int]) -> bytes:
    return sum(1 << token_id for token_id in token_ids).to_bytes(-(-VOCABULARY_SIZE // 8), "little")
