"""Chats from messages to the engine's dataclasses, and from there to text.

Raises InvalidArgument naming the field as the client knows it.
"""

import json
import math
from collections.abc import Iterable
from typing import NoReturn

from google.protobuf.struct_pb2 import Struct, Value
from treadle.v1 import generation_pb2 as pb

from server.engine.chat import (
    MAX_MESSAGES,
    MAX_TOOL_BYTES,
    MAX_TOOLS,
    Chat,
    ChatMessage,
    JsonObject,
    JsonValue,
    Tool,
    ToolCall,
    no_arguments,
)
from server.engine.errors import InvalidArgument, TemplateNotAllowed
from server.engine.tokenizer import Tokenizer

MAX_SHOWN_NAME = 64
"""Characters of a client's name that stand in the path of a field."""
MAX_EXACT_INTEGER = 2**53
"""Up to here every whole number is exact as the double that Struct has."""


def rendered_chat(message: pb.Chat, tokenizer: Tokenizer) -> str:
    """The text of the conversation by its template.

    Also raises TemplateNotAllowed, and what `Tokenizer.render_chat` raises.
    """
    if message.template and not tokenizer.allows_request_templates:
        raise TemplateNotAllowed("chat.template is set: this server takes no templates of requests")
    return tokenizer.render_chat(chat(message))


def chat(message: pb.Chat) -> Chat:
    for field, count, limit in (
        ("chat.messages", len(message.messages), MAX_MESSAGES),
        ("chat.tools", len(message.tools), MAX_TOOLS),
    ):
        if count > limit:
            raise InvalidArgument(field, f"{count} long", f"must be at most {limit}")
    return Chat(
        messages=tuple(_message(f"chat.messages[{i}]", part) for i, part in enumerate(message.messages)),
        tools=tuple(_tool(f"chat.tools[{i}]", part) for i, part in enumerate(message.tools)),
        template_options=_template_options(message.template_options),
        continue_final_message=message.continue_final_message,
        template=message.template or None,
    )


def _message(path: str, message: pb.ChatMessage) -> ChatMessage:
    calls = (
        ToolCall(call.id, call.name, _json_object(f"{path}.tool_calls[{j}].arguments_json", call.arguments_json))
        for j, call in enumerate(message.tool_calls)
    )
    return ChatMessage(message.role, message.content, tuple(calls), message.tool_call_id)


def _tool(path: str, message: pb.Tool) -> Tool:
    if not message.parameters_json:
        return Tool(message.name, message.description, no_arguments())
    field, size = f"{path}.parameters_json", len(message.parameters_json.encode())
    if size > MAX_TOOL_BYTES:
        raise InvalidArgument(field, f"{size} bytes long", f"must be at most {MAX_TOOL_BYTES}")
    return Tool(message.name, message.description, _json_object(field, message.parameters_json))


def _json_object(field: str, text: str) -> JsonObject:
    """Its keys in the order of the text. What a template could not show as it was written is refused."""
    try:
        value = json.loads(
            text, object_pairs_hook=_object_of, parse_constant=_refuse_constant, parse_float=_finite_float
        )
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InvalidArgument(field, "not JSON", f"{error.msg} at character {error.pos}") from error
    except UnicodeEncodeError as error:
        raise InvalidArgument(field, "not Unicode", "must have no half of a surrogate pair") from error
    except RecursionError as error:
        raise InvalidArgument(field, "nested too deeply", "must be nested less deeply") from error
    except ValueError as error:
        raise InvalidArgument(field, "not usable JSON", str(error)) from error
    if not isinstance(value, dict):
        raise InvalidArgument(field, "no JSON object", "must be a JSON object")
    return value


def _object_of(pairs: Iterable[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    members: dict[str, JsonValue] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f'the key "{_shown(name)}" must appear once in its object')
        members[name] = value
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("its numbers must be within the range of a double")
    return number


def _template_options(message: Struct) -> JsonObject:
    """In the order of their names: a Struct keeps none."""
    options = {}
    for name in sorted(message.fields):
        try:
            options[name] = _json_value(message.fields[name])
        except ValueError as error:
            raise InvalidArgument(f"chat.template_options.fields[{_shown(name)}]", "set", str(error)) from error
    return options


def _json_value(message: Value) -> JsonValue:
    """A whole number is an int, as `range` and the like take it. Raises ValueError for what JSON cannot be."""
    match message.WhichOneof("kind"):
        case "null_value":
            return None
        case "bool_value":
            return message.bool_value
        case "string_value":
            return message.string_value
        case "number_value":
            return _number(message.number_value)
        case "list_value":
            return [_json_value(part) for part in message.list_value.values]
        case "struct_value":
            members = message.struct_value.fields
            return {name: _json_value(members[name]) for name in sorted(members)}
        case _:
            raise ValueError("must have a kind in each of its values")


def _number(number: float) -> int | float:
    if not math.isfinite(number):
        raise ValueError("must have only finite numbers")
    return int(number) if number.is_integer() and abs(number) <= MAX_EXACT_INTEGER else number


def _shown(name: str) -> str:
    return name if len(name) <= MAX_SHOWN_NAME else f"{name[:MAX_SHOWN_NAME]}..."
