import pytest

from server.parsing.parts import Content, Part, Reasoning
from tests.server.parsing.outputs import parsed, parser


def parse(text: str, *, begins_in_reasoning: bool = False) -> list[Part]:
    return parsed(parser(reasoning=True, begins_in_reasoning=begins_in_reasoning), text)


@pytest.mark.parametrize("start", ["<think>", "\n <think>"])
def test_reasoning_stands_at_the_start_of_the_output(start: str) -> None:
    assert parse(f"{start}a</think>b") == [Reasoning("a"), Content("b")]


@pytest.mark.parametrize("start", ["", "<think>", "\n<think>"])
def test_output_after_an_opened_think_begins_as_reasoning(start: str) -> None:
    assert parse(f"{start}a</think>b", begins_in_reasoning=True) == [Reasoning("a"), Content("b")]


@pytest.mark.parametrize("text", ["a<think>b</think>c", " a</think>b", "<thin", " <th"])
def test_output_that_begins_otherwise_is_content(text: str) -> None:
    assert parse(text) == [Content(text)]


def test_the_first_end_ends_the_reasoning_and_later_markers_are_content() -> None:
    parts = parse("<think>a<think>b</think>c</think><think>d</think>")
    assert parts == [Reasoning("a<think>b"), Content("c</think><think>d</think>")]


@pytest.mark.parametrize("begins_in_reasoning", [False, True])
def test_reasoning_without_an_end_goes_on_to_the_end_of_the_output(begins_in_reasoning: bool) -> None:
    assert parse("<think>a</thin", begins_in_reasoning=begins_in_reasoning) == [Reasoning("a</thin")]


def test_an_unfinished_start_marker_in_reasoning_is_reasoning() -> None:
    assert parse(" <thi", begins_in_reasoning=True) == [Reasoning(" <thi")]
