import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest
import structlog

from server.observe.logs import set_up_logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("treadle")
    handlers, level, our_level = root.handlers[:], root.level, ours.level
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(our_level)


def json_lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_where_no_terminal_is_every_line_is_json_whoever_logs_it() -> None:
    stream = io.StringIO()
    set_up_logs("auto", "info", stream)
    structlog.stdlib.get_logger("treadle.test").info("ours", count=3)
    logging.getLogger("library").warning("theirs: %d", 4)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("a warning\nof two lines", stacklevel=1)
    ours, theirs, warning = json_lines(stream)
    assert (ours["event"], ours["count"], ours["level"], ours["logger"]) == ("ours", 3, "info", "treadle.test")
    assert (theirs["event"], theirs["level"]) == ("theirs: 4", "warning")
    assert "a warning" in str(warning["event"])
    assert str(ours["timestamp"]).endswith("Z")


def test_on_a_terminal_a_line_is_readable() -> None:
    stream = Terminal()
    set_up_logs("auto", "info", stream)
    structlog.stdlib.get_logger("treadle.test").info("ours", count=3)
    assert "ours" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@pytest.mark.parametrize(("log_format", "is_json"), [("json", True), ("text", False)])
def test_the_format_asked_for_beats_the_terminal(log_format: str, is_json: bool) -> None:
    stream = Terminal() if is_json else io.StringIO()
    set_up_logs(log_format, "info", stream)
    structlog.stdlib.get_logger("treadle.test").info("ours")
    assert stream.getvalue().startswith("{") is is_json


def test_the_level_is_of_our_lines_and_libraries_only_warn() -> None:
    stream = io.StringIO()
    set_up_logs("json", "debug", stream)
    structlog.stdlib.get_logger("treadle.test").debug("ours")
    logging.getLogger("library").info("theirs")
    set_up_logs("json", "error", stream)
    structlog.stdlib.get_logger("treadle.other").info("not logged")
    assert [line["event"] for line in json_lines(stream)] == ["ours"]


def test_an_exception_stays_on_its_line() -> None:
    stream = io.StringIO()
    set_up_logs("json", "info", stream)
    try:
        raise ValueError("broken")
    except ValueError as error:
        structlog.stdlib.get_logger("treadle.test").error("ours", exc_info=error)
    (line,) = json_lines(stream)
    assert "ValueError: broken" in str(line["exception"])


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_an_exception_is_logged_without_the_values_of_local_variables(log_format: str) -> None:
    stream = io.StringIO()
    set_up_logs(log_format, "info", stream)
    try:
        prompt = "se" + "cret"
        raise ValueError(len(prompt))
    except ValueError as error:
        structlog.stdlib.get_logger("treadle.test").error("ours", exc_info=error)
    assert "ValueError: 6" in stream.getvalue()
    assert "secret" not in stream.getvalue()
