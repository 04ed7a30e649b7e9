import pytest

from server.parsing.parts import Content, Part, ToolCallPart
from server.parsing.tool_call_format import ToolCallFormat
from tests.server.parsing.outputs import parsed, parser

OBJECT = '{"name": "f", "parameters": {}}'


def parse(text: str) -> list[Part]:
    return parsed(parser(ToolCallFormat.LLAMA3_JSON), text)


def call(number: int = 0) -> ToolCallPart:
    return ToolCallPart(number, f"id{number}", "f", "{}", complete=True)


def test_calls_are_parted_by_semicolons() -> None:
    assert parse(f"{OBJECT};{OBJECT} ; {OBJECT}\n") == [call(0), call(1), call(2)]


@pytest.mark.parametrize("start", ["\n", "<|python_tag|>", " <|python_tag|>\n"])
def test_whitespace_and_a_python_tag_may_stand_before_the_first_call(start: str) -> None:
    assert parse(start + OBJECT) == [call()]


@pytest.mark.parametrize(
    "text",
    [
        f"Here: {OBJECT}",
        " <|python_tag|> print(1)",
        "<|python_tag|>",
        "<|python",
        f"<|python_tag|><|python_tag|>{OBJECT}",
        '\n{"city": "Paris"}',
        '{"name": "Ada", "age": 36}',
        '{"name": "Ada", "ag',
        f'{{"city": "Paris"}};{OBJECT}',
    ],
)
def test_an_answer_that_is_no_call_is_content_as_it_was_written(text: str) -> None:
    assert parse(text) == [Content(text)]


@pytest.mark.parametrize("rest", [f"and {OBJECT}", OBJECT, ";", "; and", '; {"city": "Paris"}'])
def test_what_follows_a_call_and_is_no_call_is_content(rest: str) -> None:
    assert parse(OBJECT + rest) == [call(), Content(rest)]


@pytest.mark.parametrize("rest", [f"oops}}}}; {OBJECT}", f"; {OBJECT}"])
def test_after_a_call_that_breaks_all_is_content(rest: str) -> None:
    parts = parse('{"name": "f", "parameters": {"a": ' + rest)
    assert parts == [ToolCallPart(0, "id0", "f", '{"a": '), Content(rest)]
