"""The OutputParser: reads the meaning of a generation's text as it streams.

The text runs through three readers. ReasoningReader parts the reasoning from the rest; the reader of the request's
tool call format parts the calls from the content; BlankRuns leaves out what is only whitespace. So calls in reasoning
are reasoning, and <think> in a call's arguments is part of them.
"""

from collections.abc import Callable

from server.parsing.blank_runs import BlankRuns
from server.parsing.hermes import HermesReader
from server.parsing.llama3_json import Llama3JsonReader
from server.parsing.marked_text import MarkedTextReader
from server.parsing.mistral import MistralReader
from server.parsing.open_call import CallIdentities
from server.parsing.parts import Content, Part, joined
from server.parsing.reasoning import ReasoningReader
from server.parsing.tool_call_format import ToolCallFormat

_READERS: dict[ToolCallFormat, Callable[[CallIdentities], MarkedTextReader]] = {
    ToolCallFormat.HERMES: HermesReader,
    ToolCallFormat.LLAMA3_JSON: Llama3JsonReader,
    ToolCallFormat.MISTRAL: MistralReader,
}


class OutputParser:
    """Text goes in by `push`, parts come out; joined, they are the same however the text is cut.

    Text that may still become a marker or a call is held back, and what is held is never more than was pushed. Every
    character comes out in a part, but for markers, the syntax around a call's arguments, whitespace that stands alone
    and whitespace after a call. What is unfinished when the text ends, and the rest of a call that breaks, is content
    as it was written.
    """

    def __init__(
        self,
        *,
        reasoning: bool,
        tool_calls: ToolCallFormat | None,
        begins_in_reasoning: bool,
        new_call_id: Callable[[], str],
    ) -> None:
        """`reasoning`: whether to part the reasoning from the rest. `tool_calls`: the format of the calls to look for.
        `begins_in_reasoning`: the prompt ended with <think>; without `reasoning` it means nothing. `new_call_id`: gives
        each call its id.
        """
        self._reasoning = ReasoningReader(begins_in_reasoning) if reasoning else None
        self._tool_calls = _READERS[tool_calls](CallIdentities(new_call_id)) if tool_calls is not None else None
        self._blank_runs = BlankRuns()

    def push(self, text: str) -> list[Part]:
        """Returns the parts that are certain now; no two neighbours belong together."""
        if not text:
            return []
        parts: list[Part] = [Content(text)] if self._reasoning is None else self._reasoning.push(text)
        return joined(self._blank_runs.push(self._read_calls(parts)))

    def flush(self) -> list[Part]:
        """Returns the rest when no text will follow."""
        parts = self._read_calls([] if self._reasoning is None else self._reasoning.flush())
        if self._tool_calls is not None:
            parts += self._tool_calls.flush()
        return joined(self._blank_runs.push(parts))

    def _read_calls(self, parts: list[Part]) -> list[Part]:
        if self._tool_calls is None:
            return parts
        read: list[Part] = []
        for part in parts:
            read += self._tool_calls.push(part.text) if isinstance(part, Content) else [part]
        return read
