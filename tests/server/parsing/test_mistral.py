import pytest

from server.parsing.parts import Content, Part, ToolCallPart
from server.parsing.tool_call_format import ToolCallFormat
from tests.server.parsing.outputs import parsed, parser

OBJECT = '{"name": "f", "arguments": {}}'


def parse(text: str) -> list[Part]:
    return parsed(parser(ToolCallFormat.MISTRAL), text)


def call(number: int = 0) -> ToolCallPart:
    return ToolCallPart(number, f"id{number}", "f", "{}", complete=True)


def test_a_list_has_its_calls_in_order_and_content_around_it() -> None:
    assert parse(f"a [TOOL_CALLS] [{OBJECT}, {OBJECT} ] b") == [Content("a "), call(0), call(1), Content(" b")]


@pytest.mark.parametrize("written", ["f{}", " f{}", "f[ARGS]{}", "f[CALL_ID]abc123XYZ[ARGS]{}"])
def test_calls_may_be_written_as_a_name_and_its_arguments(written: str) -> None:
    assert parse(f"a[TOOL_CALLS]{written}[TOOL_CALLS]{written}b") == [Content("a"), call(0), call(1), Content("b")]


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]",
        "[TOOL_CA",
        "[TOOL_CALLS] is a marker.",
        "[TOOL_CALLS] []",
        '[TOOL_CALLS] [{"name": "f"}]',
        "[TOOL_CALLS] {}",
        "[TOOL_CALLS]f",
        "[TOOL_CALLS]f {}",
        "[TOOL_CALLS]f[]",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f[ARGS]x{}",
        "[TOOL_CALLS]f[CALL_ID]{}",
        "[TOOL_CALLS]f[CALL_ID][ARGS]{}",
        "[TOOL_CALLS]f[CALL_ID]a[CALL_ID]{}",
        f"[TOOL_CALLS]{'f' * 65}{{}}",
        f"[TOOL_CALLS]f[CALL_ID]{'a' * 65}[ARGS]{{}}",
    ],
)
def test_what_is_no_call_is_content_as_it_was_written(text: str) -> None:
    assert parse(text) == [Content(text)]


def test_the_search_goes_on_after_what_is_no_call() -> None:
    assert parse("[TOOL_CALLS] [[TOOL_CALLS]f{}") == [Content("[TOOL_CALLS] ["), call()]


@pytest.mark.parametrize("rest", [", and", '; {"name"', ', {"name": "f"}]'])
def test_the_rest_of_a_list_that_breaks_is_content(rest: str) -> None:
    assert parse(f"[TOOL_CALLS] [{OBJECT}{rest}") == [call(), Content(rest)]


def test_a_call_that_breaks_has_no_complete_part_and_its_rest_is_content() -> None:
    for start in ("[TOOL_CALLS]f", '[TOOL_CALLS] [{"name": "f", "arguments": '):
        assert parse(start + '{"a": oops}') == [ToolCallPart(0, "id0", "f", '{"a": '), Content("oops}")]
