"""The Scheduler: admits requests into slots and advances all running sequences one step at a time.

Each sequence has known tokens and computed tokens, and a step computes some of the difference: one token of a sequence
that is generating, a chunk of a prompt that is new or was preempted. That is the whole algorithm; chunked prefill,
preemption and decode are the same code.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from server.engine.block_pool import BlockPool
from server.engine.counters import Counters, Counts
from server.engine.errors import ConstraintFailed, Draining, EngineError, StepFailed
from server.engine.events import Event, Failure
from server.engine.faults import probe, step_isolating_faults
from server.engine.load import Load, Throughput
from server.engine.model import Model
from server.engine.plan import Drawn, Fault, Span, StepOutcome, StepPlan
from server.engine.prefix_sharing import ComingBlocks, PrefixSharing
from server.engine.queue import RequestQueue
from server.engine.sequence import Sequence
from server.engine.step_budget import StepBudget
from server.engine.tokenizer import Tokenizer
from server.engine.waiting_line import WaitingLine

log = structlog.stdlib.get_logger("treadle.engine")

IDLE_WAIT = 0.5
"""Seconds an idle turn of the loop lasts at most, so that it is seen to turn."""
MAX_FAILED_STEPS = 16
"""Steps in a row that fail for every sequence, before it is seen whether the model itself is broken."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event on its way to the stream of the request with this number."""

    number: int
    event: Event


