"""The Sequence: all state of one generation, from arrival to its end."""

from server.engine.detokenizer import detokenizer_for
from server.engine.events import Finish, FinishReason, PromptLogprobs, Result, Started, Timing, Tokens, Usage
from server.engine.forbidden_sequences import completing_tokens
from server.engine.model import ModelDescription
from server.engine.plan import (
    Draw,
    Drawn,
    LogitBias,
    Penalties,
    PromptLogprobsWanted,
    TokenLogprob,
)
from server.engine.prefix import next_key, root_key
from server.engine.request import Request
from server.engine.seeding import uniform
from server.engine.stopping import StopMatcher
from server.engine.token_history import TokenHistory
from server.engine.tokenizer import Tokenizer


class Sequence:
    """One request's tokens, the KV blocks that hold them, and the text that has come of them.

    There is no prefill and no decode phase: `token_ids` are known, the first `computed` of them have their keys and
    values in `block_ids`, and each step computes some of the difference. Preemption takes the blocks away.
    """

    def __init__(self, request: Request, model: ModelDescription, tokenizer: Tokenizer) -> None:
        self.request = request
        self.token_ids = list(request.prompt_token_ids)
        self.computed = 0
        self.block_ids: list[int] = []
        self.slot: int | None = None
        self.cached_count = 0
        self._started = False
        self._block_keys: list[bytes] = []
        self._model = model
        self._eos_token_ids = frozenset() if request.stopping.ignore_eos else model.eos_token_ids
        self._constraint = None if request.constraint is None else request.constraint.start()
        self._end_token_ids = self._eos_token_ids | (request.stopping.stop_token_ids & tokenizer.special_token_ids)
        self._stop = StopMatcher(request.stopping.stop, request.stopping.include_stop_text)
        self._detokenizer = detokenizer_for(tokenizer, request.kept_special_token_ids)
        self._history = TokenHistory(request.prompt_token_ids) if request.sampling.penalises else None
        self._bias = LogitBias(*zip(*request.sampling.logit_bias, strict=True)) if request.sampling.logit_bias else None
        self._prompt_logprobs: list[TokenLogprob] = []
        self._has_sent_prompt_logprobs = request.prompt_logprobs is None
        self._logprob_sum = 0.0
        self._unsent_ids: list[int] = []
        self._unsent_text = ""
        self._unsent_logprobs: list[TokenLogprob] = []
        self._admitted_at: float | None = None
        self._first_token_at: float | None = None
        self.last_token_at: float | None = None

    @property
    def prompt_count(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def generated_count(self) -> int:
        return len(self.token_ids) - self.prompt_count

    @property
    def pending_count(self) -> int:
        """Tokens that are known and not computed."""
        return len(self.token_ids) - self.computed

    def is_finished(self, now: float) -> bool:
        return self.finish(now) is not None

    def finish(self, now: float) -> Finish | None:
        """The rule for "finished": why the sequence is over at `now`, on time.monotonic's clock; None if it is not."""
        stopping = self.request.stopping
        if self.generated_count and self._is_stop_token(self.token_ids[-1]):
            return Finish(FinishReason.STOP_TOKEN, stop_token_id=self.token_ids[-1])
        if self.generated_count and self.token_ids[-1] in self._eos_token_ids:
            return Finish(FinishReason.END_OF_SEQUENCE)
        if self._stop.matched is not None:
            return Finish(FinishReason.STOP_SEQUENCE, stop_sequence=self._stop.matched)
        if self._constraint is not None and not self._end_token_ids and self._constraint.is_complete():
            return Finish(FinishReason.END_OF_SEQUENCE)
        if self.generated_count == stopping.max_new_tokens:
            return Finish(FinishReason.MAX_NEW_TOKENS)
        if len(self.token_ids) >= self._model.max_total_tokens:
            return Finish(FinishReason.CONTEXT_LENGTH)
        if now >= self.request.expires_at:
            return Finish(FinishReason.TIME_LIMIT)
        return None

    def draw(self) -> Draw:
        """How to choose this sequence's next token."""
        sampling, stopping = self.request.sampling, self.request.stopping
        ends_too_early = self.generated_count < stopping.min_new_tokens
        unwanted = self._eos_token_ids | stopping.stop_token_ids if ends_too_early else frozenset[int]()
        constraint = self._constraint
        forbidden = self._completing_tokens()
        return Draw(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            uniform=uniform(sampling.seed, self.generated_count) if sampling.temperature > 0 else 0.0,
            forbidden_token_ids=tuple(forbidden | unwanted if constraint is None else forbidden),
            allowed=None if constraint is None else constraint.allowed(self._end_token_ids, unwanted),
            min_p=sampling.min_p,
            typical_p=sampling.typical_p,
            penalties=self._penalties(),
            bias=self._bias,
            logprobs=self.request.logprobs,
            own_logprob=self.request.wants_mean_logprob,
        )

    def _completing_tokens(self) -> set[int]:
        """The tokens that would complete a forbidden sequence."""
        forbidden = self.request.sampling.forbidden_sequences
        if not forbidden:
            return set()
        longest = max(len(run) for run in forbidden)
        return completing_tokens(forbidden, self.token_ids[max(self.prompt_count, len(self.token_ids) - longest) :])

    def _penalties(self) -> Penalties | None:
        if self._history is None:
            return None
        sampling, history = self.request.sampling, self._history
        return Penalties(
            repetition=sampling.repetition_penalty,
            frequency=sampling.frequency_penalty,
            presence=sampling.presence_penalty,
            token_ids=history.token_ids,
            output_counts=history.output_counts,
        )

    def prompt_logprobs_wanted(self, count: int) -> PromptLogprobsWanted | None:
        """Which of the next `count` tokens to compute tell the probability of a token of the prompt that is to be told.

        Those that were told before a preemption are not told again.
        """
        if self.request.prompt_logprobs is None:
            return None
        begin = max(self.computed, len(self._prompt_logprobs))
        end = min(self.computed + count, self.prompt_count - 1)
        if begin >= end:
            return None
        successors = tuple(self.token_ids[begin + 1 : end + 1])
        return PromptLogprobsWanted(begin - self.computed, successors, self.request.prompt_logprobs)

    @property
    def shareable_count(self) -> int:
        """How many of the known tokens need not be computed by this sequence where a block holds them already."""
        tokens = len(self.token_ids) - 1  # the last one's logits are needed
        return tokens if self._has_sent_prompt_logprobs else min(tokens, len(self._prompt_logprobs))

    def append(self, drawn: Drawn, now: float) -> None:
        """Takes the token that a step has chosen."""
        token_id = drawn.token_id
        self._first_token_at = now if self._first_token_at is None else self._first_token_at
        self.last_token_at = now
        self.token_ids.append(token_id)
        self._unsent_ids.append(token_id)
        if self._history is not None:
            self._history.append(token_id)
        if drawn.logprob is not None:
            self._unsent_logprobs.append(drawn.logprob)
        if drawn.own_logprob is not None:
            self._logprob_sum += drawn.own_logprob
        if self._is_text(token_id):
            if self._constraint is not None and token_id not in self._end_token_ids:
                self._constraint.advance(token_id)
            may_match = self.generated_count >= self.request.stopping.min_new_tokens
            self._unsent_text += self._stop.push(self._detokenizer.push(token_id), may_match=may_match)

    def append_prompt_logprobs(self, logprobs: tuple[TokenLogprob, ...]) -> None:
        """Takes what a step has told of the prompt's tokens."""
        self._prompt_logprobs += logprobs

    @property
    def constraint_failure(self) -> str | None:
        """Why the output cannot be brought to an instance of the request's constraint, where it cannot."""
        return None if self._constraint is None else self._constraint.failure

    def _satisfies_constraint(self) -> bool | None:
        # A stop sequence cuts the text at any character; the constraint follows whole tokens.
        if self._constraint is None or self._stop.matched is not None:
            return None
        return self._constraint.is_instance()

    def _is_stop_token(self, token_id: int) -> bool:
        """Whether the newest token ends the output.

        One of text does not before min_new_tokens, when it is chosen only where a constraint leaves no other.
        """
        stopping = self.request.stopping
        may_end = self.generated_count > stopping.min_new_tokens or token_id in self._end_token_ids
        return may_end and token_id in stopping.stop_token_ids

    def _is_text(self, token_id: int) -> bool:
        """An ending token's own text is output only where the request includes stop text, or keeps special tokens."""
        if self._is_stop_token(token_id):
            return self.request.stopping.include_stop_text
        return token_id not in self._eos_token_ids or token_id in self.request.kept_special_token_ids

    def complete_text(self) -> None:
        """Releases what was held back of the text, when no token will follow."""
        if self._stop.matched is None:
            self._unsent_text += self._stop.push(self._detokenizer.flush(), may_match=False) + self._stop.flush()

    def block_keys(self, count: int) -> list[bytes]:
        """The prefix keys of the first `count` blocks, which must be full of known tokens."""
        size = self._model.kv_block_size
        while len(self._block_keys) < count:
            start = len(self._block_keys) * size
            before = self._block_keys[-1] if start else root_key(self.request.cache_salt)
            self._block_keys.append(next_key(before, self.token_ids[start : start + size]))
        return self._block_keys[:count]

    def admit(self, slot: int, block_ids: list[int], computed: int, now: float) -> None:
        """Enters a slot with blocks for all known tokens, the first `computed` of which they hold already."""
        self.slot, self.block_ids, self.computed = slot, block_ids, computed
        if self._admitted_at is None:
            self._admitted_at, self.cached_count = now, computed

    @property
    def was_admitted(self) -> bool:
        """Whether it has ever had a slot."""
        return self._admitted_at is not None

    def leave_slot(self) -> None:
        """Forgets what was computed; everything that was said to the client stays said."""
        self.slot, self.block_ids, self.computed = None, [], 0

    def take_started(self) -> Started | None:
        """The Started event, once."""
        if self._started:
            return None
        self._started = True
        return Started(self.request.sampling.seed, self.prompt_count, self.cached_count)

    def take_prompt_logprobs(self) -> PromptLogprobs | None:
        """The PromptLogprobs event, once, when the prompt is computed and the request asks for it."""
        if self._has_sent_prompt_logprobs or len(self._prompt_logprobs) < self.prompt_count - 1:
            return None
        self._has_sent_prompt_logprobs = True
        return PromptLogprobs(tuple(self._prompt_logprobs))

    def take_tokens(self) -> Tokens | None:
        """The tokens and text since the last time; None where there are none."""
        if not self._unsent_ids and not self._unsent_text:
            return None
        tokens = Tokens(tuple(self._unsent_ids), self._unsent_text, tuple(self._unsent_logprobs))
        self._unsent_ids, self._unsent_text, self._unsent_logprobs = [], "", []
        return tokens

    def result(self, finish: Finish, now: float) -> Result:
        arrived, first = self.request.arrived_at, self._first_token_at
        admitted = now if self._admitted_at is None else self._admitted_at
        timing = Timing(
            queued=admitted - arrived,
            prefill=(now if first is None else first) - admitted,
            time_to_first_token=None if first is None else first - arrived,
            total=now - arrived,
        )
        return Result(
            finish,
            Usage(self.prompt_count, self.generated_count, self.cached_count),
            timing,
            satisfies_constraint=self._satisfies_constraint(),
            mean_logprob=self._mean_logprob(),
        )

    def _mean_logprob(self) -> float | None:
        if not self.request.wants_mean_logprob or not self.generated_count:
            return None
        return self._logprob_sum / self.generated_count
