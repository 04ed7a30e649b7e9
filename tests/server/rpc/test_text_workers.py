import asyncio

import pytest

from server.rpc.errors import TooManyWaiting
from server.rpc.text_workers import TextWorkers
from tests.server.rpc.serving import PATIENCE, Gate


async def test_work_runs_beside_the_loop_and_its_answer_or_error_comes_back() -> None:
    workers = TextWorkers(1)
    assert await workers.run(sum, [1, 2]) == 3
    with pytest.raises(ZeroDivisionError):
        await workers.run(divmod, 1, 0)
    workers.close()


async def test_work_cancelled_while_it_waits_for_a_thread_never_runs() -> None:
    workers, gate, ran = TextWorkers(1), Gate(), list[str]()
    gate.close()
    holding = asyncio.create_task(workers.run(gate))
    await asyncio.to_thread(gate.reached.wait, PATIENCE)
    waiting = asyncio.create_task(workers.run(ran.append, "cancelled"))
    await asyncio.sleep(0)
    waiting.cancel()
    gate.open()
    await holding
    await workers.run(ran.append, "next")
    assert ran == ["next"]
    workers.close()


async def test_a_thread_whose_work_was_cancelled_is_taken_until_the_work_ends() -> None:
    workers, gate, ran = TextWorkers(1), Gate(), list[str]()
    gate.close()
    cancelled = asyncio.create_task(workers.run(gate))
    await asyncio.to_thread(gate.reached.wait, PATIENCE)
    cancelled.cancel()
    following = asyncio.create_task(workers.run(ran.append, "after"))
    await asyncio.sleep(0.02)
    assert not ran
    gate.open()
    await following
    assert ran == ["after"]
    workers.close()


async def test_no_more_than_may_wait_do_and_a_place_left_is_free_again() -> None:
    workers, gate, ran = TextWorkers(1, max_waiting=2), Gate(), list[str]()
    gate.close()
    holding = asyncio.create_task(workers.run(gate))
    await asyncio.to_thread(gate.reached.wait, PATIENCE)
    waiting = [asyncio.create_task(workers.run(ran.append, name)) for name in ("first", "second")]
    await asyncio.sleep(0)
    with pytest.raises(TooManyWaiting, match="2 pieces of work"):
        await workers.run(ran.append, "too many")
    waiting.pop().cancel()
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(workers.run(ran.append, "third")))
    gate.open()
    await asyncio.gather(holding, *waiting)
    assert ran == ["first", "third"]
    workers.close()
