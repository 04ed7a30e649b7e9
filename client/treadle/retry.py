"""When a call that failed is made again.

Only before its first event, only when the server did not do the work (UNAVAILABLE, RESOURCE_EXHAUSTED), with
exponential backoff, never earlier than the server asks, and within the call's timeout.
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

    def __init__(self, policy: RetryPolicy, timeout: float | None) -> None:
        self._policy = policy
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._made = 0
        self._refusal: TreadleError | None = None

    def begin(self) -> float | None:
        """Counts an attempt; the seconds it may take, None without a limit."""
        self._made += 1
        return self._remaining()

    def pause_after(self, error: TreadleError) -> float:
        """The seconds to wait before the next attempt. Raises the error that the caller should see if none is due."""
        if isinstance(error, DuplicateRequestId) and self._refusal is not None:
            # An earlier attempt of this very call still holds the id: its connection broke and the server is about to
            # cancel it. Should it never let go, what broke the connection says more than the id.
            refusal = self._refusal
        elif isinstance(error, Unavailable | Overloaded):
            refusal = self._refusal = error
        else:
            raise error
        pause = self._pause(error.retry_after or 0.0)
        if pause is None:
            raise refusal
        return pause

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
