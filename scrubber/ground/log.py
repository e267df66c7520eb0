"""Logs: key-value lines, readable at a terminal and JSON elsewhere. Always to stderr: stdout belongs to data.

Logs are collected, and read by many. So a line above debug names no process of a tenant (``strangers``), and the same
line again and again is counted instead of written. ``docs/logs.md`` lists every line that there is.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from structlog.typing import EventDict

from scrubber.ground import process_names

MOST = 5  # times that the same line may be written ...
WINDOW = 10.0  # ... in so many seconds
REMEMBERED = 512  # lines that differ, of which it is known how often they were written lately
OF_THE_MOMENT = frozenset({"op", "seconds", "timestamp", "job", "receipt", "row", "exc_info"})  # makes no other line


def configure(level: str = "info", *, json: bool | None = None) -> None:
    """Set up logging once, at the start of a program. ``json`` None means: unless stderr is a terminal."""
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(pad_event_to=0)
    )
    to = sys.stderr
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            RepeatFilter(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            nameless,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_names: _Unfailing(to),
        cache_logger_on_first_use=False,
    )


class _Unfailing(structlog.WriteLogger):
    """A full disk under the log, or a reader who has gone, must not end those who guard the GPUs.

    There is nobody left to tell of it; the ledger and the figures say what happens all the same.
    """

    def msg(self, message: str) -> None:
        """Write a line if that can be."""
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def get(room: str) -> structlog.typing.FilteringBoundLogger:
    """A logger that names the room it speaks from."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(room=room)
    return logger


def nameless(_logger: object, method: str, line: EventDict) -> EventDict:
    """Leave out the names of processes, but where somebody has asked for everything."""
    if method == "debug":
        return line
    return {key: process_names.unnamed(value) if isinstance(value, str) else value for key, value in line.items()}


@dataclass(slots=True)
class _Written:
    """When a line was written lately, and how often it was left out since."""

    at: deque[float] = field(default_factory=lambda: deque(maxlen=MOST))
    left_out: int = 0


class RepeatFilter:
    """Writes the same line a few times, then counts it; the next one that is written says how many were left out.

    Lines are the same that differ only in what belongs to the moment. Two that say different things are never mixed up.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, remembered: int = REMEMBERED) -> None:
        """``remembered`` bounds the memory: what was said longest ago is forgotten first."""
        self._clock = clock
        self._remembered = remembered
        self._lines: OrderedDict[tuple[object, ...], _Written] = OrderedDict()
        self._lock = threading.Lock()  # some rooms listen on threads of their own

    def __call__(self, _logger: object, _method: str, line: EventDict) -> EventDict:
        """The line, or ``DropEvent``."""
        with self._lock:
            left_out = self._pass(_sameness(line))
        return {**line, "left_out": left_out} if left_out else line

    def _pass(self, same: tuple[object, ...]) -> int:
        written, now = self._lines.setdefault(same, _Written()), self._clock()
        self._lines.move_to_end(same)
        if len(self._lines) > self._remembered:
            self._lines.popitem(last=False)
        if len(written.at) == MOST and now - written.at[0] < WINDOW:
            written.left_out += 1
            raise structlog.DropEvent
        written.at.append(now)
        left_out, written.left_out = written.left_out, 0
        return left_out


def _sameness(line: EventDict) -> tuple[object, ...]:
    told = sorted((key, repr(value)) for key, value in line.items() if key not in OF_THE_MOMENT)
    return (_kind(line.get("exc_info")), *told)


def _kind(fault: object) -> str:
    """Of which class an error is that comes with its traceback, however it was handed to the logger."""
    if isinstance(fault, BaseException):
        return type(fault).__name__
    if isinstance(fault, tuple):
        return getattr(fault[0], "__name__", "")
    kind = sys.exc_info()[0] if fault else None
    return kind.__name__ if kind is not None else ""
