"""Random outputs as models write them: built first, then rendered in a format, so that what a parser must find is
known."""

import json
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hypothesis import strategies as st

from server.parsing.output_parser import OutputParser
from server.parsing.parts import Content, Part, Reasoning, ToolCallPart, joined
from server.parsing.tool_call_format import ToolCallFormat

MARKERS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "[ARGS]",
    "[CALL_ID]",
)


@dataclass(frozen=True)
class BuiltCall:
    name: str
    arguments: dict[str, Any]
    arguments_json: str
    # The call's JSON object, in which the arguments stand as they are above.
    object_json: str


@dataclass(frozen=True)
class BuiltOutput:
    # What the parser must find: content and calls in their order.
    reasoning: str | None
    segments: list[str | BuiltCall]
    text: str


words = st.sampled_from(
    [*MARKERS, *(marker[:-1] for marker in MARKERS), "a", "é", " ", "\n", "{", "}", '"', ";", "[", "]"]
)
# Text in which markers and their beginnings are likely.
marked_texts = st.lists(words | st.text(max_size=3), max_size=8).map("".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | marked_texts,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(marked_texts, values, max_size=3),
    max_leaves=8,
)


@st.composite
def built_calls(draw: st.DrawFn, names: st.SearchStrategy[str], argument_keys: tuple[str, ...]) -> BuiltCall:
    name = draw(names)
    arguments = draw(st.dictionaries(marked_texts, json_values, max_size=3))
    ensure_ascii, indent = draw(st.booleans()), draw(st.sampled_from([None, 2]))
    arguments_json = json.dumps(arguments, ensure_ascii=ensure_ascii, indent=indent)
    members = [f'"name": {json.dumps(name)}', f'"{draw(st.sampled_from(argument_keys))}": {arguments_json}']
    if draw(st.booleans()):
        members.append(f'"type": {json.dumps(draw(json_values))}')
    space = draw(st.sampled_from(["", "\n "]))
    inside = f",{space}".join(draw(st.permutations(members)))
    return BuiltCall(name, arguments, arguments_json, f"{{{space}{inside}{space}}}")


def contents(*excluded: str) -> st.SearchStrategy[str]:
    """Text that is not only whitespace and has none of the excluded in it."""
    return marked_texts.filter(lambda text: bool(text.strip()) and not any(marker in text for marker in excluded))


def segments_of(
    texts: st.SearchStrategy[str], calls: st.SearchStrategy[BuiltCall]
) -> st.SearchStrategy[list[str | BuiltCall]]:
    """Content and calls, no content next to another."""
    return st.lists(texts | calls, max_size=5).map(
        lambda drawn: [
            segment
            for is_text, group in groupby(drawn, key=lambda segment: isinstance(segment, str))
            for segment in (list(group)[:1] if is_text else list(group))
        ]
    )


def rendered_hermes(draw: st.DrawFn) -> tuple[list[str | BuiltCall], str]:
    calls = built_calls(st.text(min_size=1, max_size=5), ("arguments",))
    segments = draw(segments_of(contents("<tool_call>", "</tool_call>"), calls))
    space = draw(st.sampled_from(["", "\n"]))
    between = draw(st.sampled_from(["", "\n"])) if not any(isinstance(segment, str) for segment in segments) else ""
    pieces = [
        segment if isinstance(segment, str) else f"<tool_call>{space}{segment.object_json}{space}</tool_call>"
        for segment in segments
    ]
    return segments, between.join(pieces)


def rendered_llama3_json(draw: st.DrawFn) -> tuple[list[str | BuiltCall], str]:
    if draw(st.booleans()):
        text = draw(contents("<|python_tag|>").filter(lambda text: not text.lstrip().startswith("{")))
        return [text], text
    calls = draw(st.lists(built_calls(st.text(min_size=1), ("parameters", "arguments")), min_size=1, max_size=4))
    start = draw(st.sampled_from(["", "\n", "<|python_tag|>", " <|python_tag|> "]))
    return [*calls], start + draw(st.sampled_from([";", "; ", "\n;"])).join(call.object_json for call in calls)


def rendered_mistral(draw: st.DrawFn) -> tuple[list[str | BuiltCall], str]:
    names = st.from_regex(r"[A-Za-z0-9_.-]{1,8}", fullmatch=True)
    segments = draw(segments_of(contents("[TOOL_CALLS]"), built_calls(names, ("arguments",))))
    pieces: list[str] = []
    for is_text, group in groupby(segments, key=lambda segment: isinstance(segment, str)):
        run = list(group)
        texts = [segment for segment in run if isinstance(segment, str)]
        calls = [segment for segment in run if isinstance(segment, BuiltCall)]
        if is_text:
            pieces += texts
        elif draw(st.booleans()):
            space = draw(st.sampled_from(["", " "]))
            pieces.append(f"[TOOL_CALLS]{space}[" + f",{space}".join(call.object_json for call in calls) + f"{space}]")
        else:
            tag = draw(st.sampled_from(["", "[ARGS]", "[CALL_ID]abc123XYZ[ARGS]"]))
            pieces += [f"[TOOL_CALLS]{call.name}{tag}{call.arguments_json}" for call in calls]
    return segments, "".join(pieces)


_RENDERED = {
    ToolCallFormat.HERMES: rendered_hermes,
    ToolCallFormat.LLAMA3_JSON: rendered_llama3_json,
    ToolCallFormat.MISTRAL: rendered_mistral,
}


@st.composite
def built_outputs(draw: st.DrawFn, tool_calls: ToolCallFormat, begins_in_reasoning: bool) -> BuiltOutput:
    segments, text = _RENDERED[tool_calls](draw)
    if not begins_in_reasoning and draw(st.booleans()) and not text.lstrip().startswith("<think>"):
        return BuiltOutput(None, segments, text)
    reasoning = draw(contents("</think>").filter(lambda text: not text.lstrip().startswith("<think>")))
    opening = draw(st.sampled_from(["", "<think>", " <think>"] if begins_in_reasoning else ["<think>", "\n<think>"]))
    return BuiltOutput(reasoning, segments, f"{opening}{reasoning}</think>{text}")


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """The text in pieces: whole, by the character, or cut anywhere."""
    if draw(st.booleans()):
        return list(text)
    ends = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def parser(
    tool_calls: ToolCallFormat | None = None, *, reasoning: bool = False, begins_in_reasoning: bool = False
) -> OutputParser:
    """A parser whose call ids are id0, id1 and so on."""
    ids = iter(range(1_000_000))
    return OutputParser(
        reasoning=reasoning,
        tool_calls=tool_calls,
        begins_in_reasoning=begins_in_reasoning,
        new_call_id=lambda: f"id{next(ids)}",
    )


def parsed(output_parser: OutputParser, *pieces: str) -> list[Part]:
    """All parts of the text, neighbours joined."""
    parts = [part for piece in pieces for part in output_parser.push(piece)]
    return joined(parts + output_parser.flush())


def expected_parts(output: BuiltOutput) -> list[Part]:
    parts: list[Part] = [] if output.reasoning is None else [Reasoning(output.reasoning)]
    calls = 0
    for segment in output.segments:
        if isinstance(segment, str):
            parts.append(Content(segment))
        else:
            parts.append(ToolCallPart(calls, f"id{calls}", segment.name, segment.arguments_json, complete=True))
            calls += 1
    return parts
