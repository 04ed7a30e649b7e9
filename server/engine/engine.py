"""The Engine: the scheduler's thread, seen from the event loop."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVarTuple

from server.engine.constraint import ConstraintCompiler
from server.engine.counters import Counts
from server.engine.errors import Draining, DuplicateRequestId, EngineDied, EngineError, NotReady, SlowReader
from server.engine.events import Failure, Result
from server.engine.load import Load
from server.engine.model import Model
from server.engine.queue import RequestQueue
from server.engine.request import Request
from server.engine.result_stream import ResultStream
from server.engine.scheduler import Delivery, Scheduler
from server.engine.tokenizer import Tokenizer

Arguments = TypeVarTuple("Arguments")

STOP_TIMEOUT = 10.0
"""Seconds a step may take to end when the engine stops; the thread is a daemon and dies with the process after that."""
MAX_GENERATIONS = 128
"""Of one call, however many the server takes of all."""


class Lifecycle(Enum):
    LOADING = auto()
    READY = auto()
    DRAINING = auto()
    STOPPED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Served:
    """What is loaded and served."""

    model: Model
    tokenizer: Tokenizer
    constraints: ConstraintCompiler


@dataclass(frozen=True, slots=True)
class EngineSettings:
    max_slots: int
    """Sequences that run at once."""
    max_waiting: int
    """Requests in flight beyond those."""
    max_step_tokens: int
    """Tokens a step computes at most; above max_slots."""
    max_unread_tokens: int
    """Tokens a client may leave unread before its request is ended."""
    stuck_after: float
    """Seconds one turn of the loop may last before it counts as stuck."""
    prefix_cache: bool = True
    """Whether requests share the KV blocks of equal prefixes."""
    priority_aging: float = 10.0
    """Seconds of waiting that are worth a point of priority."""
    preempt_lower_priority: bool = False
    """Whether a request takes the slot of one of lower priority."""
    max_step_time: float = 0.25
    """Seconds a step that computes prompts lasts, about; their tokens are as many as that allows."""

    @property
    def max_in_flight(self) -> int:
        return self.max_slots + self.max_waiting

    @property
    def max_generations(self) -> int:
        """Of one call."""
        return min(MAX_GENERATIONS, self.max_in_flight)


class Engine:
    """Takes requests on the event loop and hands them to the scheduler, which lives on a thread of its own.

    The thread loads the model and warms it up before the lifecycle is READY. All methods but the thread's own are for
    the event loop. What crosses back of a step is one call, whatever the number of sequences.
    """

    def __init__(self, load: Callable[[], Served], settings: EngineSettings) -> None:
        self.settings = settings
        self.failure: BaseException | None = None
        self._load_served = load
        self._queue = RequestQueue(settings.max_in_flight)
        self._streams: dict[int, ResultStream] = {}
        self._claimed_ids: set[str] = set()
        self._lifecycle = Lifecycle.LOADING
        self._changed = asyncio.Event()
        self._served: Served | None = None
        self._scheduler: Scheduler | None = None
        self._thread = threading.Thread(target=self._run_thread, name="scheduler", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def lifecycle(self) -> Lifecycle:
        return self._lifecycle

    async def lifecycle_after(self, seen: Lifecycle) -> Lifecycle:
        """Waits until the lifecycle is another than `seen`."""
        while self._lifecycle is seen:
            await self._changed.wait()
        return self._lifecycle

    @property
    def served(self) -> Served:
        """Raises NotReady until there is a model, warm, and EngineDied when there will be none."""
        if self._lifecycle is Lifecycle.FAILED:
            raise EngineDied("the engine has failed")
        if self._served is None:
            raise NotReady("the model is loading")
        return self._served

    def submit(self, requests: Sequence[Request], chunk_interval: float = 0.0) -> ResultStream:
        """Takes in the requests of one call, which share their id, to run as soon as there are slots.

        Raises NotReady, Draining, EngineDied, InvalidArgument, DuplicateRequestId or QueueFull, and keeps nothing then.
        """
        model = self.served.model.description
        if self._lifecycle is not Lifecycle.READY:
            raise Draining("the server is shutting down")
        self._queue.check_room(len(requests))
        # The generations of one prompt differ in nothing that is checked.
        for request in {id(request.prompt_token_ids): request for request in requests}.values():
            request.check_fits(model)
        stream = ResultStream(requests, chunk_interval)
        if stream.claimed_id in self._claimed_ids:
            raise DuplicateRequestId(f"request_id {stream.claimed_id!r} is in flight")
        self._queue.put(*requests)
        self._streams.update((request.number, stream) for request in requests)
        if stream.claimed_id is not None:
            self._claimed_ids.add(stream.claimed_id)
        return stream

    def cancel(self, stream: ResultStream) -> None:
        """Ends what nobody waits for any more; its slots and blocks are free within a step. Ended requests stay so."""
        in_flight = [number for number in stream.unended_numbers if self._streams.pop(number, None) is not None]
        for number in in_flight:
            self._queue.cancel(number)
        if in_flight:
            self._forget(stream)

    def load(self) -> Load:
        """Raises NotReady until there is a model, warm."""
        if self._scheduler is None:
            raise NotReady("the model is loading")
        return self._scheduler.load()

    def counts(self) -> Counts:
        """Raises NotReady until there is a model, warm."""
        if self._scheduler is None:
            raise NotReady("the model is loading")
        return self._scheduler.counts()

    def is_making_progress(self) -> bool:
        """Whether the thread lives and its loop turns; true while the model loads, whose time has no known bound."""
        if self._scheduler is None or self.failure is not None:
            return self.failure is None
        stuck = time.monotonic() - self._scheduler.turned_at > self.settings.stuck_after
        return self.failure is None and self._thread.is_alive() and not stuck

    def drain(self) -> None:
        """Refuses new requests; those in flight go on."""
        if self._lifecycle in (Lifecycle.LOADING, Lifecycle.READY):
            self._enter(Lifecycle.DRAINING)

    async def idle(self) -> None:
        """Waits until nothing is in flight."""
        while self._streams:
            await self._changed.wait()

    async def stop(self) -> None:
        """Ends what is in flight with Draining, and the thread, which gets STOP_TIMEOUT to end its step."""
        self.drain()
        if self._scheduler is not None:
            self._scheduler.stop()
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT)
        self._end_streams(Draining("the server is shutting down"))
        if self._lifecycle is not Lifecycle.FAILED:
            self._enter(Lifecycle.STOPPED)

    def _run_thread(self) -> None:
        try:
            served = self._load_served()
            served.model.warm_up()
            settings = self.settings
            scheduler = Scheduler(
                served.model,
                served.tokenizer,
                self._queue,
                lambda deliveries: self._on_loop(self._dispatch, deliveries),
                settings.max_slots,
                settings.max_step_tokens,
                settings.prefix_cache,
                settings.priority_aging,
                settings.preempt_lower_priority,
                settings.max_step_time,
            )
            self._on_loop(self._become_ready, served, scheduler)
            scheduler.run()
        except BaseException as error:
            self._on_loop(self._fail, error)

    def _on_loop(self, callback: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending and nobody listens
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _become_ready(self, served: Served, scheduler: Scheduler) -> None:
        self._served, self._scheduler = served, scheduler
        if self._lifecycle is Lifecycle.LOADING:
            self._enter(Lifecycle.READY)
        else:
            scheduler.stop()

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._enter(Lifecycle.FAILED)
        self._end_streams(EngineDied("the engine has failed"))

    def _dispatch(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            stream = self._streams.get(delivery.number)
            if stream is None:
                continue  # cancelled while the event was on its way
            stream.put(delivery.number, delivery.event)
            if isinstance(delivery.event, Result | Failure):
                del self._streams[delivery.number]
                if not stream.unended_numbers:
                    self._forget(stream)
            elif stream.unread_token_count > self.settings.max_unread_tokens:
                self.cancel(stream)
                stream.put(delivery.number, Failure(SlowReader(f"{stream.unread_token_count} tokens were left unread")))

    def _end_streams(self, error: EngineError) -> None:
        for number, stream in self._streams.items():
            stream.put(number, Failure(error))
        for stream in set(self._streams.values()):
            self._forget(stream)
        self._streams.clear()

    def _forget(self, stream: ResultStream) -> None:
        """Lets the request id be claimed again, when the last of the stream's requests is no longer in flight."""
        if stream.claimed_id is not None:
            self._claimed_ids.remove(stream.claimed_id)
        self._announce_change()

    def _enter(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._announce_change()

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
