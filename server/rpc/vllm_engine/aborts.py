"""Aborts: the calls that a client may end by the id of their request, from another call."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from server.engine.errors import DuplicateRequestId
from server.rpc.call import Call


@dataclass(frozen=True, slots=True)
class _Key:
    identity: str | None
    """Whose it is: nobody aborts the requests of another identity."""
    request_id: str


class Aborts:
    def __init__(self) -> None:
        self._open: dict[_Key, asyncio.Timeout] = {}

    @asynccontextmanager
    async def abortable(self, call: Call) -> AsyncIterator[asyncio.Timeout]:
        """What runs in the block is broken off by an abort of the call's request, and the block then left as if it had
        ended; the timeout it yields has expired then. A call whose client has given no id cannot be aborted.

        Raises DuplicateRequestId.
        """
        timeout, key = asyncio.timeout(None), _key(call, call.request_id)
        if call.is_id_claimed and key in self._open:
            raise DuplicateRequestId(f"request_id {call.request_id!r} is in flight")
        if call.is_id_claimed:
            self._open[key] = timeout
        try:
            async with timeout:
                yield timeout
        except TimeoutError:
            if not timeout.expired():
                raise
        finally:
            if call.is_id_claimed:
                del self._open[key]

    def abort(self, call: Call, request_ids: Iterable[str]) -> None:
        """On behalf of the caller of `call`. Ids of which nothing runs are passed over."""
        now = asyncio.get_running_loop().time()
        for request_id in request_ids:
            timeout = self._open.get(_key(call, request_id))
            if timeout is not None and not timeout.expired():
                timeout.reschedule(now)


def _key(call: Call, request_id: str) -> _Key:
    return _Key(None if call.caller is None else call.caller.identity, request_id)
