import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from server.engine.engine import Engine, EngineSettings, Lifecycle, Served
from server.engine.errors import (
    Draining,
    DuplicateRequestId,
    EngineDied,
    InvalidArgument,
    NotReady,
    QueueFull,
    SlowReader,
    StepFailed,
)
from server.engine.events import Event, Failure, Result, Started, Tokens
from server.engine.plan import StepPlan
from server.engine.request import Stopping
from server.engine.result_stream import ResultStream
from tests.server.engine.driver import expected_tokens, request
from tests.server.fakes import FakeConstraints, FakeModel, FakeTokenizer

SETTINGS = EngineSettings(max_slots=2, max_waiting=2, max_step_tokens=16, max_unread_tokens=1000, stuck_after=60.0)
LONG = Stopping(max_new_tokens=100, ignore_eos=True)


class Gate:
    """Holds a model's steps until it is opened."""

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Event()

    def __call__(self, plan: StepPlan) -> None:
        self.entered.set()
        assert self.open.wait(60)


@asynccontextmanager
async def running(
    model: FakeModel | None = None, settings: EngineSettings = SETTINGS, load: Callable[[], Served] | None = None
) -> AsyncIterator[Engine]:
    model = model or FakeModel()
    engine = Engine(load or (lambda: Served(model, FakeTokenizer(), FakeConstraints())), settings)
    engine.start()
    await engine.lifecycle_after(Lifecycle.LOADING)
    yield engine
    await engine.stop()
    if engine._scheduler is not None and engine.lifecycle is Lifecycle.STOPPED:
        engine._scheduler.check_integrity()
        assert engine._scheduler.pool.used_count == 0


async def events_of(stream: ResultStream) -> list[Event]:
    return [heard.event async for heard in stream]


async def test_requests_stream_their_tokens_across_the_thread() -> None:
    model = FakeModel()
    async with running(model) as engine:
        asked = [request([i], Stopping(max_new_tokens=9), request_id=str(i)) for i in range(4)]
        heard = await asyncio.gather(*[events_of(engine.submit([req])) for req in asked])
        await engine.idle()
    for req, events in zip(asked, heard, strict=True):
        assert isinstance(events[0], Started)
        assert isinstance(events[-1], Result)
        tokens = [i for event in events if isinstance(event, Tokens) for i in event.token_ids]
        assert tokens == expected_tokens(req, model.description)


async def test_nothing_is_taken_before_the_model_is_warm() -> None:
    warm, entered = threading.Event(), threading.Event()

    class Cold(FakeModel):
        def warm_up(self) -> None:
            entered.set()
            assert warm.wait(60)

    engine = Engine(lambda: Served(Cold(), FakeTokenizer(), FakeConstraints()), SETTINGS)
    engine.start()
    await asyncio.to_thread(entered.wait, 60)
    assert engine.lifecycle is Lifecycle.LOADING
    assert engine.is_making_progress()
    with pytest.raises(NotReady):
        engine.submit([request()])
    with pytest.raises(NotReady):
        engine.load()
    warm.set()
    assert await engine.lifecycle_after(Lifecycle.LOADING) is Lifecycle.READY
    await engine.stop()


async def test_a_request_id_in_flight_is_refused_and_free_again_at_once_after_a_cancel() -> None:
    gate = Gate()
    async with running(FakeModel(before_step=gate)) as engine:
        first = engine.submit([request(stopping=LONG, request_id="same")])
        with pytest.raises(DuplicateRequestId, match="'same'"):
            engine.submit([request(request_id="same")])
        engine.cancel(first)
        second = engine.submit([request(request_id="same")])
        gate.open.set()
        assert isinstance((await events_of(second))[-1], Result)
        engine.cancel(second)


async def test_slots_and_waiting_places_are_the_bound_and_come_back() -> None:
    gate = Gate()
    async with running(FakeModel(before_step=gate)) as engine:
        streams = [engine.submit([request(request_id=str(i))]) for i in range(4)]
        with pytest.raises(QueueFull, match="4 requests"):
            engine.submit([request(request_id="5")])
        gate.open.set()
        await asyncio.gather(*map(events_of, streams))
        await engine.idle()
        assert isinstance((await events_of(engine.submit([request(request_id="5")])))[-1], Result)


