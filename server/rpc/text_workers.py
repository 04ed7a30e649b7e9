"""Threads for the work on text that would hold the event loop up: parsing, templates, tokenizing, compiling."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from server.rpc.errors import TooManyWaiting

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")


class TextWorkers:
    """Runs at most `count` pieces of work at once, while at most `max_waiting` wait; None: as many as there are calls.

    What waits for a thread waits on the event loop, so cancelling it leaves nothing behind, and no queue grows. A piece
    that runs is not interrupted: cancelling it drops its answer, and its thread is taken until it ends.
    """

    def __init__(self, count: int, max_waiting: int | None = None) -> None:
        self._max_waiting = max_waiting
        self._waiting = 0
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="text")
        self._free = asyncio.Semaphore(count)

    async def run(
        self, work: Callable[Parameters, Answer], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Answer:
        """Raises what the work raises, and TooManyWaiting."""
        loop = asyncio.get_running_loop()

        def release(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the thread any more
                loop.call_soon_threadsafe(self._free.release)

        await self._take_thread()
        future = self._threads.submit(work, *args, **kwargs)
        future.add_done_callback(release)
        return await asyncio.wrap_future(future)

    async def _take_thread(self) -> None:
        if self._free.locked() and self._waiting == self._max_waiting:
            raise TooManyWaiting(f"{self._waiting} pieces of work of this kind wait, the most this server takes")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
