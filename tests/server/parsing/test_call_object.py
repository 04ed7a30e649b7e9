import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.parsing.call_object import CallObjectReader
from server.parsing.json_scanner import Progress
from tests.server.parsing.outputs import json_values

KEYS = frozenset({"arguments", "parameters"})


def read(text: str) -> CallObjectReader:
    reader = CallObjectReader(KEYS)
    reader.read(text, 0)
    return reader


keys = st.sampled_from(["name", "arguments", "parameters", "id", ""])
values: st.SearchStrategy[Any] = st.sampled_from(["", "f", {}, {"name": "g"}, [{}], None, 1]) | json_values
likely_members: st.SearchStrategy[tuple[str, Any]] = st.sampled_from([("name", "f"), ("arguments", {}), ("id", 1)])


@settings(max_examples=500)
@given(st.lists(likely_members | st.tuples(keys, values), max_size=4))
def test_an_object_is_a_call_with_one_name_and_one_object_of_arguments(members: list[tuple[str, Any]]) -> None:
    reader = read("{" + ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in members) + "}")
    names = [value for key, value in members if key == "name"]
    arguments = [value for key, value in members if key in KEYS]
    is_call = len(names) == len(arguments) == 1 and isinstance(names[0], str) and isinstance(arguments[0], dict)
    if is_call and names[0]:
        assert (reader.progress, reader.name) == (Progress.FINISHED, names[0])
        assert reader.take_arguments() == json.dumps(arguments[0])
    else:
        assert reader.progress is Progress.BROKEN


def test_a_key_may_be_written_with_escapes() -> None:
    reader = read('{"n\\u0061me": "\\u00e9", "arguments": {}}')
    assert (reader.progress, reader.name) == (Progress.FINISHED, "é")


def test_arguments_that_come_first_are_kept_until_the_name_is_known() -> None:
    assert read('{"arguments": {"a": 1}, ').name is None
    reader = read('{"arguments": {"a": 1}, "name": "f"')
    assert (reader.name, reader.take_arguments()) == ("f", '{"a": 1}')


def test_a_name_alone_makes_no_call() -> None:
    assert read('{"name": "Ada", "age": 36').name is None


@pytest.mark.parametrize("name", ["\\ud800", "a\\udfff"])
def test_a_name_that_utf8_cannot_carry_breaks_the_call(name: str) -> None:
    assert read(f'{{"name": "{name}"').progress is Progress.BROKEN
