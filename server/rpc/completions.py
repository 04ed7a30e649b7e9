"""Completions: what Complete answers, collected from the messages that Generate would have streamed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from treadle.v1 import generation_pb2 as pb

from server.engine.events import Result


@dataclass
class Completion:
    """One generation, collected to its end."""

    input: int
    """Which input it is of."""
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[pb.TokenLogprob] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[pb.ToolCall] = field(default_factory=list)
    seed: int = 0
    prompt: pb.Prompt | None = None
    result: pb.Result | None = None
    mean_logprob: float | None = None
    _open_calls: dict[int, list[pb.ToolCallChunk]] = field(default_factory=dict)

    def hear(self, message: pb.GenerateResponse) -> None:
        """Takes the generation's next message."""
        match message.WhichOneof("event"):
            case "started":
                self.seed = message.started.seed
            case "prompt":
                self.prompt = message.prompt
            case "tokens":
                self.text.append(message.tokens.text)
                self.token_ids += message.tokens.token_ids
                self.logprobs += message.tokens.logprobs
            case "content":
                self.content.append(message.content.text)
            case "reasoning":
                self.reasoning.append(message.reasoning.text)
            case "tool_call":
                self._hear_call(message.tool_call)
            case "result":
                self.result = message.result

    def _hear_call(self, chunk: pb.ToolCallChunk) -> None:
        chunks = self._open_calls.setdefault(chunk.call, [])
        chunks.append(chunk)
        if chunk.complete:
            arguments = "".join(chunk.arguments_json for chunk in chunks)
            self.tool_calls.append(pb.ToolCall(id=chunks[0].id, name=chunks[0].name, arguments_json=arguments))

    def message(self, index: int, prompt: pb.Prompt | None) -> pb.Completion:
        return pb.Completion(
            input=self.input,
            index=index,
            text="".join(self.text),
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            content="".join(self.content),
            reasoning="".join(self.reasoning),
            tool_calls=self.tool_calls,
            seed=self.seed,
            prompt=prompt,
            result=self.result,
            mean_logprob=self.mean_logprob,
        )


class Completions:
    """`count` generations, `per_input` of each input, of which the `best` are answered; where it is None, all are."""

    def __init__(self, count: int, per_input: int, best: int | None = None) -> None:
        self._per_input, self._best = per_input, best
        self._all = [Completion(i // per_input) for i in range(count)]

    def hear(self, messages: Iterable[pb.GenerateResponse]) -> None:
        for message in messages:
            self._all[message.index].hear(message)

    def end(self, index: int, result: Result) -> None:
        """Notes how probable a generation was that has ended."""
        self._all[index].mean_logprob = result.mean_logprob

    def answer(self, request_id: str) -> bytes:
        """The CompleteResponse, serialized: it may be large."""
        groups = [self._all[i : i + self._per_input] for i in range(0, len(self._all), self._per_input)]
        completions = [
            # The first of an input has its prompt, whichever generation was told it.
            kept.message(index, group[0].prompt if index == 0 else None)
            for group in groups
            for index, kept in enumerate(self._kept(group))
        ]
        message = pb.CompleteResponse(request_id=request_id, completions=completions, seed=self._all[0].seed)
        return message.SerializeToString()

    def _kept(self, group: Sequence[Completion]) -> Sequence[Completion]:
        """The most probable first, of equals the one of lower index, where the best are wanted; else all in order."""
        return group if self._best is None else sorted(group, key=_improbability)[: self._best]


def _improbability(completion: Completion) -> float:
    """Infinite for a generation that ended before its first token."""
    return math.inf if completion.mean_logprob is None else -completion.mean_logprob
