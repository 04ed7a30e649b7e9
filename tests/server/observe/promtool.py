"""promtool, which comes with Prometheus: the reference for what Prometheus takes and finds good."""

import shutil
import subprocess

import pytest

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed; Debian's package `prometheus` has it"
)


def promtool(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False)
