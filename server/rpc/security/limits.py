"""Limits of what one identity may use, and the account of what it uses.

An identity's requests are its open calls, each of which counts as many as it has generations. What an identity has
spent is the tokens of its prompts and generations in the last minute; a call that has begun is never ended by it.
"""

import math
import time
import tomllib
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from server.rpc.errors import IdentityTooBusy, IdentityTooManyTokens, IdentityTooManyWaiting
from server.rpc.security.caller import Caller
from server.rpc.security.errors import BadContent
from server.rpc.security.reloaded_files import ReloadedFiles

WINDOW = 60
"""Seconds over which tokens are counted."""
MAX_ACCOUNTS = 10_000
"""Identities remembered; beyond them those are forgotten that have no call open, the longest unheard of first."""


@dataclass(frozen=True, slots=True)
class Limits:
    """None is no limit."""

    max_concurrent: int | None = None
    """Requests open at once."""
    max_queued: int | None = None
    """Requests that wait while all slots are taken."""
    tokens_per_minute: int | None = None


class Account:
    """What one identity uses."""

    def __init__(self, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or Limits()
        self.concurrent = 0
        self.queued = 0
        self._clock = clock
        self._spent: deque[tuple[int, int]] = deque()  # (second of the clock, tokens in it), at most WINDOW + 1

    def open(self) -> None:
        """Counts a call. Raises IdentityTooBusy."""
        self._check_concurrent(1)
        self.concurrent += 1

    def close(self) -> None:
        self.concurrent -= 1

    def check_tokens(self) -> None:
        """Raises IdentityTooManyTokens where the last minute's tokens reach the limit."""
        limit = self.limits.tokens_per_minute
        spent = self.spent()
        if limit is None or spent < limit:
            return
        for second, tokens in self._spent:
            spent -= tokens
            if spent < limit:
                message = f"{limit} tokens a minute are the most this server gives this identity"
                raise IdentityTooManyTokens(message, retry_after=math.ceil(second + WINDOW - self._clock()))

    def check_room(self, generations: int, *, slots_are_taken: bool) -> None:
        """Raises IdentityTooBusy or IdentityTooManyWaiting where an open call cannot have so many generations."""
        self._check_concurrent(generations - 1)
        limit = self.limits.max_queued
        if limit is not None and slots_are_taken and self.queued + generations > limit:
            raise IdentityTooManyWaiting(f"{limit} waiting requests are the most this server keeps for this identity")

    def enter(self, generations: int, prompt_tokens: int) -> None:
        """The generations of an open call, and all tokens of their prompts, are the engine's now."""
        self.concurrent += generations - 1
        self.queued += generations
        self.spend(prompt_tokens)

    def start(self) -> None:
        """One of them no longer waits."""
        self.queued -= 1

    def leave(self, generations: int, unstarted: int) -> None:
        self.concurrent -= generations - 1
        self.queued -= unstarted

    def spend(self, tokens: int) -> None:
        if self.limits.tokens_per_minute is None:
            return
        second = int(self._clock())
        self._forget_the_old()
        if self._spent and self._spent[-1][0] == second:
            tokens += self._spent.pop()[1]
        self._spent.append((second, tokens))

    def spent(self) -> int:
        """Tokens in the last minute."""
        self._forget_the_old()
        return sum(tokens for _, tokens in self._spent)

    def _check_concurrent(self, more: int) -> None:
        limit = self.limits.max_concurrent
        if limit is not None and self.concurrent + more > limit:
            raise IdentityTooBusy(f"{limit} requests at once are the most this server takes of this identity")

    def _forget_the_old(self) -> None:
        oldest = self._clock() - WINDOW
        while self._spent and self._spent[0][0] <= oldest:
            self._spent.popleft()


@dataclass(frozen=True, slots=True)
class IdentityLimits:
    """Limits by identity, such as "token:alice", read from TOML: a table of each that has limits of its own."""

    by_identity: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, content: bytes) -> "IdentityLimits":
        """Raises BadContent."""
        try:
            tables = tomllib.loads(content.decode())
        except (ValueError, RecursionError) as error:
            raise BadContent(f"must be TOML: {error}") from None
        for identity, table in tables.items():
            _check_table(identity, table)
        return cls(tables)

    def of(self, identity: str, default: Limits) -> Limits:
        """What the identity's table leaves out is as in `default`."""
        return replace(default, **self.by_identity.get(identity, {}))


def _check_table(identity: str, table: Any) -> None:
    names = [each.name for each in fields(Limits)]
    if not isinstance(table, dict) or not set(table) <= set(names):
        raise BadContent(f"[{identity!r}] must be a table of {', '.join(names)}")
    for name, value in table.items():
        least = 0 if name == "max_queued" else 1
        if type(value) is not int or value < least:
            raise BadContent(f"{name} of [{identity!r}] must be a whole number of at least {least}")


class Accounts:
    """The accounts of all identities."""

    def __init__(self, default: Limits | None = None, limits: ReloadedFiles[IdentityLimits] | None = None) -> None:
        self._default, self._limits = default or Limits(), limits
        self._accounts: OrderedDict[str, Account] = OrderedDict()

    def of(self, caller: Caller | None) -> Account:
        """With the limits that are in force now. A caller without an identity has none."""
        if caller is None:
            return Account()
        account = self._accounts.setdefault(caller.identity, Account())
        self._accounts.move_to_end(caller.identity)
        account.limits = self._limits_of(caller.identity)
        if len(self._accounts) > MAX_ACCOUNTS:
            self._forget_one()
        return account

    def __len__(self) -> int:
        return len(self._accounts)

    def _limits_of(self, identity: str) -> Limits:
        return self._default if self._limits is None else self._limits.current.of(identity, self._default)

    def _forget_one(self) -> None:
        newest = next(reversed(self._accounts))
        idle = (name for name, account in self._accounts.items() if not account.concurrent and name != newest)
        if (unheard := next(idle, None)) is not None:
            del self._accounts[unheard]
