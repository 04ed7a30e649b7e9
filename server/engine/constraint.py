"""Constraints: what an output must be an instance of, and the face of what follows an output token by token.

What a client asks for is one of the frozen dataclasses here. A ConstraintCompiler makes a Constraint of it once, and
each sequence follows its own output with a ConstraintState of that.
"""

from collections.abc import Set
from concurrent.futures import Future
from dataclasses import dataclass
from typing import ClassVar, Protocol

from server.engine.errors import InvalidArgument

MAX_SOURCE_BYTES = 64 * 1024
MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The output is a JSON value that is valid under this JSON Schema."""

    text: str
    field: ClassVar[str] = "constraint.json_schema"

    def __post_init__(self) -> None:
        _check_source(self.field, self.text)


@dataclass(frozen=True, slots=True)
class JsonObject:
    """The output is any JSON object."""

    field: ClassVar[str] = "constraint.json_object"


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole output matches this regular expression, in the syntax of Rust's regex crate."""

    text: str
    field: ClassVar[str] = "constraint.regex"

    def __post_init__(self) -> None:
        _check_source(self.field, self.text)


@dataclass(frozen=True, slots=True)
class Grammar:
    """The rule `start` of this grammar, in Lark's syntax, derives the whole output."""

    text: str
    field: ClassVar[str] = "constraint.grammar"

    def __post_init__(self) -> None:
        _check_source(self.field, self.text)


@dataclass(frozen=True, slots=True)
class Choice:
    """The output is one of these texts."""

    choices: tuple[str, ...]
    field: ClassVar[str] = "constraint.choice"

    def __post_init__(self) -> None:
        if not 1 <= len(self.choices) <= MAX_CHOICES:
            raise InvalidArgument(self.field, f"{len(self.choices)} choices", f"must be from 1 to {MAX_CHOICES}")
        if "" in self.choices:
            raise InvalidArgument(f"{self.field}.choices[{self.choices.index('')}]", "empty", "must have a character")
        size = sum(len(choice.encode()) for choice in self.choices)
        if size > MAX_SOURCE_BYTES:
            raise InvalidArgument(self.field, f"{size} bytes long in all", f"must be at most {MAX_SOURCE_BYTES}")


ConstraintSource = JsonSchema | JsonObject | Regex | Grammar | Choice


class ConstraintState(Protocol):
    """Follows one output. Used by one thread; `allowed` alone works on another one."""

    @property
    def failure(self) -> str | None:
        """Why nothing is allowed any more, where that is not the end; in words for the client."""
        ...

    def allowed(self, end_token_ids: Set[int], unwanted: Set[int]) -> "Future[bytes]":
        """The ids that may come next: bit `i % 8` of byte `i // 8` for id i, over the whole vocabulary.

        They are those of text that goes on with an instance, no special one among them, and `end_token_ids` where the
        output is an instance as it is. Of these the `unwanted` are left out where any other is left. Computed on a
        thread of the constraint's own, never raising: after a failure nothing is allowed. Neither method below may be
        called until it is done.
        """
        ...

    def advance(self, token_id: int) -> None:
        """Takes the next token of the output, one of text that was allowed."""
        ...

    def is_instance(self) -> bool:
        """Whether the output is an instance as it is."""
        ...

    def is_complete(self) -> bool:
        """Whether the output is an instance that no further text makes another."""
        ...


class Constraint(Protocol):
    """Compiled. May be shared by threads and requests."""

    def start(self) -> ConstraintState: ...


class ConstraintCompiler(Protocol):
    """Safe to use from several threads."""

    @property
    def can_compile(self) -> bool:
        """Whether it compiles anything at all; it cannot for some tokenizers."""
        ...

    def cached(self, source: ConstraintSource) -> Constraint | None:
        """What was compiled of an equal source before, at once, where it is still kept.

        Raises InvalidArgument, as `compile` did, where an equal source was refused before and that is still known.
        """
        ...

    def compile(self, source: ConstraintSource) -> Constraint:
        """Takes as long as its limits allow: a tenth of a second, or seconds before it is refused.

        Equal sources that come at the same time, or again, are compiled once.

        Raises InvalidArgument with the reason where the source is not understood, not supported, has no instance but
        the empty text, or takes too much time or memory to compile.
        """
        ...


def _check_source(field: str, text: str) -> None:
    size = len(text.encode())
    if not 1 <= size <= MAX_SOURCE_BYTES:
        raise InvalidArgument(field, f"{size} bytes long", f"must be from 1 to {MAX_SOURCE_BYTES}")
