"""Limits by identity: the counts by themselves, and over real sockets."""

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from treadle.v1 import generation_pb2 as pb

from server.rpc.errors import IdentityTooBusy, IdentityTooManyTokens, IdentityTooManyWaiting
from server.rpc.security.caller import Caller, Proof
from server.rpc.security.errors import BadContent
from server.rpc.security.limits import MAX_ACCOUNTS, WINDOW, Account, Accounts, IdentityLimits, Limits
from server.rpc.security.settings import SecuritySettings
from tests.server.rpc.security.callers import bearer, is_served, refused, secured, token_line
from tests.server.rpc.serving import ENGINE, Serving, Start, eventually, generate_request

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
ALICE, BOB = bearer("of alice"), bearer("of bob")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def start_with(start: Start, directory: Path, limits: Limits, table: str = "", slots: int = 1) -> Serving:
    (directory / "tokens").write_text(token_line("alice", "of alice") + token_line("bob", "of bob"))
    (directory / "limits").write_text(table)
    settings = SecuritySettings(tokens_file=directory / "tokens", limits=limits, limits_file=directory / "limits")
    serving = secured(settings)
    serving.engine_settings = replace(ENGINE, max_slots=slots)
    return await (await start(serving)).ready()


async def test_one_identity_has_no_more_calls_open_than_it_may_and_another_is_served(
    start: Start, tmp_path: Path
) -> None:
    serving = await start_with(start, tmp_path, Limits(max_concurrent=2), slots=4)
    serving.steps.close()
    calls = [serving.stub.Generate(generate_request(), metadata=ALICE) for _ in range(2)]
    await eventually(lambda: serving.engine.load().running + serving.engine.load().waiting == 2)
    refusal = await refused(serving, ALICE)
    assert (refusal.code, refusal.reason, refusal.retry_after) == (EXHAUSTED, "IDENTITY_TOO_BUSY", 1)
    serving.steps.open()
    assert await is_served(serving, BOB)
    for call in calls:
        assert [event async for event in call][-1].HasField("result")
    await serving.server.idle()
    assert await is_served(serving, ALICE)


async def test_a_call_counts_as_many_as_it_has_generations(start: Start, tmp_path: Path) -> None:
    serving = await start_with(start, tmp_path, Limits(max_concurrent=2), slots=4)
    request = generate_request()
    request.sampling.n = 2
    assert [event async for event in serving.stub.Generate(request, metadata=ALICE)][-1].HasField("result")
    request.sampling.n = 3
    with pytest.raises(grpc.aio.AioRpcError, match="2 requests at once"):
        await serving.stub.Complete(pb.CompleteRequest(generate=request), metadata=ALICE)
    assert serving.is_empty()


async def test_one_identity_has_no_more_waiting_than_it_may_where_the_slots_are_taken(
    start: Start, tmp_path: Path
) -> None:
    serving = await start_with(start, tmp_path, Limits(max_queued=1))
    serving.steps.close()
    running = serving.stub.Generate(generate_request(), metadata=ALICE)
    await asyncio.to_thread(serving.steps.reached.wait)
    # Until its first step has ended the first is not known to run, so it is Bob who waits behind it.
    waiting = serving.stub.Generate(generate_request(), metadata=BOB)
    await eventually(lambda: serving.engine.load().waiting == 1)
    refusal = await refused(serving, BOB)
    assert (refusal.code, refusal.reason, refusal.retry_after) == (EXHAUSTED, "IDENTITY_TOO_MANY_WAITING", 1)
    serving.steps.open()
    for call in (running, waiting):
        assert [event async for event in call][-1].HasField("result")
    await serving.server.idle()
    assert await is_served(serving, BOB)


async def test_no_waiting_at_all_still_lets_a_free_slot_be_taken(start: Start, tmp_path: Path) -> None:
    serving = await start_with(start, tmp_path, Limits(max_queued=0))
    assert await is_served(serving, ALICE)
    assert await is_served(serving, ALICE)


async def test_whoever_had_a_minutes_tokens_is_told_when_there_are_more(start: Start, tmp_path: Path) -> None:
    serving = await start_with(start, tmp_path, Limits(tokens_per_minute=14))
    assert await is_served(serving, ALICE)  # 6 of the prompt and 8 generated
    refusal = await refused(serving, ALICE)
    assert (refusal.code, refusal.reason) == (EXHAUSTED, "IDENTITY_TOO_MANY_TOKENS")
    assert refusal.retry_after is not None
    assert WINDOW - 30 < refusal.retry_after <= WINDOW
    tokenized = await serving.stub.Tokenize(pb.TokenizeRequest(text="x"), metadata=ALICE)
    assert tokenized.token_ids
    assert await is_served(serving, BOB)


