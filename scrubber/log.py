"""Logs: key-value lines, readable at a terminal and JSON elsewhere. Always to stderr: stdout belongs to data."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(level: str = "info", *, json: bool | None = None) -> None:
    """Set up logging once, at the start of a program. ``json`` None means: unless stderr is a terminal."""
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(pad_event_to=0)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )


def get(room: str) -> structlog.typing.FilteringBoundLogger:
    """A logger that names the room it speaks from."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(room=room)
    return logger
