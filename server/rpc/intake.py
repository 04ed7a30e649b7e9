"""The Intake: what every servicer does with a call before the engine has its requests."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from google.protobuf.message import Message

from server.engine.constraint import Constraint, ConstraintSource
from server.engine.engine import Engine, Lifecycle, Served
from server.engine.errors import Draining
from server.engine.tokenizer import Tokenizer
from server.rpc.call import Call, OpenCalls
from server.rpc.decoding import decode
from server.rpc.errors import MessageTooLarge
from server.rpc.from_wire import Asked
from server.rpc.text_workers import TextWorkers

SMALL_MESSAGE_BYTES = 4 * 1024
"""Parsed in less time than it takes to hand them to another thread."""

AnyMessage = TypeVar("AnyMessage", bound=Message)


@dataclass(frozen=True, slots=True)
class Workers:
    """Threads for what would hold up the event loop. What may take seconds holds up only others of its kind."""

    text: TextWorkers
    constraints: TextWorkers
    """To compile them."""
    templates: TextWorkers
    """To render chats by templates of their own."""

    def close(self) -> None:
        for workers in (self.text, self.constraints, self.templates):
            workers.close()


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    max_message_bytes: int
    log_prompts: bool


class Intake:
    """Shared by the servicers, as are the engine, the open calls and the workers that it has."""

    def __init__(self, engine: Engine, calls: OpenCalls, workers: Workers, settings: IntakeSettings) -> None:
        self.engine, self.calls, self.workers, self.settings = engine, calls, workers, settings

    async def decode(self, call: Call, message_class: type[AnyMessage], raw: bytes) -> AnyMessage:
        """Raises MessageTooLarge, TooManyOpenBytes, and what is wrong with the message."""
        limit = self.settings.max_message_bytes
        if len(raw) > limit:
            raise MessageTooLarge(f"the request message has {len(raw)} bytes: must be at most {limit}")
        self.calls.count_message(call, len(raw))
        if len(raw) <= SMALL_MESSAGE_BYTES:
            return decode(message_class, raw)
        return await self.workers.text.run(decode, message_class, raw)

    def served(self) -> Served:
        """What new work is done with; refused before anything is spent on it where there can be none."""
        if self.engine.lifecycle in (Lifecycle.DRAINING, Lifecycle.STOPPED):
            raise Draining("the server is shutting down")
        return self.engine.served

    async def compiled(
        self, source: ConstraintSource, served: Served, time_left: float | None = None
    ) -> Constraint | None:
        """None where `time_left`, the seconds of the request's time limit, has passed before. That is not missed: the
        engine ends a request whose time is up before it computes anything.
        """
        compiler = served.constraints
        if (cached := compiler.cached(source)) is not None:
            return cached
        try:
            async with asyncio.timeout(time_left):
                return await self.workers.constraints.run(compiler.compile, source)
        except TimeoutError:
            return None

    async def note(self, call: Call, asked: Asked, served: Served) -> None:
        """Tells the call what it asks for, for its log and its observers."""
        call.ask(asked.requests[0], served.model.description.id)
        if self.settings.log_prompts:
            prompts = list(dict.fromkeys(request.prompt_token_ids for request in asked.requests))
            decode_all = partial(_decode_prompts, prompts, served.tokenizer)
            call.prompt, call.texts = await self.workers.text.run(decode_all), {}


def _decode_prompts(prompts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> str:
    return "\n".join(tokenizer.decode(prompt, keep_special_tokens=True) for prompt in prompts)
