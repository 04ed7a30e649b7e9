from typing import Any

import pytest

from server.engine.chat import MAX_TEMPLATE_BYTES, Chat, ChatMessage, Tool, ToolCall
from server.engine.errors import InvalidArgument

HI = ChatMessage("user", "hi")


def calls(*ids: str, role: str = "assistant") -> ChatMessage:
    return ChatMessage(role, "", tuple(ToolCall(call_id, "f", {}) for call_id in ids))


def answer(call_id: str, role: str = "tool") -> ChatMessage:
    return ChatMessage(role, "done", tool_call_id=call_id)


def continued(*messages: ChatMessage) -> dict[str, Any]:
    return {"messages": messages, "continue_final_message": True}


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        ("chat.messages", {"messages": ()}),
        ("chat.messages[1].role", {"messages": (HI, ChatMessage("robot", ""))}),
        ("chat.messages[0].role", {"messages": (ChatMessage("", ""),)}),
        ("chat.messages[0].tool_calls", {"messages": (calls("1", role="user"),)}),
        ("chat.messages[0].tool_calls[1].id", {"messages": (calls("1", "1"),)}),
        ("chat.messages[2].tool_calls[0].id", {"messages": (calls("1"), answer("1"), calls("1"))}),
        ("chat.messages[0].tool_calls[0].name", {"messages": (ChatMessage("assistant", "", (ToolCall("", "", {}),)),)}),
        ("chat.messages[1].tool_call_id", {"messages": (calls("1"), answer("1", role="user"))}),
        ("chat.messages[1].tool_call_id", {"messages": (calls("1"), answer("2"))}),
        ("chat.messages[0].tool_call_id", {"messages": (answer("1"), calls("1"))}),
        ("chat.tools[1].name", {"messages": (HI,), "tools": (Tool("f"), Tool("f g"))}),
        ("chat.tools[0].name", {"messages": (HI,), "tools": (Tool(""),)}),
        ("chat.tools[0].name", {"messages": (HI,), "tools": (Tool("x" * 65),)}),
        ("chat.tools[0].name", {"messages": (HI,), "tools": (Tool("f\n"),)}),
        ("chat.continue_final_message", continued(ChatMessage("assistant", "a"), HI)),
        ("chat.messages[1].content", continued(HI, ChatMessage("assistant", " \n"))),
        ("chat.messages[0].tool_calls", continued(calls("1"))),
        ("chat.template", {"messages": (HI,), "template": "ü" * (MAX_TEMPLATE_BYTES // 2) + "x"}),
    ],
)
def test_parts_that_do_not_go_together_are_refused_by_name(field: str, parts: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Chat(**parts)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "parts",
    [
        {"messages": (calls("1", "2"), answer("2"), answer("1"), calls("3"))},
        {"messages": (calls("", ""), answer(""))},
        {"messages": (HI,), "tools": (Tool("Get.the_weather-2"), Tool("x" * 64))},
        continued(HI, ChatMessage("assistant", "a ")),
        {"messages": (HI,), "template": "x" * MAX_TEMPLATE_BYTES},
    ],
)
def test_parts_that_go_together_are_taken(parts: dict[str, Any]) -> None:
    assert Chat(**parts).messages == parts["messages"]


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    assert Tool("f").parameters == {"type": "object", "properties": {}}