async def test_what_could_never_fit_is_refused_and_nothing_of_it_is_kept() -> None:
    async with running() as engine:
        with pytest.raises(InvalidArgument):
            engine.submit([request([1] * 500, request_id="big")])
        assert isinstance((await events_of(engine.submit([request(request_id="big")])))[-1], Result)


async def test_draining_refuses_the_new_and_finishes_the_old() -> None:
    gate = Gate()
    async with running(FakeModel(before_step=gate)) as engine:
        stream = engine.submit([request()])
        engine.drain()
        assert engine.lifecycle is Lifecycle.DRAINING
        with pytest.raises(Draining):
            engine.submit([request(request_id="late")])
        gate.open.set()
        assert isinstance((await events_of(stream))[-1], Result)
        await engine.idle()


async def test_stopping_ends_what_is_left_with_draining() -> None:
    gate = Gate()
    async with running(FakeModel(before_step=gate)) as engine:
        streams = [engine.submit([request(stopping=LONG, request_id=str(i))]) for i in range(4)]
        await asyncio.to_thread(gate.entered.wait, 60)
        asyncio.get_running_loop().call_later(0.05, gate.open.set)
        await engine.stop()
        assert engine.lifecycle is Lifecycle.STOPPED
        for stream in streams:
            end = (await events_of(stream))[-1]
            assert isinstance(end, Failure)
            assert isinstance(end.error, Draining)


async def test_a_model_that_does_not_load_is_a_failure_with_its_reason() -> None:
    def load() -> Served:
        raise FileNotFoundError("no such model")

    async with running(load=load) as engine:
        assert engine.lifecycle is Lifecycle.FAILED
        assert str(engine.failure) == "no such model"
        assert not engine.is_making_progress()
        with pytest.raises(EngineDied):
            engine.submit([request()])


async def test_a_dead_scheduler_ends_every_stream_and_is_not_alive() -> None:
    def die(plan: StepPlan) -> None:
        raise SystemExit

    async with running(FakeModel(before_step=die)) as engine:
        streams = [engine.submit([request(stopping=LONG, request_id=str(i))]) for i in range(4)]
        assert await engine.lifecycle_after(Lifecycle.READY) is Lifecycle.FAILED
        for stream in streams:
            end = (await events_of(stream))[-1]
            assert isinstance(end, Failure)
            assert isinstance(end.error, EngineDied)
        await engine.idle()
        assert not engine.is_making_progress()


async def test_a_failing_step_ends_its_request_and_the_engine_goes_on() -> None:
    def poison(plan: StepPlan) -> None:
        if any(13 in span.token_ids for span in plan.spans):
            raise ValueError("thirteen")

    async with running(FakeModel(before_step=poison)) as engine:
        failure = (await events_of(engine.submit([request([13])])))[-1]
        assert isinstance(failure, Failure)
        assert isinstance(failure.error, StepFailed)
        assert engine.lifecycle is Lifecycle.READY


async def test_a_reader_that_leaves_too_much_unread_is_ended_and_the_others_are_not() -> None:
    settings = EngineSettings(max_slots=2, max_waiting=2, max_step_tokens=16, max_unread_tokens=20, stuck_after=60.0)
    async with running(FakeModel(before_step=lambda plan: time.sleep(0.005)), settings) as engine:
        unread = engine.submit([request(stopping=LONG, request_id="unread")])
        read = engine.submit([request(stopping=LONG, request_id="read")])
        events = await events_of(read)
        assert isinstance(events[-1], Result)
        await engine.idle()
        end = (await events_of(unread))[-1]
        assert isinstance(end, Failure)
        assert isinstance(end.error, SlowReader)


async def test_a_step_that_hangs_is_no_progress_until_it_ends() -> None:
    settings = EngineSettings(max_slots=2, max_waiting=2, max_step_tokens=16, max_unread_tokens=20, stuck_after=0.0)
    gate = Gate()
    async with running(FakeModel(before_step=gate), settings) as engine:
        stream = engine.submit([request()])
        await asyncio.to_thread(gate.entered.wait, 60)
        assert not engine.is_making_progress()
        gate.open.set()
        await events_of(stream)
