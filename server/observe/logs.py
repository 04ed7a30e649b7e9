"""Logs: every line, ours and the libraries', through structlog to standard error; JSON, or readable on a terminal."""

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import Processor


def set_up_logs(log_format: str, level: str, stream: TextIO = sys.stderr) -> None:
    """`log_format` is "json", "text", or "auto": text where the stream is a terminal. `level` is logging's name."""
    on_terminal = stream.isatty()
    readable = log_format == "text" or (log_format == "auto" and on_terminal)
    about_every_line: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=about_every_line,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(readable, colors=on_terminal),
            ],
        )
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *about_every_line,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    logging.captureWarnings(True)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("treadle").setLevel(level.upper())


def _renderers(readable: bool, colors: bool) -> list[Processor]:
    if readable:
        # Never with the values of local variables, as where rich is installed: prompts are among them.
        formatter = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=formatter)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
