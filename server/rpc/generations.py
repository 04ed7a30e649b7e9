"""The Generations of one call while they run: from the engine's events to the client's messages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from treadle.v1 import generation_pb2 as pb

from server.engine.engine import Engine
from server.engine.events import Failure, PromptLogprobs, Result, Started, Tokens
from server.engine.result_stream import ResultStream
from server.engine.tokenizer import Tokenizer
from server.rpc.call import Call
from server.rpc.errors import EndedWithoutResult
from server.rpc.from_wire import Asked
from server.rpc.generation_writer import GenerationWriter
from server.rpc.text_workers import TextWorkers

FEW_LOGPROBS = 32
"""Tokens whose log-probabilities are written in less time than it takes to hand them to another thread."""
UNREAD_TIME = 1.0
"""Seconds a client gets to read what came before a failure."""


@dataclass(frozen=True, slots=True)
class Heard:
    """An event of a generation that goes on, or came to its end."""

    index: int
    event: Started | PromptLogprobs | Tokens | Result


async def heard_of(stream: ResultStream, call: Call) -> AsyncIterator[Heard]:
    """Ends when every generation has its Result; raises the error of one that fails."""
    unended = set(range(len(stream.requests)))
    async for heard in stream:
        if isinstance(heard.event, Failure):
            raise heard.event.error
        call.hear(heard.index, heard.event)
        yield Heard(heard.index, heard.event)
        if isinstance(heard.event, Result):
            unended.remove(heard.index)
    if unended:
        raise EndedWithoutResult("a generation ended without a result")


@dataclass(frozen=True, slots=True)
class Told:
    """An event and the messages that tell the client of it."""

    index: int
    event: Started | PromptLogprobs | Tokens | Result
    messages: list[pb.GenerateResponse]


class Generations:
    """Yields what there is to tell. Ends when every generation has its Result; raises the error of one that fails."""

    def __init__(self, asked: Asked, stream: ResultStream, call: Call, tokenizer: Tokenizer) -> None:
        self._stream, self._call = stream, call
        self._shows_prompt = asked.output.shows_prompt
        of_siblings = replace(asked.output, echo_prompt=False, prompt_logprobs=None)
        self._writers = [
            GenerationWriter(
                index, request, of_siblings if index % asked.counts.made else asked.output, prompt, tokenizer
            )
            for index, (request, prompt) in enumerate(zip(asked.requests, asked.prompts, strict=True))
        ]

    async def told(self, workers: TextWorkers) -> AsyncIterator[Told]:
        async for heard in heard_of(self._stream, self._call):
            writer = self._writers[heard.index]
            if self._is_long(heard.event):
                messages = await workers.run(writer.messages, heard.event)
            else:
                messages = writer.messages(heard.event)
            yield Told(heard.index, heard.event, messages)

    def _is_long(self, event: Started | PromptLogprobs | Tokens | Result) -> bool:
        """Whether its messages may hold the event loop up: with a prompt, or many tokens with their alternatives."""
        if isinstance(event, Tokens):
            return len(event.logprobs) > FEW_LOGPROBS
        return self._shows_prompt


@asynccontextmanager
async def in_engine(engine: Engine, asked: Asked, call: Call) -> AsyncIterator[ResultStream]:
    """The generations are in the engine from here until the block is left, however it is left.

    A client that does not read cannot hold the block up by its connection's flow control: when a generation has failed,
    the block is left by the failure's error within UNREAD_TIME.
    """
    count = len(asked.requests)
    load = engine.load()
    call.account.check_room(count, slots_are_taken=load.running + load.waiting + count > load.slots)
    stream = engine.submit(asked.requests, asked.output.chunk_interval)
    call.account.enter(count, sum(len(request.prompt_token_ids) for request in asked.requests))
    try:
        async with asyncio.timeout(None) as patience:
            watching = asyncio.create_task(_lose_patience(stream, patience))
            try:
                yield stream
            finally:
                watching.cancel()
    except TimeoutError:
        assert stream.failure is not None
        raise stream.failure.error from None
    finally:
        engine.cancel(stream)
        call.account.leave(count, unstarted=count - len(call.started))


async def _lose_patience(stream: ResultStream, patience: asyncio.Timeout) -> None:
    await stream.wait_for_failure()
    patience.reschedule(asyncio.get_running_loop().time() + UNREAD_TIME)
