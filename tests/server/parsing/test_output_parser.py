import json
import sys
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.parsing.parts import Content, Part, Reasoning, ToolCallPart
from server.parsing.tool_call_format import ToolCallFormat
from tests.server.parsing.outputs import (
    MARKERS,
    BuiltCall,
    built_outputs,
    cut,
    expected_parts,
    marked_texts,
    parsed,
    parser,
)

formats = st.sampled_from(ToolCallFormat)
# Pieces of all formats, right and wrong, so that calls begin, break and end anywhere.
FRAGMENTS = [
    *MARKERS,
    '{"name": "f", "arguments": {"a": [1, true, "\\u00e9\\n"]}}',
    '{"parameters": {}, "name": "g"}',
    '{"name": "f", "arguments": {',
    '{"name": ',
    '"arguments": {"a": 1e5',
    '"f"',
    'f{"a": {}}',
    '[{"name": "h", "arguments": {}}',
    "\\",
    *'{}[]":;, \n<-1',
    "null",
    "Paris",
]
fragment_texts = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)


@settings(max_examples=300)
@given(st.data(), formats, st.booleans())
def test_what_was_built_is_found_however_the_text_is_cut(
    data: st.DataObject, tool_calls: ToolCallFormat, begins_in_reasoning: bool
) -> None:
    output = data.draw(built_outputs(tool_calls, begins_in_reasoning))
    output_parser = parser(tool_calls, reasoning=True, begins_in_reasoning=begins_in_reasoning)
    parts = parsed(output_parser, *data.draw(cut(output.text)))
    assert parts == expected_parts(output)
    found = [json.loads(part.arguments_json) for part in parts if isinstance(part, ToolCallPart)]
    assert found == [segment.arguments for segment in output.segments if isinstance(segment, BuiltCall)]


@settings(max_examples=500)
@given(fragment_texts, st.data(), st.none() | formats, st.booleans(), st.booleans())
def test_any_text_gives_the_same_parts_however_it_is_cut(
    text: str, data: st.DataObject, tool_calls: ToolCallFormat | None, reasoning: bool, begins_in_reasoning: bool
) -> None:
    def parse(*pieces: str) -> list[Part]:
        return parsed(parser(tool_calls, reasoning=reasoning, begins_in_reasoning=begins_in_reasoning), *pieces)

    assert parse(*data.draw(cut(text))) == parse(text)


@settings(max_examples=500)
@given(fragment_texts, st.none() | formats, st.booleans(), st.booleans())
def test_any_text_comes_out_in_its_order_and_nothing_is_added_to_it(
    text: str, tool_calls: ToolCallFormat | None, reasoning: bool, begins_in_reasoning: bool
) -> None:
    parts = parsed(parser(tool_calls, reasoning=reasoning, begins_in_reasoning=begins_in_reasoning), text)
    # With the arguments before the name the two change places, so only text counts here.
    characters = iter(text)
    for part in parts:
        if not isinstance(part, ToolCallPart):
            assert all(character in characters for character in part.text)


@settings(max_examples=500)
@given(fragment_texts.filter(lambda text: bool(text.strip())), formats)
def test_text_in_which_no_call_is_found_is_content_as_it_was_written(text: str, tool_calls: ToolCallFormat) -> None:
    parts = parsed(parser(tool_calls), text)
    assert parts == [Content(text)] or any(isinstance(part, ToolCallPart) for part in parts)


@settings(max_examples=500)
@given(fragment_texts, formats)
def test_a_call_is_complete_only_with_a_name_and_arguments_that_are_a_json_object(
    text: str, tool_calls: ToolCallFormat
) -> None:
    calls = [part for part in parsed(parser(tool_calls), text) if isinstance(part, ToolCallPart)]
    assert [call.call for call in calls] == list(range(len(calls)))
    for call in calls:
        assert (call.id, bool(call.name)) == (f"id{call.call}", True)
        if call.complete:
            assert isinstance(json.loads(call.arguments_json), dict)


@settings(max_examples=300)
@given(marked_texts.filter(lambda text: bool(text.strip())), st.none() | formats, st.booleans())
def test_text_without_markers_is_content_as_it_was_written(
    text: str, tool_calls: ToolCallFormat | None, reasoning: bool
) -> None:
    for character in "<[{":
        text = text.replace(character, "x")
    assert parsed(parser(tool_calls, reasoning=reasoning), text) == [Content(text)]


