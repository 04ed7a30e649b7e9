"""Runs a real Scheduler on the test's own thread, with arrivals and cancellations at chosen steps."""

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from server.engine.events import Event, Failure, Finish, FinishReason, PromptLogprobs, Result, Started, Tokens
from server.engine.model import Model, ModelDescription
from server.engine.plan import Draw, LogitBias, Penalties, StepOutcome, StepPlan, TokenLogprob
from server.engine.queue import RequestQueue
from server.engine.request import Request, Stopping
from server.engine.sampling import Sampling
from server.engine.scheduler import Delivery, Scheduler
from server.engine.seeding import uniform
from server.engine.sequence import Sequence as Generation
from server.engine.tokenizer import Tokenizer
from tests.server.fakes import EOS, FakeTokenizer, logprob_of, may_be_chosen, next_token

MOST_STEPS = 20_000
"""Far more than any test needs."""
FAKE_TOKENIZER = FakeTokenizer()
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


def request(
    prompt: Sequence[int] | str = "hello",
    stopping: Stopping | None = None,
    sampling: Sampling = GREEDY,
    request_id: str = "r",
    cache_salt: str = "",
) -> Request:
    token_ids = tuple(prompt.encode()) if isinstance(prompt, str) else tuple(prompt)
    stopping = stopping or Stopping(max_new_tokens=8, ignore_eos=True)
    return Request(request_id, token_ids, "prompt", sampling, time.monotonic(), stopping, cache_salt)


def expected_tokens(req: Request, model: ModelDescription) -> list[int]:
    """What the request must generate, by the fake model's rule and the criteria that concern token ids and counts."""
    stopping, generated = req.stopping, list[int]()
    eos = frozenset() if stopping.ignore_eos else {EOS}
    while True:
        draw = _expected_draw(req, generated, eos)
        if not may_be_chosen(draw):
            return generated
        generated.append(next_token([*req.prompt_token_ids, *generated], draw))
        total = len(req.prompt_token_ids) + len(generated)
        if generated[-1] in eos | stopping.stop_token_ids:
            return generated
        if len(generated) == stopping.max_new_tokens or total == model.max_total_tokens:
            return generated


def _expected_draw(req: Request, generated: list[int], eos: Set[int]) -> Draw:
    """Made from nothing but the tokens; whatever a Sequence keeps must come to the same."""
    sampling, stopping = req.sampling, req.stopping
    early = len(generated) < stopping.min_new_tokens
    forbidden = set(eos | stopping.stop_token_ids) if early else set()
    forbidden.update(run[-1] for run in sampling.forbidden_sequences if (*generated, run[-1])[-len(run) :] == run)
    strengths = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    seen = tuple({*req.prompt_token_ids, *generated})
    counts = tuple(generated.count(token_id) for token_id in seen)
    bias = dict(sampling.logit_bias)
    return Draw(
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        uniform(sampling.seed, len(generated)),
        tuple(forbidden),
        min_p=sampling.min_p,
        typical_p=sampling.typical_p,
        penalties=None if strengths == (1, 0, 0) else Penalties(*strengths, seen, counts),
        bias=LogitBias(tuple(bias), tuple(bias.values())) if bias else None,
    )


def expected_logprobs(req: Request, generated: Sequence[int]) -> list[TokenLogprob]:
    """What the request must be told of these tokens of its own."""
    if req.logprobs is None:
        return []
    alternatives, processed = req.logprobs.alternatives, req.logprobs.processed
    tokens = [*req.prompt_token_ids, *generated]
    places = range(len(req.prompt_token_ids), len(tokens))
    return [logprob_of(tokens[:i], tokens[i], alternatives, processed=processed) for i in places]


def expected_prompt_logprobs(req: Request) -> list[tuple[TokenLogprob, ...]]:
    """The contents of the events that tell of the prompt."""
    if req.prompt_logprobs is None:
        return []
    prompt = req.prompt_token_ids
    return [tuple(logprob_of(prompt[:i], prompt[i], req.prompt_logprobs) for i in range(1, len(prompt)))]


@dataclass
class Arrival:
    """A request that arrives before a step and may be cancelled before a later one."""

    request: Request
    at_step: int = 0
    cancel_at_step: int | None = None


@dataclass
class Heard:
    """What one client heard."""

    events: list[Event] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return [i for event in self.events if isinstance(event, Tokens) for i in event.token_ids]

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [told for event in self.events if isinstance(event, Tokens) for told in event.logprobs]

    @property
    def prompt_logprobs(self) -> list[tuple[TokenLogprob, ...]]:
        """Of every event that tells of the prompt."""
        return [event.logprobs for event in self.events if isinstance(event, PromptLogprobs)]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Tokens))

    @property
    def result(self) -> Result:
        assert isinstance(self.events[-1], Result), self.events
        return self.events[-1]

    @property
    def cached_count(self) -> int:
        assert isinstance(self.events[0], Started), self.events
        return self.events[0].cached_token_count

    @property
    def finish(self) -> Finish:
        return self.result.finish

    @property
    def reason(self) -> FinishReason:
        return self.finish.reason

    def check_shape(self, *, cancelled: bool = False) -> None:
        """Started first, one end and it last; or, where the client left, any beginning of that."""
        ends = [event for event in self.events if isinstance(event, Result | Failure)]
        assert len(ends) == 1 or (cancelled and not ends)
        assert not ends or self.events[-1] is ends[0]
        starts = [i for i, event in enumerate(self.events) if isinstance(event, Started)]
        assert starts == [0] or (not starts and (cancelled or isinstance(self.events[0], Failure)))
        assert [i for i, event in enumerate(self.events) if isinstance(event, PromptLogprobs)] in ([], [1])


