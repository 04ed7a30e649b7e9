"""What a grammar in Lark's syntax may not say here although llguidance takes it.

An attribute of a rule such as `temperature` is for whoever draws the tokens or keeps captures, and would be ignored; a
terminal that is a token, such as `<|im_end|>` or `<[5]>`, can never follow, since a constraint is on text. See
https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md.
"""

import re
from collections.abc import Iterator, Sequence

HONOURED_ATTRIBUTES = ("lazy", "max_tokens", "suffix")
"""Those that llguidance honours by the tokens it allows. `stop` is not: it would have to take text back."""

TOKEN = re.compile(
    r"""
    (?P<skipped> [ \t]++ | (?:\#|//)[^\n]*+ )
  | (?P<string>  "(?:\\.?|[^"\\])*+(?:"|\Z) )
  | (?P<regex>   /(?:\\.?|[^/\\])++(?:/|\Z) )
  | (?P<special> <[^<>\s]++> )
  | (?P<name>    [A-Za-z_][\w-]*+ )
  | (?P<other>   . )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
"""Lark's tokens, as far as they matter here. The strings of JSON within a grammar have the form of Lark's own. Each
alternative gives nothing back once it has matched, so that any text is read in linear time."""


class UnsupportedSyntax(ValueError):
    """The grammar says something that this server does not honour; the message says what."""


def check_supported(grammar: str) -> None:
    """Raises UnsupportedSyntax. A grammar that is malformed may pass, for llguidance to refuse."""
    tokens = [token for token in TOKEN.finditer(grammar) if token.lastgroup != "skipped"]
    for token in tokens:
        if token.lastgroup == "special":
            raise UnsupportedSyntax(f"{token[0]} is a token: only text can be constrained")
    for attribute in _attributes(tokens):
        if attribute not in HONOURED_ATTRIBUTES:
            raise UnsupportedSyntax(
                f"the attribute {attribute} is not supported: a rule may have {', '.join(HONOURED_ATTRIBUTES)}"
            )


def _attributes(tokens: Sequence[re.Match[str]]) -> Iterator[str]:
    """The names of the attributes of all rules: they are in brackets before a colon, as nothing else is."""
    names: list[str] = []
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if before[0] == "[":
            names = []
        if before[0] in ("[", ",") and token.lastgroup == "name":
            names.append(token[0])
        if token[0] == "]" and after[0] == ":":
            yield from names
            names = []
