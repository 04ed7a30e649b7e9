"""A Request: what a client wants generated, complete and valid."""

import math
from dataclasses import dataclass, field
from itertools import count

from server.engine.constraint import Constraint
from server.engine.errors import InvalidArgument
from server.engine.model import ModelDescription
from server.engine.plan import LogprobsWanted
from server.engine.sampling import Sampling

MAX_STOP_SEQUENCES = 16
MAX_STOP_SEQUENCE_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_CACHE_SALT_LENGTH = 128
MAX_PRIORITY = 100
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Stopping:
    """When a generation ends. Raises InvalidArgument where a value is out of its range."""

    max_new_tokens: int | None = None
    """None goes on until the tokens no longer fit."""
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    include_stop_text: bool = False
    time_limit: float | None = None
    """Seconds from arrival."""

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise InvalidArgument("stopping.max_new_tokens", self.max_new_tokens, "must be at least 1")
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            limit = f"must be at most max_new_tokens, {self.max_new_tokens}"
            raise InvalidArgument("stopping.min_new_tokens", self.min_new_tokens, limit)
        if len(self.stop) > MAX_STOP_SEQUENCES:
            raise InvalidArgument("stopping.stop", f"{len(self.stop)} texts", f"must be at most {MAX_STOP_SEQUENCES}")
        for i, text in enumerate(self.stop):
            if not 1 <= len(text) <= MAX_STOP_SEQUENCE_LENGTH:
                limit = f"must be from 1 to {MAX_STOP_SEQUENCE_LENGTH} characters"
                raise InvalidArgument(f"stopping.stop[{i}]", f"{len(text)} characters long", limit)
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            value = f"{len(self.stop_token_ids)} ids"
            raise InvalidArgument("stopping.stop_token_ids", value, f"must be at most {MAX_STOP_TOKEN_IDS}")
        if self.time_limit is not None and not self.time_limit > 0:
            raise InvalidArgument("stopping.time_limit", f"{self.time_limit:g} s", "must be above 0 s")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One generation to run. Compared by identity: two requests of equal content are two requests."""

    id: str
    """The client's name for its call, for logs and messages; nothing is keyed by it but the check for duplicates."""
    prompt_token_ids: tuple[int, ...]
    prompt_field: str
    """The field of the API the prompt came in, for messages, such as "prompt" or "inputs[1].prompt_token_ids"."""
    sampling: Sampling
    arrived_at: float
    """On time.monotonic's clock."""
    stopping: Stopping = field(default_factory=Stopping)
    cache_salt: str = ""
    """Only requests of the same salt share KV blocks. Raises InvalidArgument where it is too long."""
    constraint: Constraint | None = None
    """What the output must be an instance of."""
    is_id_claimed: bool = True
    """Whether no other call in flight may claim the same id."""
    priority: int = 0
    """Which requests are admitted first: higher ones."""
    logprobs: LogprobsWanted | None = None
    """What is told of each token of the output."""
    prompt_logprobs: int | None = None
    """How many alternatives are told of each token of the prompt but the first; None tells nothing of them."""
    wants_mean_logprob: bool = False
    """Whether the Result tells the mean log-probability of the tokens."""
    kept_special_token_ids: frozenset[int] = frozenset()
    """Special tokens whose text is output."""
    number: int = field(init=False, default_factory=count(1).__next__)
    """Our own name for it, unique in the process; everything inside is keyed by it."""

    def __post_init__(self) -> None:
        if len(self.cache_salt) > MAX_CACHE_SALT_LENGTH:
            limit = f"must be at most {MAX_CACHE_SALT_LENGTH} characters"
            raise InvalidArgument("cache_salt", f"{len(self.cache_salt)} characters long", limit)
        if abs(self.priority) > MAX_PRIORITY:
            raise InvalidArgument("priority", self.priority, f"must be from -{MAX_PRIORITY} to {MAX_PRIORITY}")
        for name, alternatives in (
            ("logprobs", 0 if self.logprobs is None else self.logprobs.alternatives),
            ("prompt_logprobs", self.prompt_logprobs or 0),
        ):
            if alternatives > MAX_LOGPROBS:
                raise InvalidArgument(f"output.{name}", alternatives, f"must be at most {MAX_LOGPROBS}")

    @property
    def expires_at(self) -> float:
        """When time_limit has passed, on time.monotonic's clock; infinite without one."""
        return math.inf if self.stopping.time_limit is None else self.arrived_at + self.stopping.time_limit

    def check_fits(self, model: ModelDescription) -> None:
        """Raises InvalidArgument where the model could never serve this request, however long it waited."""
        prompt, room = len(self.prompt_token_ids), model.max_total_tokens
        if prompt == 0:
            raise InvalidArgument(self.prompt_field, "empty", "must have at least 1 token")
        if prompt >= room:
            limit = f"must be at most {room - 1}, to leave room for a token in the {room} that fit"
            raise InvalidArgument(self.prompt_field, f"{prompt} tokens long", limit)
        for name, wanted in (
            ("max_new_tokens", self.stopping.max_new_tokens or 0),
            ("min_new_tokens", self.stopping.min_new_tokens),
        ):
            if prompt + wanted > room:
                limit = f"must be at most {room - prompt}: the prompt has {prompt} tokens and {room} fit in all"
                raise InvalidArgument(f"stopping.{name}", wanted, limit)
        for name, token_ids in (
            (f"{self.prompt_field}.ids", self.prompt_token_ids),
            ("stopping.stop_token_ids", self.stopping.stop_token_ids),
        ):
            if token_ids and max(token_ids) >= model.vocabulary_size:
                limit = f"must be below the vocabulary size, {model.vocabulary_size}"
                raise InvalidArgument(name, max(token_ids), limit)
        self.sampling.check_known(model.vocabulary_size)
