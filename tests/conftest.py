"""Imported before any test, so that torch starts with the server's settings of its threads."""

import server.model  # noqa: F401
