"""The answers of a model, written as they come."""

import sys
from collections import defaultdict

from treadle.cli import logprob_table
from treadle.cli.arguments import Arguments
from treadle.cli.printing import print_event, print_piece
from treadle.errors import TreadleError
from treadle.events import Content, Event, Prompt, Reasoning, Result, TokenLogprob, Tokens, ToolCallPart
from treadle.requests import GenerateOptions
from treadle.stream import GenerationStream


def answer(stream: GenerationStream, arguments: Arguments) -> str:
    """Writes the events as they come and returns the text of the first generation.

    However it is left, the server's work ends.
    """
    pieces: list[str] = []
    writer = JsonWriter() if arguments.json else TextWriter(arguments.options, has_headings=stream.n > 1)
    with stream:
        try:
            for event in stream:
                if isinstance(event, Tokens) and event.index == 0:
                    pieces.append(event.text)
                writer.write(event)
        except (TreadleError, KeyboardInterrupt):
            writer.break_off()
            raise
    return "".join(pieces)


class JsonWriter:
    """For machines: an event a line."""

    def write(self, event: Event) -> None:
        print_event(event)

    def break_off(self) -> None:
        """Every line is whole."""


class TextWriter:
    """For people: one generation after the other. The events of a later one wait until those before it have ended."""

    def __init__(self, options: GenerateOptions, *, has_headings: bool) -> None:
        self._options, self._has_headings = options, has_headings
        self._current = 0
        self._generation: GenerationWriter | None = None
        self._waiting: dict[int, list[Event]] = defaultdict(list)

    def write(self, event: Event) -> None:
        self._waiting[event.index].append(event)
        while waiting := self._waiting.pop(self._current, None):
            for each in waiting:
                self._write_current(each)

    def break_off(self) -> None:
        if self._generation is not None:
            self._generation.break_off()

    def _write_current(self, event: Event) -> None:
        if self._generation is None:
            if self._has_headings:
                print_piece(f"[{event.index}]\n")
            self._generation = GenerationWriter(self._options)
        self._generation.write(event)
        if isinstance(event, Result):
            self._current += 1
            self._generation = None


class GenerationWriter:
    """Writes one generation: where it is parsed, its content, reasoning and tool calls, else its text."""

    def __init__(self, options: GenerateOptions) -> None:
        self._is_parsed = "parse_tool_calls" in options or "parse_reasoning" in options
        self._echoes = "echo_prompt" in options
        self._line_is_open = False
        self._is_reasoning = False
        self._prompt_logprobs: tuple[TokenLogprob, ...] = ()
        self._logprobs: list[TokenLogprob] = []

    def write(self, event: Event) -> None:
        match event:
            case Tokens():
                self._logprobs += event.logprobs
                if not self._is_parsed:
                    self._write_text(event.text)
            case Prompt():
                self._prompt_logprobs = event.logprobs
                if self._echoes:
                    self._write_text(event.text)
            case Content():
                self._write_text(event.text)
            case Reasoning():
                print_piece(event.text, sys.stderr)
                self._is_reasoning = self._is_reasoning or event.text != ""
            case ToolCallPart():
                self._write_tool_call(event)
            case Result():
                self._end(event)

    def break_off(self) -> None:
        self._end_reasoning()
        if self._line_is_open:
            print_piece("\n")

    def _write_text(self, text: str) -> None:
        if text:
            self._end_reasoning()
            print_piece(text)
            self._line_is_open = True

    def _write_tool_call(self, part: ToolCallPart) -> None:
        if part.name is not None:
            start = "\n" if self._line_is_open else ""
            self._write_text(f"{start}{part.name}(")
        self._write_text(part.arguments_json)
        if part.complete:
            self._write_text(")")

    def _end_reasoning(self) -> None:
        if self._is_reasoning:
            print_piece("\n", sys.stderr)
            self._is_reasoning = False

    def _end(self, result: Result) -> None:
        self._end_reasoning()
        print_piece("\n")
        for whose, logprobs in (("prompt", self._prompt_logprobs), ("output", self._logprobs)):
            if logprobs:
                for line in logprob_table.lines(whose, logprobs):
                    print_piece(f"{line}\n")
        if result.satisfies_constraint is False:
            reason = result.finish_reason.value.replace("_", " ")
            print(f"treadle: the output is only the beginning of what was asked for: {reason}", file=sys.stderr)
