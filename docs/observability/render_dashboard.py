"""Draws the dashboard's panels from the data of a real run, where no Grafana is at hand.

Starts a server and a Prometheus that scrapes it, keeps a changing number of callers busy, has Prometheus answer the
queries of deploy/overlays/monitoring/dashboard.json, and draws the answers with matplotlib in the dashboard's layout.
Needs `prometheus` on the path (Debian's package of that name) and the extra `docs`.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import treadle

mpl.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

REPOSITORY = Path(__file__).resolve().parents[2]
DASHBOARD = REPOSITORY / "deploy/overlays/monitoring/dashboard.json"
CALLERS = (1, 4, 12, 24, 48, 24, 6, 2)
"""How many there are in each part of the run."""
SUBJECTS = ("the sea", "a clock", "winter", "an orchard", "the moon", "a bridge", "bread", "a lighthouse")
RATE_INTERVAL = "15s"
COLUMNS, CELL_WIDTH, CELL_HEIGHT = 24, 0.72, 0.42
"""Of Grafana's grid; inches."""
BACKGROUND, PANEL, INK, FAINT = "#111217", "#181b1f", "#ccccdc", "#3a3d44"
COLOURS = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#b877d9", "#5794f2", "#fade2a")


@dataclass(frozen=True)
class Server:
    address: str
    metrics_port: int


@dataclass(frozen=True)
class Series:
    """What Prometheus answers to a panel's query."""

    name: str
    times: list[float]
    values: list[float]


@dataclass(frozen=True)
class Prometheus:
    port: int

    def query(self, expression: str, legend: str, start: float, end: float) -> list[Series]:
        step = max(1.0, (end - start) / 240)
        asked = {"query": expression, "start": start, "end": end, "step": step}
        url = f"http://127.0.0.1:{self.port}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            matrix = json.load(answer)["data"]["result"]
        return [_series(each, legend, start) for each in matrix]


def _series(answered: dict[str, Any], legend: str, start: float) -> Series:
    for label, value in answered["metric"].items():
        legend = legend.replace("{{" + label + "}}", value)
    points = [(float(moment) - start, float(value)) for moment, value in answered["values"] if value != "NaN"]
    return Series(legend, [moment for moment, _ in points], [value for _, value in points])


