"""What an output must be an instance of, as `generate(constraint=...)` takes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON value that is valid under this schema."""

    schema: Mapping[str, Any] | str | bool
    """The schema, or its JSON text."""


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Any JSON object."""


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that this regular expression matches whole."""

    pattern: str
    """In the syntax of Rust's regex crate."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A text that the rule `start` of this context-free grammar derives."""

    lark: str
    """In the syntax of Lark."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these texts."""

    choices: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.choices, str):
            raise TypeError(f"choices is {self.choices!r}: must be a sequence of texts, not one text")


Constraint: TypeAlias = JsonSchema | JsonObject | Regex | Grammar | Choice
