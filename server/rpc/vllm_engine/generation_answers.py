"""The GenerationAnswers: the events of a call's generations as a client of vllm.grpc.engine gets them, serialized."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from server.engine.events import Finish, FinishReason, PromptLogprobs, Result, Started, Tokens
from server.engine.plan import TokenLogprob
from server.rpc.generations import FEW_LOGPROBS, Heard

ABORTED = "abort"
FINISH_REASONS = {
    FinishReason.END_OF_SEQUENCE: "stop",
    FinishReason.STOP_SEQUENCE: "stop",
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.MAX_NEW_TOKENS: "length",
    FinishReason.CONTEXT_LENGTH: "length",
    FinishReason.TIME_LIMIT: "length",
}


@dataclass(slots=True)
class _Told:
    """What has come of one generation."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    is_prompt_told: bool = False
    is_over: bool = False
    unsent_ids: list[int] = field(default_factory=list)
    """Of a call that is answered once, all of them; likewise the log-probabilities."""
    unsent_logprobs: list[TokenLogprob] = field(default_factory=list)


class GenerationAnswers:
    """A call that streams gets chunks of ids as they come, and a `complete` for each generation; another one only that.

    `prompt` is what prompt log-probabilities are told of.
    """

    def __init__(self, count: int, *, is_streamed: bool) -> None:
        self._is_streamed = is_streamed
        self._generations = [_Told() for _ in range(count)]
        self._prompt: Sequence[int] = ()
        self._prompt_logprobs: Sequence[TokenLogprob] | None = None

    def show_prompt(self, token_ids: Sequence[int]) -> None:
        """The prompt whose tokens' log-probabilities will come."""
        self._prompt = token_ids

    def is_long(self, heard: Heard) -> bool:
        """Whether writing what follows the event may hold the event loop up."""
        generation = self._generations[heard.index]
        unsent = len(generation.unsent_logprobs)
        if isinstance(heard.event, Tokens):
            unsent += len(heard.event.logprobs)
        tells_prompt = self._prompt_logprobs is not None and not generation.is_prompt_told
        return tells_prompt or unsent > FEW_LOGPROBS

    def after(self, heard: Heard) -> list[bytes]:
        """What the client gets after the event: one message or none."""
        generation, index = self._generations[heard.index], heard.index
        match heard.event:
            case Started():
                generation.prompt_tokens = heard.event.prompt_token_count
                generation.cached_tokens = heard.event.cached_token_count
            case PromptLogprobs():
                self._prompt_logprobs = heard.event.logprobs
            case Tokens():
                generation.completion_tokens += len(heard.event.token_ids)
                generation.unsent_ids += heard.event.token_ids
                generation.unsent_logprobs += heard.event.logprobs
                if self._is_streamed and generation.unsent_ids:
                    return [self._chunk(index, generation)]
            case Result():
                finish = heard.event.finish
                return [self._complete(index, generation, FINISH_REASONS[finish.reason], finish)]
        return []

    def end(self, index: int) -> None:
        """The client is told of this generation's end from here on, whatever happens to the call."""
        self._generations[index].is_over = True

    def aborted(self) -> Iterator[bytes]:
        """The ends of those that are not over, where the call has been aborted."""
        for index, generation in enumerate(self._generations):
            if not generation.is_over:
                yield self._complete(index, generation, ABORTED)

    def _chunk(self, index: int, told: _Told) -> bytes:
        chunk = pb.GenerateStreamChunk(
            index=index,
            token_ids=told.unsent_ids,
            prompt_tokens=told.prompt_tokens,
            completion_tokens=told.completion_tokens,
            cached_tokens=told.cached_tokens,
            output_logprobs=_output_logprobs(told.unsent_logprobs) if told.unsent_logprobs else None,
            input_logprobs=self._input_logprobs(told),
        )
        told.unsent_ids, told.unsent_logprobs = [], []
        return pb.GenerateResponse(chunk=chunk).SerializeToString()

    def _complete(self, index: int, told: _Told, reason: str, finish: Finish | None = None) -> bytes:
        complete = pb.GenerateComplete(
            index=index,
            output_ids=told.unsent_ids,
            finish_reason=reason,
            prompt_tokens=told.prompt_tokens,
            completion_tokens=told.completion_tokens,
            cached_tokens=told.cached_tokens,
            output_logprobs=_output_logprobs(told.unsent_logprobs) if told.unsent_logprobs else None,
            input_logprobs=self._input_logprobs(told),
        )
        if finish is not None and finish.stop_sequence is not None:
            complete.matched_stop_str = finish.stop_sequence
        if finish is not None and finish.stop_token_id is not None:
            complete.matched_token_id = finish.stop_token_id
        return pb.GenerateResponse(complete=complete).SerializeToString()

    def _input_logprobs(self, told: _Told) -> pb.InputLogProbs | None:
        """Once for each generation; nothing is told of the prompt's first token."""
        if self._prompt_logprobs is None or told.is_prompt_told:
            return None
        told.is_prompt_told = True
        return pb.InputLogProbs(
            token_ids=self._prompt,
            token_logprobs=(
                pb.InputTokenLogProb(),
                *(pb.InputTokenLogProb(value=each.logprob) for each in self._prompt_logprobs),
            ),
            top_logprobs=(pb.TopLogProbs(), *map(_top_logprobs, self._prompt_logprobs)),
        )


def _output_logprobs(logprobs: Sequence[TokenLogprob]) -> pb.OutputLogProbs:
    return pb.OutputLogProbs(
        token_logprobs=(each.logprob for each in logprobs),
        token_ids=(each.token_id for each in logprobs),
        top_logprobs=map(_top_logprobs, logprobs),
    )


def _top_logprobs(logprob: TokenLogprob) -> pb.TopLogProbs:
    return pb.TopLogProbs(
        values=(alternative.logprob for alternative in logprob.alternatives),
        token_ids=(alternative.token_id for alternative in logprob.alternatives),
    )
