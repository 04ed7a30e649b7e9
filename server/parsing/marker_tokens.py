"""Marker tokens: what a tokenizer may have as special tokens and the readers must see as text."""

from server.parsing.llama3_json import PYTHON_TAG
from server.parsing.tool_call_format import ToolCallFormat

REASONING_MARKERS = frozenset({"<think>", "</think>"})
TOOL_CALL_MARKERS = {
    ToolCallFormat.HERMES: frozenset({"<tool_call>", "</tool_call>"}),
    ToolCallFormat.LLAMA3_JSON: frozenset({PYTHON_TAG}),
    ToolCallFormat.MISTRAL: frozenset({"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}),
}


def marker_tokens(*, reasoning: bool, tool_calls: ToolCallFormat | None) -> frozenset[str]:
    """The texts of the tokens that mark what is to be parsed."""
    of_calls = frozenset[str]() if tool_calls is None else TOOL_CALL_MARKERS[tool_calls]
    return of_calls | REASONING_MARKERS if reasoning else of_calls
