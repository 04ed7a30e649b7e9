import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from treadle import from_wire
from treadle.cli.top import ENTER_SCREEN, LEAVE_SCREEN, View, line
from treadle.server_info import Load
from treadle.v1 import generation_pb2 as pb

from tests.client.cli.command import Command, end, interrupt
from tests.client.scripted import PATIENCE, ScriptedServer

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
LOAD = Load(
    running=3,
    waiting=25,
    slots=32,
    kv_blocks_used=250,
    kv_blocks_cached=500,
    kv_blocks_total=1000,
    kv_block_size=16,
    tokens_per_second=140.0,
    tokens_generated=1000,
    since=SINCE,
)
MODEL = from_wire.model_info(pb.GetModelResponse(id="model", limits=pb.Limits(max_waiting=100)))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer.start()
    yield server
    server.stop()


@pytest.fixture
def command(server: ScriptedServer) -> Command:
    return Command(server.address)


def test_the_bars_are_filled_by_what_is_taken_and_shaded_by_what_is_cached() -> None:
    view = View(MODEL, "somewhere:1")
    view.take(LOAD, 0.0)
    view.take(replace(LOAD, tokens_generated=1300), 2.0)
    title, _, slots, queue, blocks, speed, generated = view.lines(SINCE + timedelta(hours=2, minutes=3), 85)
    assert title == "model on somewhere:1, up 2 h 3 min"
    assert slots.split() == ["slots", "████" + "·" * 36, "3", "of", "32"]
    assert queue.split() == ["queue", "█" * 10 + "·" * 30, "25", "of", "100"]
    assert blocks.split()[2] == "█" * 10 + "▒" * 20 + "·" * 10
    assert blocks.endswith("  250 used, 500 cached of 1000")
    assert speed.endswith("█  150.0 tokens/s, 140.0 over 10 s")
    assert generated.split() == ["generated", "1300", "tokens"]


def test_a_server_that_was_started_anew_has_no_negative_speed() -> None:
    view = View(MODEL, "somewhere:1")
    view.take(LOAD, 0.0)
    view.take(replace(LOAD, tokens_generated=0), 1.0)
    assert any(" 0.0 tokens/s" in each for each in view.lines(SINCE, 80))


COUNT = st.integers(0, 10_000)


@given(
    st.lists(st.builds(replace, st.just(LOAD), running=COUNT, waiting=COUNT, kv_blocks_used=COUNT), min_size=1),
    st.integers(1, 200),
)
def test_no_line_is_wider_than_the_terminal(loads: list[Load], width: int) -> None:
    view = View(replace(MODEL, id="model\x1b[2J"), "somewhere:1")
    for i, load in enumerate(loads):
        view.take(load, float(i))
    lines = view.lines(SINCE, width)
    assert all(len(each) <= width for each in lines)
    assert not any("\x1b" in each for each in lines)


def test_one_line_says_all_for_a_log() -> None:
    assert line(LOAD, SINCE) == (
        "2026-01-01T00:00:00Z  running 3/32  waiting 25  kv blocks 250 used 500 cached of 1000  140.0 tokens/s"
    )


def test_without_a_terminal_there_is_a_line_a_look_until_ctrl_c(command: Command) -> None:
    process = command.start("top", "--interval=0.01")
    assert process.stdout is not None
    lines = [process.stdout.readline().decode() for _ in range(3)]
    assert all("running 1/0" in each for each in lines)
    interrupt(process)
    ended = end(process)
    assert (ended.status, ended.err) == (130, "")


def test_json_is_a_load_a_line(command: Command) -> None:
    process = command.start("top", "--json", "--interval=0.01")
    assert process.stdout is not None
    loads = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert [load["running"] for load in loads] == [1, 1, 1]
    interrupt(process)
    assert end(process).status == 130


def test_a_server_that_is_not_there_is_an_exit_status() -> None:
    ended = Command("127.0.0.1:1").run("top", "--timeout=0.2")
    assert ended.status in (4, 6)
    assert ended.out == ""


@pytest.mark.parametrize("interval", ["0", "-1", "inf", "x"])
def test_an_interval_that_makes_no_sense_is_wrong_usage(command: Command, interval: str) -> None:
    assert command.run("top", "--interval", interval).status == 2


def test_a_terminal_is_painted_over_and_is_left_as_it_was(server: ScriptedServer) -> None:
    ours, theirs = pty.openpty()
    variables = {**os.environ, "PYTHONPATH": "client", "TREADLE_ADDRESS": server.address, "COLUMNS": "80"}
    command = [sys.executable, "-m", "treadle", "top", "--interval=0.01"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=variables) as process:
        os.close(theirs)
        shown = read_until(ours, r"(?s)(\x1b\[H.*){3}")
        interrupt(process)
        shown += read_to_the_end(ours)
        assert process.wait(PATIENCE) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(ours)
    assert shown.startswith(ENTER_SCREEN)
    assert shown.endswith(LEAVE_SCREEN)
    assert f"scripted on {server.address}" in shown


def read_until(descriptor: int, pattern: str) -> str:
    shown = ""
    while not re.search(pattern, shown):
        shown += os.read(descriptor, 4096).decode(errors="replace")
    return shown


def read_to_the_end(descriptor: int) -> str:
    shown = b""
    while True:
        try:
            piece = os.read(descriptor, 4096)
        except OSError:  # how Linux says that nobody holds the other end any more
            return shown.decode(errors="replace")
        if not piece:
            return shown.decode(errors="replace")
        shown += piece
