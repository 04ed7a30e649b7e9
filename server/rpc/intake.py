"""The Intake: what every servicer does with a call before the engine has its requests."""

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
    """Threads for what would hold up the event loop."""

    text: TextWorkers
    slow: TextWorkers
    """For what may take seconds, and must not hold up all text."""


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

    async def compiled(self, source: ConstraintSource, served: Served) -> Constraint:
        compiler = served.constraints
        cached = compiler.cached(source)
        return cached if cached is not None else await self.workers.slow.run(compiler.compile, source)

    async def note(self, call: Call, asked: Asked, served: Served) -> None:
        """Tells the call what it asks for, for its log and its observers."""
        call.ask(asked.requests[0], served.model.description.id)
        if self.settings.log_prompts:
            prompts = list(dict.fromkeys(request.prompt_token_ids for request in asked.requests))
            decode_all = partial(_decode_prompts, prompts, served.tokenizer)
            call.prompt, call.texts = await self.workers.text.run(decode_all), {}


def _decode_prompts(prompts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> str:
    return "\n".join(tokenizer.decode(prompt, keep_special_tokens=True) for prompt in prompts)
