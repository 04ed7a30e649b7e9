import pytest

from server.parsing.parts import Content, Part, ToolCallPart
from server.parsing.tool_call_format import ToolCallFormat
from tests.server.parsing.outputs import parsed, parser

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def parse(text: str) -> list[Part]:
    return parsed(parser(ToolCallFormat.HERMES), text)


def call(number: int = 0, arguments: str = "{}", *, complete: bool = True) -> ToolCallPart:
    return ToolCallPart(number, f"id{number}", "f", arguments, complete)


def test_content_stands_before_between_and_after_calls() -> None:
    assert parse(f"a {CALL} b {CALL} c") == [Content("a "), call(0), Content(" b "), call(1), Content(" c")]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_ca",
        "<tool_call> is how a call begins.",
        "<tool_call></tool_call>",
        "<tool_call>[]</tool_call>",
        '<tool_call>\n{"name": "f"}\n</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": f, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"a": 1}, "name": "',
        "</tool_call>",
    ],
)
def test_what_is_no_call_is_content_as_it_was_written(text: str) -> None:
    assert parse(text) == [Content(text)]


def test_the_search_goes_on_after_what_is_no_call() -> None:
    assert parse(f"<tool_call>{CALL}") == [Content("<tool_call>"), call()]


def test_a_call_that_breaks_has_no_complete_part_and_its_rest_is_content() -> None:
    parts = parse('<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call> b')
    assert parts == [call(arguments='{"a": ', complete=False), Content("oops}}</tool_call> b")]


def test_a_call_that_is_cut_off_has_no_complete_part() -> None:
    parts = parse('<tool_call>{"name": "f", "arguments": {"a": "x')
    assert parts == [call(arguments='{"a": "x', complete=False)]


def test_a_call_is_complete_without_its_end_marker() -> None:
    assert parse(CALL.removesuffix("</tool_call>")) == [call()]
    assert parse(CALL.replace("</tool_call>", "\n") + CALL) == [call(0), call(1)]


def test_an_end_marker_that_is_cut_off_is_content() -> None:
    assert parse(CALL.removesuffix("call>")) == [call(), Content("</tool_")]


def test_markers_in_strings_are_part_of_them() -> None:
    arguments = '{"a": "</tool_call><tool_call><think>}"}'
    assert parse(CALL.replace("{}", arguments)) == [call(arguments=arguments)]
