"""What a command printed, as far as it is the same on every run: JSON messages and lines of text."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

VARIES = frozenset({"request_id", "seed", "timing", "since"})
"""Is there on every run, with a value of its own."""
DEPENDS = frozenset(
    {
        "cached_tokens",
        "cached_token_count",
        "kv_blocks_cached",
        "kv_blocks_total",
        "tokens_per_second",
        "tokens_generated",
        "max_total_tokens",
        "max_text_bytes",
    }
)
"""Depends on the machine and on what was asked before; left out where it is 0."""
DEADLINE = re.compile("context deadline exceeded|Deadline Exceeded")
"""The client's words and the server's: whichever notices first is heard."""
TOLERANCE = 0.02
"""Of log-probabilities, whose last digits are the machine's."""


@dataclass(frozen=True)
class Answer:
    messages: list[Any]
    lines: list[str]
    """What follows the messages, but for how its words are spaced."""


def parsed(output: str) -> Answer:
    decoder = json.JSONDecoder()
    messages, rest = list[Any](), output.strip()
    while rest.startswith("{"):
        message, end = decoder.raw_decode(rest)
        messages.append(_steady(message))
        rest = rest[end:].lstrip()
    lines = [DEADLINE.sub("deadline exceeded", " ".join(line.split())) for line in rest.splitlines()]
    return Answer(list(_joined(messages)), lines)


def nearly(value: Any) -> Any:
    """Equal to what differs from the value in the last digits of numbers."""
    if isinstance(value, dict):
        return {name: nearly(each) for name, each in value.items()}
    if isinstance(value, list):
        return [nearly(each) for each in value]
    return pytest.approx(value, abs=TOLERANCE) if isinstance(value, float) else value


def _joined(messages: Iterable[Any]) -> Iterator[Any]:
    """The messages of a stream with neighbouring token chunks made one: how they are cut is a matter of time."""
    chunk: dict[str, Any] = {}
    for message in messages:
        if message.keys() == {"tokens"}:
            for name, part in message["tokens"].items():
                chunk[name] = chunk[name] + part if name in chunk else part
        else:
            if chunk:
                yield {"tokens": chunk}
            chunk = {}
            yield message


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: "varies" if name in VARIES else _steady(each) for name, each in value.items() if name not in DEPENDS
        }
    return [_steady(each) for each in value] if isinstance(value, list) else value
