"""A conversation, as `generate(chat=...)` takes it, and the functions that the model may call in it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str = ""
    """What it does, for the model to read."""
    parameters: Mapping[str, Any] | str | None = None
    """JSON Schema of its arguments, an object, or its JSON text; its keys keep their order. None: no arguments."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function by the model."""

    id: str
    """Unique in the conversation."""
    name: str
    """The function's."""
    arguments_json: str
    """A JSON object."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Raises json.JSONDecodeError where `arguments_json` is not JSON."""
        arguments: dict[str, Any] = json.loads(self.arguments_json)
        return arguments


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: Role
    content: str
    tool_calls: Sequence[ToolCall | Mapping[str, str]] = ()
    """The calls that an assistant's message made; a mapping has the names of ToolCall's fields."""
    tool_call_id: str | None = None
    """Which call a tool's message answers."""


Chat: TypeAlias = Sequence[ChatMessage | Mapping[str, Any]]
"""Oldest message first; a mapping has the names of ChatMessage's fields."""
