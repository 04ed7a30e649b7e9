"""A Chat: a conversation that a chat template puts into text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from server.engine.errors import InvalidArgument

ROLES = ("system", "user", "assistant", "tool")
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_TOOL_BYTES = 64 * 1024
"""Of the JSON text of a tool's parameters."""
MAX_TEMPLATE_BYTES = 64 * 1024

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
JsonObject: TypeAlias = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function by the model."""

    id: str
    """Empty where the client gave none."""
    name: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


def no_arguments() -> JsonObject:
    """The JSON Schema that transformers' get_json_schema gives a function without arguments."""
    return {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call."""

    name: str
    description: str = ""
    parameters: JsonObject = field(default_factory=no_arguments)
    """JSON Schema of its arguments, its keys in the client's order."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, oldest message first. Raises InvalidArgument where its parts do not go together."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    template_options: JsonObject = field(default_factory=dict)
    """Values for variables of the template."""
    continue_final_message: bool = False
    template: str | None = None
    """The request's own template, in place of the model's."""

    def __post_init__(self) -> None:
        if not self.messages:
            raise InvalidArgument("chat.messages", "empty", "must have at least 1 message")
        for i, message in enumerate(self.messages):
            _check_message(f"chat.messages[{i}]", message)
        self._check_call_ids()
        for i, tool in enumerate(self.tools):
            if not TOOL_NAME.fullmatch(tool.name):
                limit = 'must be 1 to 64 letters, digits, "_", "-" or "."'
                raise InvalidArgument(f"chat.tools[{i}].name", f'"{tool.name}"', limit)
        if self.continue_final_message:
            self._check_final_message()
        size = len((self.template or "").encode())
        if size > MAX_TEMPLATE_BYTES:
            raise InvalidArgument("chat.template", f"{size} bytes long", f"must be at most {MAX_TEMPLATE_BYTES}")

    def _check_call_ids(self) -> None:
        """Ids of calls are unique, and a tool's message answers a call before it. A call may go without an id."""
        known: set[str] = set()
        for i, message in enumerate(self.messages):
            for j, call in enumerate(message.tool_calls):
                if call.id in known:
                    path = f"chat.messages[{i}].tool_calls[{j}].id"
                    raise InvalidArgument(path, f'"{call.id}"', "must be unique in the conversation")
                known |= {call.id} - {""}
            if message.tool_call_id and message.tool_call_id not in known:
                limit = "must be the id of a tool call before it"
                raise InvalidArgument(f"chat.messages[{i}].tool_call_id", f'"{message.tool_call_id}"', limit)

    def _check_final_message(self) -> None:
        last, path = self.messages[-1], f"chat.messages[{len(self.messages) - 1}]"
        if last.role != "assistant":
            limit = "the last message must be the assistant's, to be continued"
            raise InvalidArgument("chat.continue_final_message", "true", limit)
        if last.tool_calls:
            limit = "must be empty in a message that is to be continued"
            raise InvalidArgument(f"{path}.tool_calls", f"{len(last.tool_calls)} long", limit)
        if not last.content.strip():
            raise InvalidArgument(f"{path}.content", "blank", "must have text that can be continued")


def _check_message(path: str, message: ChatMessage) -> None:
    if message.role not in ROLES:
        raise InvalidArgument(f"{path}.role", f'"{message.role}"', f"must be {_any_of(ROLES)}")
    if message.tool_calls and message.role != "assistant":
        limit = f'must be empty with the role "{message.role}": only the assistant calls tools'
        raise InvalidArgument(f"{path}.tool_calls", f"{len(message.tool_calls)} long", limit)
    if message.tool_call_id and message.role != "tool":
        limit = f'must be unset with the role "{message.role}": only a tool answers a call'
        raise InvalidArgument(f"{path}.tool_call_id", f'"{message.tool_call_id}"', limit)
    for j, call in enumerate(message.tool_calls):
        if not call.name:
            raise InvalidArgument(f"{path}.tool_calls[{j}].name", "empty", "must be the function's name")


def _any_of(texts: Sequence[str]) -> str:
    *first, last = (f'"{text}"' for text in texts)
    return f"{', '.join(first)} or {last}"
