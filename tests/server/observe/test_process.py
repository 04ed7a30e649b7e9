"""The process, from outside: where its metrics are, and what becomes of a setting that cannot be met."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.observe.scraping import Scrape
from tests.server.rpc.serving import PATIENCE

Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def run() -> Iterator[Run]:
    processes: list[subprocess.Popen[str]] = []

    def start(*flags: str, **environment: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.server.serve_fake", "--port=0", "--log-format=json", *flags]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([".", "client"]), **environment}
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, env=variables, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def listening(process: "subprocess.Popen[str]") -> dict[str, object]:
    assert process.stderr is not None
    for line in process.stderr:
        logged: dict[str, object] = json.loads(line)
        if str(logged["event"]).startswith("listening"):
            return logged
    raise AssertionError("the server ended without listening")


def scrape(port: object) -> Scrape:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        return Scrape(answer.read().decode())


def test_metrics_are_served_from_before_the_model_is_there(run: Run) -> None:
    process = run("--model=endless", "--metrics-port=0")
    assert scrape(listening(process)["metrics_port"]).value("treadle_lifecycle_state", state="LOADING") == 1


def test_a_port_for_metrics_that_is_in_use_ends_the_process_and_names_the_setting(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = run(f"--metrics-port={port}")
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert f"127.0.0.1:{port}" in err.splitlines()[-1]
    assert "--metrics-port" in err.splitlines()[-1]


def test_metrics_can_be_off(run: Run) -> None:
    assert listening(run("--metrics-port=off"))["metrics_port"] is None


def test_a_collector_that_is_not_there_holds_up_neither_start_nor_end(run: Run) -> None:
    pytest.importorskip("opentelemetry.sdk")
    process = run("--otlp-endpoint=http://127.0.0.1:1", "--metrics-port=off")
    assert process.stdout is not None
    assert "Try:" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


@pytest.mark.parametrize("flag", ["--metrics-port=65536", "--metrics-port=none", "--otlp-endpoint=collector:4317"])
def test_a_setting_that_makes_no_sense_is_refused_by_name(run: Run, flag: str) -> None:
    process = run(flag)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert err.startswith(f"treadle: error: {flag.partition('=')[0]} is ")


def test_traces_without_opentelemetry_are_refused_with_what_to_install(run: Run, tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('hidden for a test')\n")
    path = os.pathsep.join([str(tmp_path), ".", "client"])
    process = run("--otlp-endpoint=http://127.0.0.1:1", "--metrics-port=off", PYTHONPATH=path)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "pip install '.[tracing]'" in err.splitlines()[-1]
