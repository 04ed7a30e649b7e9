"""A conversation, and what its template is given."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from google.protobuf.struct_pb2 import Struct

from treadle.chat import Chat, ChatMessage, Tool, ToolCall
from treadle.requests.part import Part

LARGEST_EXACT_INTEGER = 2**53
"""Numbers of a Struct are float64."""


class TemplateOptions(TypedDict, total=False):
    """They come with a chat only."""

    tools: Sequence[Tool] | None
    """Functions that the model may call."""
    template_options: Mapping[str, Any] | None
    """Values for variables of the chat template, such as {"enable_thinking": False}."""
    continue_final_message: bool | None
    """Continues the last message, the assistant's, instead of beginning an answer."""
    template: str | None
    """A Jinja template in place of the model's own, where the server allows it."""


def write(message: Part, chat: Chat, options: TemplateOptions) -> None:
    for turn in chat:
        _write_turn(message.add("messages"), turn if isinstance(turn, ChatMessage) else ChatMessage(**turn))
    for tool in options.get("tools") or ():
        added = message.add("tools")
        added.set("name", tool.name)
        added.set("description", tool.description)
        added.set_json("parameters_json", tool.parameters)
    template_options = options.get("template_options")
    if template_options is not None:
        _write_template_options(message, template_options)
    message.set("continue_final_message", options.get("continue_final_message"))
    message.set("template", options.get("template"))


def refuse_without_chat(options: TemplateOptions) -> None:
    """Raises TypeError for an option that only a chat can carry."""
    for name in TemplateOptions.__optional_keys__:
        if options.get(name):
            raise TypeError(f"{name} comes with a chat only")


def _write_turn(message: Part, turn: ChatMessage) -> None:
    message.set("role", turn.role)
    message.set("content", turn.content)
    message.set("tool_call_id", turn.tool_call_id)
    for given in turn.tool_calls:
        call = given if isinstance(given, ToolCall) else ToolCall(**given)
        added = message.add("tool_calls")
        added.set("id", call.id)
        added.set("name", call.name)
        added.set("arguments_json", call.arguments_json)


def _write_template_options(message: Part, options: Mapping[str, Any]) -> None:
    values = message.present("template_options").message
    assert isinstance(values, Struct)
    for name, value in options.items():
        if not _is_exact(value):
            limit = f"integers must be from -{LARGEST_EXACT_INTEGER} to {LARGEST_EXACT_INTEGER}"
            raise message.invalid(f"template_options.{name}", value, limit)
        try:
            values.update({name: value})
        except (TypeError, ValueError) as error:
            raise TypeError(f"{message.path}template_options.{name} is {value!a}: must be a JSON value") from error


def _is_exact(value: object) -> bool:
    match value:
        case int():
            return abs(value) <= LARGEST_EXACT_INTEGER
        case Mapping():
            return all(map(_is_exact, value.values()))
        case list() | tuple():
            return all(map(_is_exact, value))
        case _:
            return True
