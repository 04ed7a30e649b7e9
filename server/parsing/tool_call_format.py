"""The formats in which models write tool calls."""

from enum import Enum, auto


class ToolCallFormat(Enum):
    HERMES = auto()
    LLAMA3_JSON = auto()
    MISTRAL = auto()
