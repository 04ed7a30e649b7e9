"""BlankRuns: leaves out text that is only whitespace, such as the line breaks between two calls."""

from collections.abc import Iterable

from server.parsing.parts import Content, Part, Reasoning, ToolCallPart


class BlankRuns:
    """Passes parts on, but no run of content or of reasoning that is whitespace from its beginning to its end.

    Whitespace at the beginning of a run waits for what follows it; a run with anything else in it is passed on as it
    was written.
    """

    def __init__(self) -> None:
        self._run: type[Part] | None = None
        self._blank: list[str] = []
        self._is_blank = True

    def push(self, parts: Iterable[Part]) -> list[Part]:
        return [passed for part in parts if (passed := self._pass(part)) is not None]

    def _pass(self, part: Part) -> Part | None:
        if type(part) is not self._run:
            self._run, self._is_blank = type(part), True
            self._blank.clear()
        if isinstance(part, ToolCallPart) or not self._is_blank:
            return part
        self._blank.append(part.text)
        if part.text.isspace():
            return None
        self._is_blank = False
        return self._begin_run(part)

    def _begin_run(self, part: Content | Reasoning) -> Part:
        text = "".join(self._blank)
        self._blank.clear()
        return type(part)(text)
