"""What each door does with a call: it decides how the call ended, counts it once, and writes one log line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from structlog.typing import FilteringBoundLogger

from ground import operation_id
from ground.errors import AutoclaveError, Reason


class CallOutcome(Enum):
    """How a call ended, in the log and in the metrics."""

    OK = "ok"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    FAULT = "fault"


@dataclass(slots=True, kw_only=True)
class LoggedCall:
    """A call: its id in all logs and in the ledger, and how it ended."""

    op: str = field(default_factory=operation_id.new)
    outcome: CallOutcome = CallOutcome.OK
    reason: str = ""  # of a refusal or a fault
    error: str = ""  # of a refusal
    seconds: float = 0.0
    receipt: str = ""  # that the call led to
    quiet: bool = False  # log at level debug, unless it is a fault

    @property
    def ending(self) -> dict[str, object]:
        """The fields of a log line that say how the call ended."""
        return {"outcome": self.outcome.value, "reason": self.reason, "seconds": round(self.seconds, 4)}

    def refuse(self, reason: str, error: str) -> None:
        """The call ends with a refusal, also without an ``AutoclaveError``."""
        self.outcome, self.reason, self.error = CallOutcome.REFUSED, reason, error


@contextmanager
def logged(
    call: LoggedCall,
    door: FilteringBoundLogger,
    count: Callable[[], Mapping[str, object]],
    *,
    fault: str,
    cancelled: str = "",
    refused: str = "request refused",
    granted: str = "request granted",
) -> Iterator[None]:
    """Note how the call ends, count it, and log it by the logger of the door. Errors pass through.

    ``count`` counts the call and returns the fields of the log line. ``cancelled`` is empty where nothing is logged.
    """
    clock = asyncio.get_running_loop().time
    begun = clock()
    try:
        yield
    except AutoclaveError as error:
        call.refuse(error.reason.value, str(error))
        raise
    except Exception:
        call.outcome, call.reason = CallOutcome.FAULT, Reason.INTERNAL.value
        raise
    except BaseException:  # the caller has gone
        call.outcome = CallOutcome.CANCELLED
        raise
    finally:
        call.seconds = clock() - begun
        fields = count()
        if call.outcome is CallOutcome.OK:
            door.log(logging.DEBUG if call.quiet else logging.INFO, granted, op=call.op, **fields)
        elif call.outcome is CallOutcome.FAULT:
            door.exception(fault, op=call.op, **fields)
        elif words := refused if call.outcome is CallOutcome.REFUSED else cancelled:
            why = {"error": call.error} if call.error else {}
            door.log(logging.DEBUG if call.quiet else logging.WARNING, words, op=call.op, **why, **fields)
