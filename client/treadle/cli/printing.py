"""What the command writes: text for people, one JSON object a line for machines."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from enum import Enum
from math import inf
from typing import TextIO

from treadle.errors import TreadleError, Unavailable
from treadle.events import Completion, Content, Event, Prompt, Reasoning, Result, Started, Tokens, ToolCallPart
from treadle.server_info import Capabilities, Load, ModelInfo

EVENT_NAMES: dict[type[Event], str] = {
    Started: "started",
    Prompt: "prompt",
    Tokens: "tokens",
    Content: "content",
    Reasoning: "reasoning",
    ToolCallPart: "tool_call",
    Result: "result",
}
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def print_piece(text: str, file: TextIO | None = None) -> None:
    """Writes at once. A model's output must not steer the terminal, so there its control characters are replaced."""
    file = file or sys.stdout
    file.write(CONTROL_CHARACTERS.sub("�", text) if file.isatty() else text)
    file.flush()


def print_event(event: Event) -> None:
    print_json({"event": EVENT_NAMES[type(event)], **asdict(event)})


def print_completion(completion: Completion) -> None:
    print_json({"event": "completion", **asdict(completion)})


def print_record(record: ModelInfo | Load, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(record))
    else:
        lines = list(_lines(record))
        width = max(len(name) for name, _ in lines)
        for name, value in lines:
            print(f"{name:<{width}}  {value}")


def print_error(error: TreadleError, address: str, *, as_json: bool) -> None:
    if as_json:
        details = {
            "error": type(error).__name__,
            "code": error.code,
            "reason": error.reason,
            "message": error.message,
            "request_id": error.request_id,
            "violations": [asdict(violation) for violation in error.violations],
            "retry_after": error.retry_after,
        }
        print_json(details, sys.stderr)
    else:
        where = f"{address} is unavailable: " if isinstance(error, Unavailable) else ""
        print(f"treadle: {where}{' '.join(error.message.split())}", file=sys.stderr)


def print_json(value: object, file: TextIO | None = None) -> None:
    print(json.dumps(_finite(value), default=_encode), file=file or sys.stdout, flush=True)


def _finite(value: object) -> object:
    """JSON knows no infinity: as in protobuf's JSON it is a string."""
    match value:
        case float() if value in (inf, -inf):
            return "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
        case _:
            return value


def _encode(value: object) -> str:
    match value:
        case Enum():
            return str(value.value)
        case datetime():
            return value.isoformat()
        case _:
            raise TypeError(f"{value!r} has no form in JSON")


def _lines(record: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Name and value of every field, those of fields that are records themselves included."""
    assert is_dataclass(record)
    for each in fields(record):
        value, name = getattr(record, each.name), prefix + each.name.replace("_", " ")
        if is_dataclass(value):
            yield from _lines(value, f"{name}: ")
        elif value is None and isinstance(record, Capabilities):
            yield name, "unknown"
        else:
            yield name, _show(value)


def _show(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S} UTC"
        case tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)