@dataclass(frozen=True)
class Displacement:
    """Sequences that admissions preempted, and those that were admitted."""

    preempted: tuple[Generation, ...]
    admitted: tuple[Generation, ...]


class _WatchedScheduler(Scheduler):
    """Notes what its admissions do."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.admitted: list[Request] = []
        self.displacements: list[Displacement] = []

    def admit_waiting(self) -> None:
        before = list(self.running.values())
        super().admit_waiting()
        preempted = tuple(seq for seq in before if seq.slot is None)
        admitted = tuple(seq for seq in self.running.values() if seq not in before)
        self.admitted += [seq.request for seq in admitted]
        if preempted:
            self.displacements.append(Displacement(preempted, admitted))


class _Watched:
    """A model that tells the driver of each step before it takes it."""

    def __init__(self, model: Model, before_step: Callable[[StepPlan], None]) -> None:
        self._model, self._before_step = model, before_step

    @property
    def description(self) -> ModelDescription:
        return self._model.description

    def step(self, plan: StepPlan) -> StepOutcome:
        self._before_step(plan)
        return self._model.step(plan)

    def warm_up(self) -> None:
        self._model.warm_up()


class Driver:
    """`serve` runs the scheduler's own loop until everything that was to arrive has come and gone."""

    def __init__(
        self,
        model: Model,
        max_slots: int = 4,
        max_step_tokens: int = 16,
        max_waiting: int = 1000,
        prefix_cache: bool = True,
        tokenizer: Tokenizer = FAKE_TOKENIZER,
        priority_aging: float = 10.0,
        preempt_lower_priority: bool = False,
        max_step_time: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.step = 0
        self.heard: dict[int, Heard] = {}
        self.deliver_calls = 0
        self.preempted: set[int] = set()
        queue = _Queue(self, max_slots + max_waiting)
        self.scheduler = _WatchedScheduler(
            _Watched(model, self._before_step),
            tokenizer,
            queue,
            self._hear,
            max_slots,
            max_step_tokens,
            prefix_cache,
            priority_aging,
            preempt_lower_priority,
            max_step_time=max_step_time,
            clock=clock,
        )
        self._arrivals: list[Arrival] = []

    def serve(self, *arrivals: Arrival | Request) -> list[Heard]:
        """What each client heard, in the order of the arguments; the pool is whole again when it returns."""
        self._arrivals = [Arrival(a) if isinstance(a, Request) else a for a in arrivals]
        expected = list(self._arrivals)
        self.scheduler.stopping = False
        self.arrive()
        self.scheduler.run()
        self.scheduler.check_integrity()
        assert self.scheduler.pool.used_count == 0
        assert self.scheduler.requests.in_flight == 0
        assert not self.scheduler.waiting
        return [self.heard.get(arrival.request.number, Heard()) for arrival in expected]

    def arrive(self) -> None:
        for arrival in list(self._arrivals):
            if arrival.at_step <= self.step:
                self.scheduler.requests.put(arrival.request)
                arrival.at_step = 1 << 30
            if arrival.cancel_at_step is not None and arrival.cancel_at_step <= self.step:
                self.scheduler.requests.cancel(arrival.request.number)
        self._arrivals = [a for a in self._arrivals if a.at_step < 1 << 30 or self._may_cancel(a)]

    def _may_cancel(self, arrival: Arrival) -> bool:
        return arrival.cancel_at_step is not None and self.step < arrival.cancel_at_step

    def nothing_left(self) -> bool:
        """Called when the loop is idle: time passes; says whether anything is still to come."""
        self.step += 1
        self.arrive()
        return not self._arrivals

    def _before_step(self, plan: StepPlan) -> None:
        self.scheduler.check_integrity()
        self.preempted.update(seq.request.number for seq in self.scheduler.waiting if seq.generated_count)
        assert sum(len(span.token_ids) for span in plan.spans) <= self.scheduler.step_budget.max_tokens
        self.step += 1
        assert self.step < MOST_STEPS, "it makes no progress"
        self.arrive()

    def _hear(self, deliveries: list[Delivery]) -> None:
        self.deliver_calls += 1
        for delivery in deliveries:
            self.heard.setdefault(delivery.number, Heard()).events.append(delivery.event)


class _Queue(RequestQueue):
    """Never sleeps: an idle loop makes the driver's time pass, and stops when nothing more will come."""

    def __init__(self, driver: Driver, capacity: int) -> None:
        super().__init__(capacity)
        self._driver = driver

    def wait(self, timeout: float) -> None:
        if self._driver.nothing_left() and not self._requests:
            self._driver.scheduler.stopping = True