@pytest.mark.parametrize(
    ("tool_calls", "marker"), [(ToolCallFormat.HERMES, "<tool_call>"), (ToolCallFormat.MISTRAL, "[TOOL_CALLS]")]
)
def test_only_the_beginning_of_a_marker_is_held_back_from_content(tool_calls: ToolCallFormat, marker: str) -> None:
    for length in range(1, len(marker)):
        output_parser = parser(tool_calls, reasoning=True)
        assert output_parser.push("Paris " + marker[:length]) == [Content("Paris ")]
        assert output_parser.push(" is") == [Content(marker[:length] + " is")]


def test_only_the_beginning_of_its_end_is_held_back_from_reasoning() -> None:
    output_parser = parser(reasoning=True)
    assert output_parser.push("<think>Paris </thin") == [Reasoning("Paris ")]
    assert output_parser.push("g") == [Reasoning("</thing")]


def test_a_calls_first_part_has_its_id_and_name_and_the_arguments_follow_as_they_come() -> None:
    output_parser = parser(ToolCallFormat.HERMES)
    assert output_parser.push('<tool_call>{"name": "weather", "arguments": ') == []
    assert output_parser.push('{"ci') == [ToolCallPart(0, "id0", "weather", '{"ci')]
    assert output_parser.push('ty": "Par') == [ToolCallPart(0, arguments_json='ty": "Par')]
    assert output_parser.push('is"}') == [ToolCallPart(0, arguments_json='is"}')]
    assert output_parser.push("}") == [ToolCallPart(0, complete=True)]
    assert output_parser.push("</tool_call>") == []
    assert output_parser.flush() == []


def test_calls_in_reasoning_are_reasoning() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    parts = parsed(parser(ToolCallFormat.HERMES, reasoning=True), f"<think>{call}</think>{call}")
    assert parts == [Reasoning(call), ToolCallPart(0, "id0", "f", "{}", complete=True)]


def test_reasoning_that_is_not_asked_for_is_content() -> None:
    parts = parsed(parser(ToolCallFormat.HERMES, begins_in_reasoning=True), "a</think>b")
    assert parts == [Content("a</think>b")]


def test_whitespace_that_stands_alone_is_left_out() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    parts = parsed(parser(ToolCallFormat.HERMES, reasoning=True), f"<think>\n\n</think>\n\n{call}\n{call} a")
    calls = [ToolCallPart(number, f"id{number}", "f", "{}", complete=True) for number in range(2)]
    assert parts == [*calls, Content(" a")]


def test_whitespace_around_other_text_stays_as_it_was_written() -> None:
    parts = parsed(parser(ToolCallFormat.HERMES, reasoning=True), "<think>\na\n</think>\n\n b \n")
    assert parts == [Reasoning("\na\n"), Content("\n\n b \n")]


def characters_read(text: str) -> int:
    """Pushes the text by the character; counts a unit for each function called, and the characters handed to it."""
    count = 0

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event == "call":
            pushed = frame.f_locals.get("text")
            count += 1 + (len(pushed) if isinstance(pushed, str) else 0)

    output_parser, before = parser(ToolCallFormat.HERMES, reasoning=True), sys.getprofile()
    sys.setprofile(on_event)
    try:
        for character in text:
            output_parser.push(character)
        output_parser.flush()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    ("beginning", "unit"),
    [
        ("", "a"),
        ("", " "),
        ("", "<tool_call"),
        ("<think>", "</think"),
        ("<tool_call>", " "),
        ('<tool_call>{"', "a"),
        ('<tool_call>{"arguments": {"a": ', "["),
        ('<tool_call>{"arguments": {"a": ', "1"),
        ('<tool_call>{"name": "f", "arguments": {"a": "', "b"),
        ('<tool_call>{"name": "f", "arguments": {}}', "\n"),
        ("", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
    ],
)
def test_the_work_grows_as_the_text_does_when_it_comes_by_the_character(beginning: str, unit: str) -> None:
    short, long = (characters_read(beginning + unit * (size // len(unit))) for size in (1000, 4000))
    assert long < 4.5 * short
