"""Whose a cancellation is.

grpc.aio raises asyncio.CancelledError for a call that was cancelled here as for a task that was. Only the task's may
pass as one: it would end a task that nobody cancelled, without a word.
"""

import asyncio

from treadle.errors import Cancelled


def is_of_the_task() -> bool:
    """Whether somebody cancels the current task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def of_the_call() -> Cancelled:
    """What stands for it where the call was cancelled."""
    return Cancelled("the call was cancelled here", code="CANCELLED")
