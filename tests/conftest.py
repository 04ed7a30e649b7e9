"""Imported before any test, so that torch starts with the server's settings of its threads."""

import os

import server.model  # noqa: F401

# Servers of tests run side by side: each takes a free port for its metrics, where its test names none.
os.environ.setdefault("TREADLE_METRICS_PORT", "0")
