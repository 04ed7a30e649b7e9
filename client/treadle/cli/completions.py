"""Completions that come whole, written as if they had been streamed one after the other."""

from collections.abc import Iterator, Sequence

from treadle.cli.answers import TextWriter
from treadle.cli.arguments import Arguments
from treadle.cli.printing import print_completion
from treadle.events import Completion, Content, Event, Reasoning, Tokens, ToolCallPart


def write_completions(completions: Sequence[Completion], arguments: Arguments) -> None:
    if arguments.json:
        for completion in completions:
            print_completion(completion)
        return
    writer = TextWriter(arguments.options, has_headings=len(completions) > 1)
    for completion in completions:
        for event in _events(completion):
            writer.write(event)


def _events(whole: Completion) -> Iterator[Event]:
    if whole.prompt is not None:
        yield whole.prompt
    yield Tokens(whole.index, whole.token_ids, whole.text, whole.logprobs)
    yield Reasoning(whole.index, whole.reasoning)
    yield Content(whole.index, whole.content)
    for i, call in enumerate(whole.tool_calls):
        yield ToolCallPart(whole.index, i, call.id, call.name, call.arguments_json, complete=True)
    yield whole.result