async def test_an_identity_may_have_limits_of_its_own_which_are_read_again(start: Start, tmp_path: Path) -> None:
    table = '["token:alice"]\ntokens_per_minute = 1000\n'
    serving = await start_with(start, tmp_path, Limits(tokens_per_minute=1), table)
    assert await is_served(serving, ALICE)
    assert await is_served(serving, ALICE)
    (tmp_path / "limits").write_text("")
    serving.server._security.refresh()
    assert (await refused(serving, ALICE)).reason == "IDENTITY_TOO_MANY_TOKENS"


async def test_a_cancelled_and_a_failed_call_give_back_what_they_had(start: Start, tmp_path: Path) -> None:
    serving = await start_with(start, tmp_path, Limits(max_concurrent=1, max_queued=1))
    serving.steps.close()
    call = serving.stub.Generate(generate_request(), metadata=ALICE)
    await asyncio.to_thread(serving.steps.reached.wait)
    call.cancel()
    await serving.server.idle()
    serving.steps.open()
    await serving.stub.Generate(pb.GenerateRequest(), metadata=ALICE).code()
    await serving.server.idle()
    await eventually(serving.is_empty)
    assert await is_served(serving, ALICE)
    await serving.server.idle()
    account = serving.server._security.accounts.of(Caller("alice", Proof.TOKEN, frozenset()))
    assert (account.concurrent, account.queued) == (0, 0)


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50)), min_size=1, max_size=60), st.integers(1, 200))
def test_after_the_time_that_was_told_there_are_tokens_again(spending: list[tuple[float, int]], limit: int) -> None:
    clock = Clock()
    account = Account(Limits(tokens_per_minute=limit), clock)
    spent: list[tuple[float, int]] = []
    for pause, tokens in spending:
        clock.now += pause
        account.spend(tokens)
        spent.append((clock.now, tokens))
        # The oracle has every time exactly; the account has whole seconds, which end up to a second earlier.
        exact = sum(each for at, each in spent if at > clock.now - WINDOW)
        surely = sum(each for at, each in spent if at > clock.now - WINDOW + 1)
        assert surely <= account.spent() <= exact
        assert len(account._spent) <= WINDOW + 1
    if account.spent() < limit:
        account.check_tokens()
        return
    with pytest.raises(IdentityTooManyTokens) as refused:
        account.check_tokens()
    assert 1 <= refused.value.retry_after <= WINDOW
    clock.now += refused.value.retry_after - 1.01
    if clock.now > spent[-1][0]:
        with pytest.raises(IdentityTooManyTokens):
            account.check_tokens()
    clock.now += 1.01
    account.check_tokens()


def test_an_account_without_a_limit_counts_no_tokens() -> None:
    account = Account()
    account.spend(10)
    account.check_tokens()
    assert account.spent() == 0


def test_generations_need_room_beside_their_own_call() -> None:
    account = Account(Limits(max_concurrent=3, max_queued=2))
    account.open()
    account.check_room(3, slots_are_taken=False)
    with pytest.raises(IdentityTooBusy):
        account.check_room(4, slots_are_taken=False)
    with pytest.raises(IdentityTooManyWaiting):
        account.check_room(3, slots_are_taken=True)
    account.enter(2, prompt_tokens=1)
    account.start()
    account.leave(2, unstarted=1)
    account.close()
    assert (account.concurrent, account.queued) == (0, 0)


def test_identities_are_forgotten_beyond_a_bound_but_not_those_with_a_call_open() -> None:
    accounts = Accounts(Limits(max_concurrent=1))
    busy = accounts.of(Caller("busy", Proof.JWT, frozenset()))
    busy.open()
    for i in range(MAX_ACCOUNTS + 10):
        accounts.of(Caller(str(i), Proof.JWT, frozenset()))
    assert len(accounts) == MAX_ACCOUNTS
    assert accounts.of(Caller("busy", Proof.JWT, frozenset())) is busy
    assert accounts.of(None) is not accounts.of(None)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[", "must be TOML"),
        (b"\xff", "must be TOML"),
        (b"alice = 1", "must be a table of max_concurrent, max_queued, tokens_per_minute"),
        (b"[alice]\nmax = 1", "must be a table of"),
        (b"[alice]\nmax_queued = -1", "max_queued of .* must be a whole number"),
        (b"[alice]\nmax_concurrent = 0", "max_concurrent of .* must be a whole number of at least 1"),
        (b"[alice]\ntokens_per_minute = 0", "tokens_per_minute of .* must be a whole number of at least 1"),
        (b"[alice]\nmax_queued = true", "max_queued of .* must be a whole number"),
        (b"[alice]\nmax_queued = 1.5", "max_queued of .* must be a whole number"),
    ],
)
def test_limits_that_are_none_are_refused(content: bytes, problem: str) -> None:
    with pytest.raises(BadContent, match=problem):
        IdentityLimits.parse(content)
