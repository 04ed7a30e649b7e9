import json
from typing import NoReturn

from hypothesis import given, settings
from hypothesis import strategies as st

from server.parsing.json_scanner import WHITESPACE, JsonScanner, Progress
from tests.server.parsing.outputs import cut, json_values

FRAGMENTS = [
    *'{}[]",:',
    *"0123-+.eE",
    "true",
    "false",
    "null",
    "nul",
    "NaN",
    *WHITESPACE,
    "\x00",
    "\\",
    "\\u00e9",
    '"a"',
    "é",
    "1",
]
# Containers: of a number by itself it cannot be told that it has ended.
containers = st.lists(st.sampled_from(FRAGMENTS), max_size=10).map(
    lambda fragments: "[" + "".join(fragments) + "]"
) | st.lists(st.sampled_from(FRAGMENTS), max_size=10).map(lambda fragments: '{"k":' + "".join(fragments) + "}")


# What stands in a string: escapes, right and wrong.
strings = st.lists(st.sampled_from([*'\\\\\\"/bfnrtux0aF', "\\u00e", "\n", "é"]), max_size=8).map(
    lambda fragments: '["' + "".join(fragments) + '"]'
)


def refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@settings(max_examples=2000)
@given(containers | strings)
def test_a_text_is_a_whole_value_where_the_json_module_says_so(text: str) -> None:
    scanner = JsonScanner()
    whole = scanner.read(text, 0) == len(text) and scanner.progress is Progress.FINISHED
    assert whole == is_json(text)


@settings(max_examples=300)
@given(st.lists(json_values), st.sampled_from([None, 1]), st.booleans(), st.text(), st.data())
def test_a_value_ends_at_its_last_character_however_it_is_cut(
    value: list[object], indent: int | None, ensure_ascii: bool, after: str, data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
    scanner, seen = JsonScanner(), 0
    for piece in data.draw(cut(text + after)):
        assert scanner.progress is Progress.READING or seen == len(text)
        seen += scanner.read(piece, 0)
    assert (seen, scanner.progress) == (len(text), Progress.FINISHED)


@settings(max_examples=500)
@given(containers | strings, st.data())
def test_a_text_breaks_at_the_same_character_however_it_is_cut(text: str, data: st.DataObject) -> None:
    whole = JsonScanner()
    end = whole.read(text, 0)
    scanner, seen = JsonScanner(), 0
    for piece in data.draw(cut(text)):
        seen += scanner.read(piece, 0)
    assert (seen, scanner.progress) == (end, whole.progress)


@settings(max_examples=300)
@given(containers | strings)
def test_a_broken_text_cannot_be_json_however_it_goes_on(text: str) -> None:
    scanner = JsonScanner()
    end = scanner.read(text, 0)
    if scanner.progress is Progress.BROKEN:
        for rest in ("", '"', "}", "]", '":0}', '"]', "0}", "0]", "rue}", "rue]", '\\""}'):
            assert not is_json(text[: end + 1] + rest)