@contextmanager
def _running(command: list[str], **options: Any) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(command, text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def server(module: str, flags: list[str]) -> Iterator[Server]:
    command = [sys.executable, "-m", module, "--port=0", "--metrics-port=0", "--log-format=json", *flags]
    with _running(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=REPOSITORY) as process:
        assert process.stderr is not None
        logged = next(each for each in map(json.loads, process.stderr) if each["event"].startswith("listening"))
        rest = process.stderr
        threading.Thread(target=lambda: [None for _ in rest], daemon=True).start()  # so that it is never full
        address = f"127.0.0.1:{logged['port']}"
        with treadle.Client(address) as client:
            while client.health() is not treadle.Health.SERVING:
                time.sleep(0.5)
        yield Server(address, logged["metrics_port"])


@contextmanager
def prometheus(scraped_port: int, directory: Path) -> Iterator[Prometheus]:
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "treadle", "static_configs": [{"targets": [f"127.0.0.1:{scraped_port}"]}]}],
    }
    path = directory / "prometheus.json"
    path.write_text(json.dumps(config))  # JSON is YAML
    port = _free_port()
    flags = [f"--config.file={path}", f"--storage.tsdb.path={directory}", f"--web.listen-address=127.0.0.1:{port}"]
    with _running(["prometheus", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        yield Prometheus(port)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def keep_busy(address: str, seconds: float) -> None:
    """So many callers as CALLERS says, in turn; some of them leave early, and some ask for what is refused."""
    wanted, over = [0], threading.Event()
    callers = [threading.Thread(target=_call, args=(i, address, wanted, over)) for i in range(max(CALLERS))]
    for caller in callers:
        caller.start()
    for count in CALLERS:
        wanted[0] = count
        time.sleep(seconds / len(CALLERS))
    over.set()
    for caller in callers:
        caller.join()


def _call(i: int, address: str, wanted: list[int], over: threading.Event) -> None:
    beginning = "You are a helpful assistant that writes short and simple stories for children. Write about "
    with treadle.Client(address, retry=treadle.RetryPolicy(max_attempts=1)) as client:
        turn = i
        while not over.is_set():
            if i >= wanted[0]:
                over.wait(0.2)
                continue
            turn += 1
            tokens = 16 + 12 * (turn % 7)
            try:
                if turn % 11 == 0:
                    client.complete(beginning, temperature=-1)
                prompt = beginning + SUBJECTS[turn % len(SUBJECTS)]
                stream = client.generate(prompt, max_new_tokens=tokens, ignore_eos=turn % 3 > 0)
                for heard, _ in enumerate(stream):
                    if turn % 13 == 0 and heard == 5:
                        break
                stream.cancel()
            except treadle.TreadleError:
                over.wait(0.5)


def draw(dashboard: dict[str, Any], source: Prometheus, start: float, end: float, output: Path) -> None:
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    figure = pyplot.figure(figsize=(COLUMNS * CELL_WIDTH, rows * CELL_HEIGHT), facecolor=BACKGROUND)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        x, y = place["x"] / COLUMNS, 1 - (place["y"] + place["h"]) / rows
        width, height = place["w"] / COLUMNS, place["h"] / rows
        if panel["type"] == "row":
            figure.text(x + 0.004, y + height / 2, f"▾ {panel['title']}", color=INK, fontsize=11, va="center")
            continue
        series = [
            each
            for target in panel["targets"]
            for each in source.query(_filled_in(target["expr"]), target["legendFormat"], start, end)
        ]
        _draw_panel(figure, panel, series, (x + 0.002, y + 0.002, width - 0.004, height - 0.004))
    figure.savefig(output, dpi=80, facecolor=BACKGROUND)


def _draw_panel(
    figure: Figure, panel: dict[str, Any], series: list[Series], box: tuple[float, float, float, float]
) -> None:
    x, y, width, height = box
    frame = figure.add_axes(box, facecolor=PANEL)
    frame.set(xticks=[], yticks=[])
    frame.spines[:].set_color(FAINT)
    figure.text(x + 0.005, y + height - 0.011, panel["title"], color=INK, fontsize=10, va="center", weight="bold")
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if panel["type"] == "stat":
        last = _shown(series[0].values[-1], unit) if series else "no data"
        figure.text(
            x + width / 2, y + height / 2 - 0.006, last, color=COLOURS[0], fontsize=24, ha="center", va="center"
        )
        return
    axes = figure.add_axes((x + 0.032, y + 0.034, width - 0.042, height - 0.058), facecolor=PANEL)
    _draw_lines(axes, panel, series)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _shown(value, unit)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{int(value) // 60}:{int(value) % 60:02}"))
    axes.tick_params(colors=INK, labelsize=7, length=0)
    axes.grid(color=FAINT, linewidth=0.5)
    axes.spines[:].set_visible(False)
    axes.set_ylim(0, 1.08 * max((max(each.values) for each in series), default=0.0) or 1.0)
    if series:
        legend = axes.legend(loc="upper left", bbox_to_anchor=(0, -0.1), ncols=3, fontsize=6.5, frameon=False)
        for text in legend.get_texts():
            text.set_color(INK)


def _draw_lines(axes: Axes, panel: dict[str, Any], series: list[Series]) -> None:
    if "stacking" in panel["fieldConfig"]["defaults"]["custom"]:
        names, times = [each.name for each in series], series[0].times
        axes.stackplot(times, [each.values for each in series], labels=names, colors=COLOURS, alpha=0.6)
        return
    for i, each in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(each.times, each.values, label=each.name, color=colour, linewidth=1.2)
        axes.fill_between(each.times, each.values, color=colour, alpha=0.08)


def _filled_in(expression: str) -> str:
    """What Grafana fills in."""
    for variable, value in (("$job", ".*"), ("$instance", ".*"), ("$__rate_interval", RATE_INTERVAL)):
        expression = expression.replace(variable, value)
    return expression


def _shown(value: float, unit: str) -> str:
    match unit:
        case "s":
            return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
        case "percentunit":
            return f"{value:.0%}"
        case "bytes":
            return f"{value / 2**20:.0f} MiB"
        case "reqps" | "ops":
            return f"{value:.1f}/s"
        case _:
            return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="of load")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("dashboard.png"))
    parser.add_argument(
        "--server", default="server", metavar="MODULE", help="the server's module; a test's, for a draft"
    )
    parser.add_argument("flags", nargs="*", help="of the server, after --")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        server(given.server, given.flags) as served,
        prometheus(served.metrics_port, Path(directory)) as source,
    ):
        time.sleep(5)
        start = time.time()
        keep_busy(served.address, given.seconds)
        draw(json.loads(DASHBOARD.read_text()), source, start, start + given.seconds, given.output)


if __name__ == "__main__":
    main()