class Scheduler:
    """Owns the model, its KV blocks and the sequences; lives on one thread.

    `deliver` is called once after a step, with everything the step has for clients. Requests whose time is up are told
    before it, all in one call too, rather than after a step they have no part in.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        requests: RequestQueue,
        deliver: Callable[[list[Delivery]], None],
        max_slots: int,
        max_step_tokens: int,
        prefix_cache: bool = True,
        priority_aging: float = 10.0,
        preempt_lower_priority: bool = False,
        max_step_time: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_step_tokens <= max_slots:
            raise ValueError(f"max_step_tokens is {max_step_tokens}: must be above max_slots, {max_slots}")
        self.model, self.tokenizer, self.requests = model, tokenizer, requests
        self.max_slots = max_slots
        self.step_budget = StepBudget(max_step_tokens, max_step_time)
        self.pool = BlockPool(model.description.kv_block_count, model.description.kv_block_size)
        self.sharing = PrefixSharing(self.pool, prefix_cache)
        self.preempt_lower_priority = preempt_lower_priority
        self.waiting = WaitingLine(priority_aging)
        self.running: dict[int, Sequence] = {}
        self.stopping = False
        self._clock = clock
        self.turned_at = self._clock()
        self._ready_at = time.time()
        self._throughput = Throughput()
        self._counters = Counters()
        self._failed_steps = 0
        self._deliver_to_streams = deliver
        self._deliveries: list[Delivery] = []

    def run(self) -> None:
        """Serves until `stop`. Raises what no request is to blame for."""
        while not self.stopping:
            self.take_arrivals()
            self.admit_waiting()
            if self.running:
                self.advance()
                self.retire_finished()
            else:
                self.requests.wait(IDLE_WAIT)
        self.end_all(Draining("the server is shutting down"))

    def stop(self) -> None:
        """Ends `run` after the current step; from any thread."""
        self.stopping = True
        self.requests.wake()

    def take_arrivals(self) -> None:
        """Lets new requests wait, and drops those that were cancelled or whose time is up."""
        self.turned_at = now = self._clock()
        arrivals = self.requests.take_all()
        for request in arrivals.requests:
            self.waiting.add(Sequence(request, self.model.description, self.tokenizer))
        for seq in [*self.waiting, *self.running.values()]:
            if seq.request.number in arrivals.cancelled:
                self._remove(seq)
            elif now >= seq.request.expires_at:
                self._end(seq, now)
        self._deliver()

    def admit_waiting(self) -> None:
        """Gives slots to the first in the line, while there are slots and KV blocks for all their known tokens.

        Blocks that hold a beginning of those tokens already are shared; one whose next block is on its way lets others
        pass until the block is there.
        """
        if not self.waiting or (len(self.running) == self.max_slots and not self.preempt_lower_priority):
            return
        coming = ComingBlocks(self.sharing, self.waiting.turn, self.running.values())
        for seq in self.waiting:
            if coming.are_awaited_by(seq):
                continue
            if not self._make_way(seq):
                return
            self._admit(seq)
            coming.note(seq)

    def advance(self) -> None:
        """One step of the model: the next token for every sequence whose known tokens it completes."""
        self.make_room()
        plan = self.plan_step()
        began_at = self._clock()
        outcome = step_isolating_faults(self.model, plan)
        duration = self._clock() - began_at
        self.step_budget.learn(plan, duration)
        self._counters.step_durations.observe(duration)
        self._counters.step_tokens.observe(sum(len(span.token_ids) for span in plan.spans))
        self.take_outcome(plan, outcome)

    def retire_finished(self) -> None:
        """Sends each running sequence's news to its client, and frees the slots of those that are finished."""
        now = self._clock()
        for seq in list(self.running.values()):
            if seq.is_finished(now):
                self._end(seq, now)
            else:
                self._report(seq)
        self._deliver()

    def make_room(self) -> None:
        """Gives sequences KV blocks for their known tokens, in turn, preempting the last in turn while there are none.

        The first can always run alone, since no request is taken that would not fit the empty pool.
        """
        for seq in self._in_turn():
            while seq.slot is not None and self._missing_blocks(seq) > self.pool.available_count:
                self._preempt(self._in_turn()[-1])
            if seq.slot is not None:
                seq.block_ids += self.pool.allocate(self._missing_blocks(seq))

    def plan_step(self) -> StepPlan:
        """Shares out the step's tokens: one to each sequence that generates, the rest to the others, in turn."""
        generating = sum(seq.pending_count == 1 for seq in self.running.values())
        budget = self.step_budget.tokens(generating)
        spans = []
        for seq in sorted(self._in_turn(), key=lambda seq: seq.pending_count > 1):
            count = min(seq.pending_count, budget)
            if count:
                spans.append(self._span(seq, count))
                budget -= count
        return StepPlan(tuple(spans))

    def take_outcome(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """Updates the sequences by what the step has computed and drawn."""
        now = self._clock()
        for span, drawn in zip(plan.spans, outcome.draws, strict=True):
            seq = self.running[span.slot]
            if isinstance(drawn, Fault):
                self._fail_step(seq, drawn)
                continue
            self._mark_computed(seq, len(span.token_ids))
            seq.append_prompt_logprobs(outcome.prompt_logprobs.get(span.slot, ()))
            if isinstance(drawn, Drawn):
                self._count_token(seq, now)
                seq.append(drawn, now)
        self._throughput.add(sum(isinstance(drawn, Drawn) for drawn in outcome.draws), now)
        self._check_model_works(outcome)

    def end_all(self, error: EngineError) -> None:
        """Ends every request with this error."""
        for request in self.requests.take_all().requests:
            self.waiting.add(Sequence(request, self.model.description, self.tokenizer))
        for seq in [*self.waiting, *self.running.values()]:
            self._fail(seq, error)
        self._deliver()

    def load(self) -> Load:
        """From any thread."""
        running = len(self.running)
        return Load(
            running=running,
            waiting=max(0, self.requests.in_flight - running),
            slots=self.max_slots,
            kv_blocks_used=self.pool.used_count,
            kv_blocks_cached=self.pool.cached_count,
            kv_blocks_total=self.pool.block_count,
            kv_block_size=self.pool.block_size,
            tokens_per_second=self._throughput.per_second(self._clock()),
            tokens_generated=self._throughput.total,
            since=self._ready_at,
        )

    def counts(self) -> Counts:
        """From any thread."""
        return self._counters.snapshot()

    def check_integrity(self) -> None:
        """Raises AssertionError where a block or a slot is lost, doubled or held by a sequence that does not run."""
        self.pool.check_integrity(seq.block_ids for seq in self.running.values())
        assert all(seq.slot == slot for slot, seq in self.running.items())
        assert all(0 <= slot < self.max_slots for slot in self.running)
        assert all(seq.slot is None and not seq.block_ids for seq in self.waiting)

    def _in_turn(self) -> list[Sequence]:
        """The running sequences, in the order of the line they waited in."""
        return sorted(self.running.values(), key=self.waiting.turn)

    def _admit(self, seq: Sequence) -> None:
        self.waiting.remove(seq)
        shared = self.sharing.find(seq)
        self.pool.share(shared)
        slot = next(slot for slot in range(self.max_slots) if slot not in self.running)
        new = self.pool.allocate(self.pool.blocks_for(len(seq.token_ids)) - len(shared))
        if not seq.was_admitted:
            self._count_prompt(seq, len(shared) * self.pool.block_size)
        seq.admit(slot, shared + new, len(shared) * self.pool.block_size, self._clock())
        self.running[slot] = seq

    def _make_way(self, seq: Sequence) -> bool:
        """Whether the sequence can be admitted, once those in its way are preempted where that is allowed.

        None is preempted unless that makes way.
        """
        yielding: list[Sequence] = []
        candidates = self._outranked(seq)
        while not self._can_admit(seq, yielding):
            if not candidates:
                return False
            yielding.append(candidates.pop())
        for lower in yielding:
            self._preempt(lower)
        return True

    def _outranked(self, seq: Sequence) -> list[Sequence]:
        """The running sequences that the waiting one may preempt, in turn."""
        if not self.preempt_lower_priority:
            return []
        turn, priority = self.waiting.turn(seq), seq.request.priority
        return [one for one in self._in_turn() if one.request.priority < priority and self.waiting.turn(one) > turn]

    def _can_admit(self, seq: Sequence, without: Collection[Sequence]) -> bool:
        """Whether there would be a slot and blocks if the sequences `without` were preempted.

        Leaves each running sequence a block to grow into, so that an admission does not preempt at once.
        """
        staying = len(self.running) - len(without)
        if staying == self.max_slots:
            return False
        shared = self.sharing.find(seq)
        new = self.pool.blocks_for(len(seq.token_ids)) - len(shared)
        freed = self.pool.held_by_these_alone(one.block_ids for one in without).difference(shared)
        return new + self.pool.unheld_count(shared) + staying <= self.pool.available_count + len(freed)

    def _mark_computed(self, seq: Sequence, count: int) -> None:
        before = seq.computed
        seq.computed += count
        self.sharing.publish(seq, before)

    def _missing_blocks(self, seq: Sequence) -> int:
        return self.pool.blocks_for(len(seq.token_ids)) - len(seq.block_ids)

    def _span(self, seq: Sequence, count: int) -> Span:
        assert seq.slot is not None
        end = seq.computed + count
        return Span(
            slot=seq.slot,
            start=seq.computed,
            token_ids=tuple(seq.token_ids[seq.computed : end]),
            block_ids=tuple(seq.block_ids),
            draw=seq.draw() if end == len(seq.token_ids) else None,
            prompt_logprobs=seq.prompt_logprobs_wanted(count),
        )

    def _preempt(self, seq: Sequence) -> None:
        """Back into the line: its tokens stay known, and are computed again when it is admitted again."""
        self._counters.preemptions += 1
        self._free(seq)
        self.waiting.add(seq)

    def _count_prompt(self, seq: Sequence, found: int) -> None:
        self._counters.prompt_tokens += seq.prompt_count
        if self.sharing.is_on:
            self._counters.prefix_queried_tokens += seq.prompt_count
            self._counters.prefix_found_tokens += found

    def _count_token(self, seq: Sequence, now: float) -> None:
        self._counters.generated_tokens += 1
        if seq.last_token_at is not None:
            self._counters.token_gaps.observe(now - seq.last_token_at)

    def _free(self, seq: Sequence) -> None:
        assert seq.slot is not None
        del self.running[seq.slot]
        self.pool.release(seq.block_ids)
        seq.leave_slot()

    def _remove(self, seq: Sequence) -> None:
        if seq.slot is None:
            self.waiting.remove(seq)
        else:
            self._free(seq)
        self.requests.retire(seq.request.number)

    def _end(self, seq: Sequence, now: float) -> None:
        """Sends the rest and the Result, and frees what the sequence held."""
        finish = seq.finish(now)
        assert finish is not None
        seq.complete_text()
        self._report(seq)
        self._send(seq, seq.result(finish, now))
        self._remove(seq)

    def _fail(self, seq: Sequence, error: EngineError) -> None:
        self._send(seq, Failure(error))
        self._remove(seq)

    def _fail_step(self, seq: Sequence, fault: Fault) -> None:
        if not fault.by_request:
            facts = {"request_id": seq.request.id, "reason": fault.reason, "exc_info": fault.error}
            log.error("the model could not compute a request", **facts)
        self.pool.forget(seq.block_ids)
        self._fail(seq, _error_of(seq, fault))

    def _report(self, seq: Sequence) -> None:
        if started := seq.take_started():
            self._send(seq, started)
        if prompt_logprobs := seq.take_prompt_logprobs():
            self._send(seq, prompt_logprobs)
        if tokens := seq.take_tokens():
            self._send(seq, tokens)

    def _send(self, seq: Sequence, event: Event) -> None:
        self._deliveries.append(Delivery(seq.request.number, event))

    def _deliver(self) -> None:
        if self._deliveries:
            self._deliver_to_streams(self._deliveries)
            self._deliveries = []

    def _check_model_works(self, outcome: StepOutcome) -> None:
        """Raises ModelBroken where steps have failed for everybody for long, and one with no request in it fails too.

        Those who failed have left, so that there is a KV block nobody uses.
        """
        all_failed = all(isinstance(drawn, Fault) and not drawn.by_request for drawn in outcome.draws)
        self._failed_steps = self._failed_steps + 1 if all_failed else 0
        if self._failed_steps == MAX_FAILED_STEPS:
            self._failed_steps = 0
            (block_id,) = self.pool.allocate(1)
            self.pool.release([block_id])  # its contents are known to nobody now, and nobody takes it meanwhile
            probe(self.model, block_id)


def _error_of(seq: Sequence, fault: Fault) -> EngineError:
    if fault.by_request:
        if seq.constraint_failure is not None:
            reason = f"no token can follow the output so far: {seq.constraint_failure}"
            return ConstraintFailed("constraint", "impossible to follow further", reason)
        limit = "must leave a token that can follow the output so far"
        return ConstraintFailed("sampling.forbidden_sequences", "in the way of all that may come next", limit)
    return StepFailed(f"the model could not compute this request: {fault.reason}")
