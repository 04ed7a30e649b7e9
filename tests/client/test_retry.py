"""The policy by itself: no clock runs and nobody waits."""

import pytest
import treadle
from hypothesis import given
from hypothesis import strategies as st
from treadle import RetryPolicy
from treadle.retry import Attempts

UNAVAILABLE = treadle.Unavailable("not now")


def pauses(policy: RetryPolicy, error: treadle.TreadleError = UNAVAILABLE, timeout: float | None = None) -> list[float]:
    """What is waited until the error surfaces."""
    attempts, waited = Attempts(policy, timeout), []
    while True:
        attempts.begin()
        try:
            waited.append(attempts.pause_after(error))
        except type(error):
            return waited


def test_pauses_grow_to_their_limit() -> None:
    policy = RetryPolicy(max_attempts=6, initial_backoff=1, max_backoff=5, multiplier=2, jitter=0)
    assert pauses(policy) == [1, 2, 4, 5, 5]


@given(jitter=st.floats(0, 2), asked=st.floats(0, 5))
def test_no_pause_is_shorter_than_the_server_asks(jitter: float, asked: float) -> None:
    policy = RetryPolicy(initial_backoff=1, max_backoff=5, jitter=jitter)
    for pause, backoff in zip(pauses(policy, treadle.Overloaded("full", retry_after=asked)), [1, 2, 4], strict=True):
        assert max(backoff, asked) <= pause <= max(backoff, asked) * (1 + jitter)


def test_one_attempt_never_waits() -> None:
    assert pauses(RetryPolicy(max_attempts=1)) == []


def test_no_pause_goes_past_the_timeout() -> None:
    assert pauses(RetryPolicy(initial_backoff=5, max_backoff=5), timeout=4) == []


def test_the_timeout_spans_all_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("treadle.retry.time.monotonic", lambda: now)
    attempts = Attempts(RetryPolicy(), timeout=10)
    assert attempts.begin() == 10
    now = 103.0
    assert attempts.begin() == 7
    now = 111.0
    assert attempts.begin() == 0


def test_no_attempts_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="max_attempts is 0"):
        RetryPolicy(max_attempts=0)


REFUSAL = treadle.Unavailable("not now", is_refusal=True)
BROKEN = treadle.Unavailable("Socket closed")


@pytest.mark.parametrize("refusals_only", [True, False])
def test_a_refusal_is_worth_another_attempt_whatever_the_call_costs(refusals_only: bool) -> None:
    attempts = Attempts(RetryPolicy(initial_backoff=1, jitter=0), None, refusals_only=refusals_only)
    attempts.begin()
    assert attempts.pause_after(REFUSAL) == 1


@pytest.mark.parametrize("error", [BROKEN, treadle.Overloaded("too many requests")])
def test_what_may_have_been_begun_is_not_begun_again_where_only_refusals_count(error: treadle.TreadleError) -> None:
    attempts = Attempts(RetryPolicy(), None, refusals_only=True)
    attempts.begin()
    with pytest.raises(type(error)):
        attempts.pause_after(error)


def test_a_duplicate_after_a_refusal_is_the_callers() -> None:
    attempts = Attempts(RetryPolicy(), None)
    attempts.begin()
    attempts.pause_after(REFUSAL)
    attempts.begin()
    with pytest.raises(treadle.DuplicateRequestId):
        attempts.pause_after(treadle.DuplicateRequestId("in flight"))


def test_a_duplicate_at_the_first_attempt_is_the_callers() -> None:
    attempts = Attempts(RetryPolicy(), None)
    attempts.begin()
    with pytest.raises(treadle.DuplicateRequestId):
        attempts.pause_after(treadle.DuplicateRequestId("in flight"))
