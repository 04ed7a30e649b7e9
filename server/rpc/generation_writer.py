"""The GenerationWriter: one generation's events as the messages that its client asked for."""

from dataclasses import dataclass

from treadle.v1 import generation_pb2 as pb

from server.engine.events import PromptLogprobs, Result, Started, Tokens, Usage
from server.engine.plan import TokenLogprob
from server.engine.request import Request
from server.engine.tokenizer import Tokenizer
from server.parsing.output_parser import OutputParser
from server.parsing.parts import Content, Part, Reasoning, ToolCallPart
from server.parsing.tool_call_id import new_tool_call_id
from server.rpc import to_wire
from server.rpc.output import Output


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """The prompt as its client gets it back."""

    text: str
    ends_in_reasoning: bool
    """Whether the generation begins inside reasoning."""


class GenerationWriter:
    """Numbers all messages with the generation's `index`."""

    def __init__(self, index: int, request: Request, output: Output, prompt: ShownPrompt, tokenizer: Tokenizer) -> None:
        self._index, self._request, self._output = index, request, output
        self._prompt, self._tokenizer = prompt, tokenizer
        self._is_prompt_told = False
        self._started: Started | None = None
        self._token_count = 0
        self._parser = _parser(output, prompt) if output.parses else None

    def messages(self, event: Started | PromptLogprobs | Tokens | Result) -> list[pb.GenerateResponse]:
        """What the client is told of the event; nothing where it asked for none of it."""
        match event:
            case Started():
                return self._start(event)
            case PromptLogprobs():
                return [self._tell_prompt(event.logprobs)]
            case Tokens():
                return self._tokens(event)
            case Result():
                return self._end(event)

    def _start(self, event: Started) -> list[pb.GenerateResponse]:
        self._started = event
        messages = [self._response(started=to_wire.started(event, self._request.id))]
        if self._output.echo_prompt and self._output.prompt_logprobs is None:
            messages.append(self._tell_prompt())
        return messages

    def _end(self, event: Result) -> list[pb.GenerateResponse]:
        # A time limit may have passed before the prompt was computed.
        untold = self._output.shows_prompt and not self._is_prompt_told
        parts = [] if self._parser is None else self._parser.flush()
        prompt = [self._tell_prompt()] if untold else []
        return [*prompt, *self._parts(parts), self._response(result=to_wire.result(event))]

    def _tell_prompt(self, logprobs: tuple[TokenLogprob, ...] = ()) -> pb.GenerateResponse:
        self._is_prompt_told = True
        token_ids, text = self._request.prompt_token_ids, self._prompt.text
        prompt = pb.Prompt(token_ids=token_ids, text=text, logprobs=map(self._logprob, logprobs))
        return self._response(prompt=prompt)

    def _tokens(self, event: Tokens) -> list[pb.GenerateResponse]:
        self._token_count += len(event.token_ids)
        chunk = pb.TokenChunk(
            token_ids=event.token_ids if self._output.token_ids else (),
            text=event.text if self._output.text else "",
            logprobs=map(self._logprob, event.logprobs),
        )
        parts = [] if self._parser is None else self._parser.push(event.text)
        if not (chunk.token_ids or chunk.text or chunk.logprobs):
            return self._parts(parts)
        if self._output.usage:
            chunk.usage.CopyFrom(self._usage())
        return [self._response(tokens=chunk), *self._parts(parts)]

    def _usage(self) -> pb.Usage:
        assert self._started is not None
        started = self._started
        return to_wire.usage(Usage(started.prompt_token_count, self._token_count, started.cached_token_count))

    def _parts(self, parts: list[Part]) -> list[pb.GenerateResponse]:
        return [self._part(part) for part in parts]

    def _part(self, part: Part) -> pb.GenerateResponse:
        match part:
            case Content():
                return self._response(content=pb.ContentChunk(text=part.text))
            case Reasoning():
                return self._response(reasoning=pb.ReasoningChunk(text=part.text))
            case ToolCallPart():
                return self._response(
                    tool_call=pb.ToolCallChunk(
                        call=part.call,
                        id=part.id,
                        name=part.name,
                        arguments_json=part.arguments_json,
                        complete=part.complete,
                    )
                )

    def _logprob(self, logprob: TokenLogprob) -> pb.TokenLogprob:
        return pb.TokenLogprob(
            token_id=logprob.token_id,
            logprob=logprob.logprob,
            rank=logprob.rank,
            text=self._tokenizer.token_text(logprob.token_id),
            alternatives=(
                pb.Alternative(
                    token_id=alternative.token_id,
                    logprob=alternative.logprob,
                    text=self._tokenizer.token_text(alternative.token_id),
                )
                for alternative in logprob.alternatives
            ),
        )

    def _response(
        self,
        *,
        started: pb.Started | None = None,
        prompt: pb.Prompt | None = None,
        tokens: pb.TokenChunk | None = None,
        content: pb.ContentChunk | None = None,
        reasoning: pb.ReasoningChunk | None = None,
        tool_call: pb.ToolCallChunk | None = None,
        result: pb.Result | None = None,
    ) -> pb.GenerateResponse:
        return pb.GenerateResponse(
            index=self._index,
            started=started,
            prompt=prompt,
            tokens=tokens,
            content=content,
            reasoning=reasoning,
            tool_call=tool_call,
            result=result,
        )


def _parser(output: Output, prompt: ShownPrompt) -> OutputParser:
    return OutputParser(
        reasoning=output.reasoning,
        tool_calls=output.tool_calls,
        begins_in_reasoning=prompt.ends_in_reasoning,
        new_call_id=new_tool_call_id,
    )
