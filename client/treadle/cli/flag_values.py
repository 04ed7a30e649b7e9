"""What flags of more than one word mean; each raises argparse.ArgumentTypeError with the reason where it is wrong."""

import json
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from treadle.chat import Tool
from treadle.constraint import Grammar, JsonSchema


def json_schema(text: str) -> JsonSchema:
    """A schema begins with a brace or is a boolean; another text is a file's name."""
    is_schema = text.lstrip().startswith("{") or text.strip() in ("true", "false")
    return JsonSchema(text if is_schema else _read(text))


def grammar(path: str) -> Grammar:
    return Grammar(_read(path))


def tools(path: str) -> list[Tool]:
    """A JSON list of {"name", "description", "parameters"}, each by itself or as {"type", "function"}."""
    try:
        entries = json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise ArgumentTypeError(f"{path} is not JSON: {error}") from error
    if not isinstance(entries, list):
        raise ArgumentTypeError(f"{path} is not a JSON list of tools")
    return [_tool(entry, f"{path}: tool {i}") for i, entry in enumerate(entries)]


def logit_bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError as error:
        raise ArgumentTypeError(f"is {text}: must be a token id, =, and a number") from error


def token_ids(text: str) -> list[int]:
    try:
        ids = [int(word) for word in text.split()]
    except ValueError:
        ids = []
    if not ids:
        raise ArgumentTypeError(f"is {text!r}: must be token ids with spaces between them")
    return ids


def template(path: str) -> str:
    return _read(path)


def template_option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError as error:
        raise ArgumentTypeError(f"is {text}: must be a name, =, and JSON: {error}") from error


def _tool(entry: Any, where: str) -> Tool:
    try:
        return Tool(**entry.get("function", entry))
    except (AttributeError, TypeError) as error:
        raise ArgumentTypeError(f"{where} must be a name, a description and parameters: {error}") from error


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ArgumentTypeError(f"cannot read {path}: {error}") from error
