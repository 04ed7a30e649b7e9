import pytest
from llguidance import LLMatcher

from server.engine.constraint import MAX_SOURCE_BYTES
from server.model.lark_text import UnsupportedSyntax, check_supported


def is_well_formed(grammar: str) -> bool:
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar))


@pytest.mark.parametrize(
    ("attributes", "unsupported"),
    [
        ("temperature=2.0", "temperature"),
        (" max_tokens = 5 ,\ttemperature = 0 ", "temperature"),
        ("lazy, temperature=1", "temperature"),
        ('suffix="]", temperature=1', "temperature"),
        ("suffix=/[,]]/, temperature=1", "temperature"),
        ("capture", "capture"),
        ('capture="x"', "capture"),
        ('suffix="x", stop_capture="y"', "stop_capture"),
        ('stop="."', "stop"),
    ],
)
def test_an_attribute_of_a_rule_that_nothing_honours_is_refused_by_name(attributes: str, unsupported: str) -> None:
    grammar = f'start: "(" x ")"\nx[{attributes}]: /[a-z]+/\n'
    assert is_well_formed(grammar)
    with pytest.raises(UnsupportedSyntax, match=f"^the attribute {unsupported} is not supported"):
        check_supported(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "(" x ")"\nx[lazy]: /[a-z]+\\./',
        'start: "(" x ")"\nx[suffix="temperature=", max_tokens=5]: /[a-z]+/',
        'start: [temperature] "x"\ntemperature: "[temperature=1]:"  # [temperature=1]:',
        'start: "[" [capture]  // y[temperature=1]: <|im_end|>\ncapture: "]"',
        'start: "<|im_end|>" /<[5]>/ /a\\/<b>/ "\\"<c>" "d"i',
        'start: %json {"enum": ["<|im_end|>", "\\"<b>", "#", "//"]} "<c>"',
        "start: A B\nA: /[a-z]/\nB: A+",
        'start: perm::0\nperm::_ : "a" %if eq([0:3],0)',
    ],
)
def test_what_only_looks_alike_is_not_refused(grammar: str) -> None:
    assert is_well_formed(grammar)
    check_supported(grammar)


@pytest.mark.parametrize("token", ["<|im_end|>", "<[5]>", "<[^5,7-9]>", "<[*]>"])
@pytest.mark.parametrize("before", ["", '"#" ', "/#/ ", '"\\"" ', "/\\// ", "%json {} ", '"a" // "\n    | '])
def test_a_terminal_that_is_a_token_is_refused_by_name(token: str, before: str) -> None:
    with pytest.raises(UnsupportedSyntax) as refused:
        check_supported(f"start: {before}{token}")
    assert str(refused.value).startswith(f"{token} is a token")


@pytest.mark.parametrize("unit", ['"', "/", "<", '\\"', "[", "]:", "[,]:", "a", "<a", "#", "//", "/\\"])
def test_a_text_of_any_kind_is_read_to_its_end(unit: str) -> None:
    check_supported(unit * (MAX_SOURCE_BYTES // len(unit)))
