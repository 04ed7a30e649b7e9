"""The parts that a generation's text has once its meaning is read."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Content:
    """Text that is neither reasoning nor a tool call, as it was written."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the reasoning, as it was written, without its markers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """More of a call of a tool. Only the first part of a call has its id and name.

    The `arguments_json` of a call's parts, joined, are the arguments as they were written: a valid JSON object once a
    part is `complete`, which is the last. A call without such a part was cut off or is malformed.
    """

    call: int
    id: str = ""
    name: str = ""
    arguments_json: str = ""
    complete: bool = False


Part = Content | Reasoning | ToolCallPart


def joined(parts: Iterable[Part]) -> list[Part]:
    """Makes one part of neighbours that belong together: text of one kind, or parts of one call."""
    return [_join(list(group)) for _, group in groupby(parts, key=_belonging)]


def _belonging(part: Part) -> tuple[type[Part], int | None]:
    return type(part), part.call if isinstance(part, ToolCallPart) else None


def _join(parts: list[Part]) -> Part:
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, ToolCallPart):
        calls = [part for part in parts if isinstance(part, ToolCallPart)]
        arguments = "".join(part.arguments_json for part in calls)
        return ToolCallPart(first.call, first.id, first.name, arguments, calls[-1].complete)
    return type(first)("".join(part.text for part in parts if not isinstance(part, ToolCallPart)))
