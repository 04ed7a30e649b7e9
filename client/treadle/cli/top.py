"""`treadle top`: the server's load again and again, until Ctrl-C."""

import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from treadle.cli.arguments import Arguments
from treadle.cli.printing import CONTROL_CHARACTERS, print_json
from treadle.client import Client
from treadle.server_info import Load, ModelInfo

HISTORY = 60
"""Looks whose speeds are drawn."""
NAME_WIDTH, FIGURES_WIDTH = 11, 34
"""Columns of a bar's name before it and of its figures after it."""
LEVELS = " ▁▂▃▄▅▆▇█"

ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The terminal's other screen, without a cursor, and back."""
REPAINT, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def top(client: Client, arguments: Arguments) -> None:
    """Raises TreadleError, KeyboardInterrupt for Ctrl-C, and BrokenPipeError."""
    if arguments.json:
        for load in _loads(client, arguments):
            print_json(asdict(load))
    elif sys.stdout.isatty():
        view = View(client.model(timeout=arguments.timeout), arguments.address)
        with _own_screen():
            for load in _loads(client, arguments):
                view.take(load, time.monotonic())
                _paint(view.lines(datetime.now(UTC), shutil.get_terminal_size().columns))
    else:
        for load in _loads(client, arguments):
            print(line(load, datetime.now(UTC)), flush=True)


def line(load: Load, now: datetime) -> str:
    """All of it in one line, for where there is no terminal."""
    blocks = f"{load.kv_blocks_used} used {load.kv_blocks_cached} cached of {load.kv_blocks_total}"
    return (
        f"{now:%Y-%m-%dT%H:%M:%SZ}  running {load.running}/{load.slots}  waiting {load.waiting}"
        f"  kv blocks {blocks}  {load.tokens_per_second:.1f} tokens/s"
    )


class View:
    """What is shown on a terminal."""

    def __init__(self, model: ModelInfo, address: str) -> None:
        self._model, self._address = model, address
        self._last: tuple[Load, float] | None = None
        self._speeds: deque[float] = deque(maxlen=HISTORY)

    def take(self, load: Load, now: float) -> None:
        """Takes the load that the server has told, `now` in seconds of any clock."""
        if self._last is not None:
            before, then = self._last
            # A server that was started anew has counted from 0.
            self._speeds.append(max(0, load.tokens_generated - before.tokens_generated) / max(now - then, 1e-3))
        self._last = load, now

    def lines(self, now: datetime, width: int) -> list[str]:
        """At most `width` characters each."""
        assert self._last is not None
        load, _ = self._last
        waiting_limit = self._model.limits.max_waiting
        blocks = f"{load.kv_blocks_used} used, {load.kv_blocks_cached} cached of {load.kv_blocks_total}"
        speed = f"{self._speeds[-1] if self._speeds else 0.0:.1f} tokens/s, {load.tokens_per_second:.1f} over 10 s"
        shown = [
            f"{self._model.id} on {self._address}, up {_duration(now - load.since)}",
            "",
            _bar("slots", f"{load.running} of {load.slots}", width, load.slots, load.running),
            _bar("queue", f"{load.waiting} of {waiting_limit}", width, waiting_limit, load.waiting),
            _bar("KV blocks", blocks, width, load.kv_blocks_total, load.kv_blocks_used, load.kv_blocks_cached),
            f"{'speed':<{NAME_WIDTH}}{_curve(self._speeds, width - NAME_WIDTH - FIGURES_WIDTH)}  {speed}",
            f"{'generated':<{NAME_WIDTH}}{load.tokens_generated} tokens",
        ]
        return [CONTROL_CHARACTERS.sub("�", each)[:width] for each in shown]


def _loads(client: Client, arguments: Arguments) -> Iterator[Load]:
    """One at once, and then one each interval."""
    while True:
        yield client.load(timeout=arguments.timeout)
        time.sleep(arguments.interval)


@contextmanager
def _own_screen() -> Iterator[None]:
    """Leaves the terminal as it was, however it ends."""
    sys.stdout.write(ENTER_SCREEN)
    try:
        yield
    finally:
        sys.stdout.write(LEAVE_SCREEN)
        sys.stdout.flush()


def _paint(lines: list[str]) -> None:
    sys.stdout.write(REPAINT + "".join(f"{each}{END_OF_LINE}\r\n" for each in lines) + END_OF_SCREEN)
    sys.stdout.flush()


def _bar(name: str, figures: str, width: int, total: int, taken: int, held: int = 0) -> str:
    """`taken` of `total` filled, and `held` of it beside that shaded."""
    cells = max(1, width - NAME_WIDTH - FIGURES_WIDTH)
    full = _cells(taken, total, cells)
    shaded = _cells(taken + held, total, cells) - full
    return f"{name:<{NAME_WIDTH}}{'█' * full}{'▒' * shaded}{'·' * (cells - full - shaded)}  {figures}"


def _cells(part: int, total: int, cells: int) -> int:
    """Any part takes a cell, and only the whole takes all."""
    if part <= 0 or total <= 0:
        return 0
    if part >= total:
        return cells
    return min(max(1, round(part / total * cells)), max(1, cells - 1))


def _curve(speeds: deque[float], cells: int) -> str:
    """The last of the speeds, as high as they are of the highest."""
    cells = max(1, cells)
    shown = list(speeds)[-cells:]
    highest = max(shown, default=0.0) or 1.0
    curve = "".join(LEVELS[round(speed / highest * (len(LEVELS) - 1))] for speed in shown)
    return curve.rjust(cells)


def _duration(lasted: timedelta) -> str:
    minutes, seconds = divmod(max(0, int(lasted.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
