"""What is tried in a process of its own lets the model's steps come first."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from server.engine.chat import Chat, ChatMessage
from server.engine.errors import InvalidArgument
from server.model.constraint_trial import NICENESS, TrialFailed, TrialLimits, try_compiling
from server.model.request_template import RenderLimits, render_apart
from tests.server.model.children import nice_values_of_children


def compile_for_long() -> None:
    with pytest.raises(TrialFailed):
        try_compiling('start: %json {"type": "integer", "multipleOf": 99999989}', TrialLimits(seconds=5.0))


def render_for_long() -> None:
    with pytest.raises(InvalidArgument, match="must render within"):
        render_apart("{{ 2 ** (10 ** 10) }}", {}, Chat((ChatMessage("user", "hi"),)), RenderLimits(seconds=5.0))


@pytest.mark.parametrize("work", [compile_for_long, render_for_long])
def test_the_process_that_tries_it_is_nicer_than_the_server(work: Callable[[], None]) -> None:
    seen: set[int] = set()
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        while not working.done() and os.nice(0) + NICENESS not in seen:
            seen.update(nice_values_of_children())
        working.result()
    assert os.nice(0) + NICENESS in seen
