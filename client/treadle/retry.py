"""When a call that failed is made again.

With exponential backoff, never earlier than the server asks, and within the call's timeout. Which failures are worth
it is a matter of what the call costs:

- A stream, before its first event, and a question that the server answers at once: where the server is UNAVAILABLE or
  has too much to do (RESOURCE_EXHAUSTED), for whatever cause. A stream tells when its work begins.
- A completion, which tells nothing before its end: only where the error is a refusal, so that no work is done twice.
  Treadle's server says so by its reason; that no connection could be made is known by gRPC's message alone
  (`statuses.NO_CONNECTION`). A connection that breaks while the server works, or what a proxy says of a server behind
  it, ends a completion.
"""

import random
import time
from dataclasses import dataclass

from treadle.errors import DuplicateRequestId, Overloaded, TreadleError, Unavailable


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently. Times are in seconds."""

    max_attempts: int = 4
    """The first included; 1 never retries."""
    initial_backoff: float = 0.2
    max_backoff: float = 10.0
    """Also the longest wait that a server may ask for; where it asks for more, its error is raised at once."""
    multiplier: float = 2.0
    jitter: float = 0.5
    """Up to this share is added to each pause, so that clients refused together do not come back together."""

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}: must be at least 1")


DEFAULT_RETRY = RetryPolicy()
NO_RETRY = RetryPolicy(max_attempts=1)


class Attempts:
    """The attempts at one call."""

    def __init__(self, policy: RetryPolicy, timeout: float | None, *, refusals_only: bool = False) -> None:
        self._policy, self._refusals_only = policy, refusals_only
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._made = 0
        self._failure: TreadleError | None = None

    def begin(self) -> float | None:
        """Counts an attempt; the seconds it may take, None without a limit."""
        self._made += 1
        return self._remaining()

    def pause_after(self, error: TreadleError) -> float:
        """The seconds to wait before the next attempt. Raises the error that the caller should see if none is due."""
        if isinstance(error, DuplicateRequestId) and self._failure is not None and not self._failure.is_refusal:
            # An earlier attempt of this very call still holds the id: its connection broke and the server is about to
            # cancel it. Should it never let go, what broke the connection says more than the id.
            failure = self._failure
        elif self._is_worth_another(error):
            failure = self._failure = error
        else:
            raise error
        pause = self._pause(error.retry_after or 0.0)
        if pause is None:
            raise failure
        return pause

    def _is_worth_another(self, error: TreadleError) -> bool:
        return error.is_refusal if self._refusals_only else isinstance(error, Unavailable | Overloaded)

    def _pause(self, asked: float) -> float | None:
        policy = self._policy
        if self._made >= policy.max_attempts or asked > policy.max_backoff:
            return None
        backoff = min(policy.initial_backoff * policy.multiplier ** (self._made - 1), policy.max_backoff)
        pause = max(backoff, asked) * random.uniform(1.0, 1.0 + policy.jitter)
        remaining = self._remaining()
        return pause if remaining is None or pause < remaining else None

    def _remaining(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)
