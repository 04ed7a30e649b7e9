from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs


@pytest.fixture(autouse=True)
def _quiet_log() -> Iterator[None]:
    """Keeps the tracebacks of what fails on purpose from being drawn, which takes longer than all else here."""
    with capture_logs():
        yield
