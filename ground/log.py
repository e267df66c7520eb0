"""Logs: key-value lines on stderr (JSON where no terminal is), without repeats. Stdout belongs to data.

Many people can read collected logs. So a line above debug names no process of a tenant (``process_names``), and a line
that repeats is counted instead of written. ``docs/logs.md`` lists every event.
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

from ground import process_names

MAX_REPEATS = 5  # times that the same line is written ...
WINDOW = 10.0  # ... within this many seconds
REMEMBERED = 512  # distinct lines whose repeats are counted
OF_THE_MOMENT = frozenset({"op", "seconds", "timestamp", "job", "receipt", "row", "exc_info"})  # not compared


def configure(level: str = "info", *, json: bool | None = None) -> None:
    """Set up logging once, at the start of a program. ``json`` None: JSON unless stderr is a terminal."""
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
            process_names.hide,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_names: _Unfailing(to),
        cache_logger_on_first_use=False,
    )


class _Unfailing(structlog.WriteLogger):
    """Ignores write errors: a full disk or a closed pipe under the log must not end the program.

    The ledger and the metrics still record what happens.
    """

    def msg(self, message: str) -> None:
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def get(room: str) -> structlog.typing.FilteringBoundLogger:
    """A logger that adds the name of its room to each line."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(room=room)
    return logger


@dataclass(slots=True)
class _Written:
    """The last times a line was written, and how often it was left out since."""

    at: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_REPEATS))
    left_out: int = 0


class RepeatFilter:
    """Writes a line a few times, then counts it. The next line that is written says how many were left out.

    Two lines are the same if they differ only in the fields of ``OF_THE_MOMENT``.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, remembered: int = REMEMBERED) -> None:
        """``remembered`` bounds the memory: the line that was written longest ago is forgotten first."""
        self._clock = clock
        self._remembered = remembered
        self._lines: OrderedDict[tuple[object, ...], _Written] = OrderedDict()
        self._lock = threading.Lock()  # some rooms log from their own threads

    def __call__(self, _logger: object, _method: str, line: EventDict) -> EventDict:
        """The line, or ``DropEvent``."""
        fields = sorted((key, repr(value)) for key, value in line.items() if key not in OF_THE_MOMENT)
        with self._lock:
            left_out = self._pass((_kind(line.get("exc_info")), *fields))
        return {**line, "left_out": left_out} if left_out else line

    def _pass(self, same: tuple[object, ...]) -> int:
        written, now = self._lines.setdefault(same, _Written()), self._clock()
        self._lines.move_to_end(same)
        if len(self._lines) > self._remembered:
            self._lines.popitem(last=False)
        if len(written.at) == MAX_REPEATS and now - written.at[0] < WINDOW:
            written.left_out += 1
            raise structlog.DropEvent
        written.at.append(now)
        left_out, written.left_out = written.left_out, 0
        return left_out


def _kind(fault: object) -> str:
    """The class name of the error that ``exc_info`` holds in any of its forms; empty without one."""
    if isinstance(fault, BaseException):
        return type(fault).__name__
    if isinstance(fault, tuple):
        return getattr(fault[0], "__name__", "")
    kind = sys.exc_info()[0] if fault else None
    return kind.__name__ if kind is not None else ""
