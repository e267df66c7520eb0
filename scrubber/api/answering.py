"""How every question is answered: one line in the log, its figures, and an error that has a reason.

A yes is told at level info, a no as a warning, a fault of ours as an error with its traceback.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from scrubber.ground import log, operation_id
from scrubber.ground.errors import AutoclaveError, InvalidRequest, NotReady, Reason

logger = log.get("api")
Context = grpc.aio.ServicerContext[Any, Any]
Tell = Callable[[str, str, str, float], None]  # a request's name, its outcome, the reason of a no, and the seconds

FAULT = "a fault inside the scrub service"


@dataclass(slots=True)
class Asked:
    """A question, and what is learnt while it is answered."""

    request: str
    op: str
    devices: Sequence[str] = ()
    job: str = ""
    quiet: bool = False  # it changes nothing, or each of its devices has a line of its own

    def about(self) -> dict[str, object]:
        """What its line says, whatever becomes of it."""
        job = {"job": self.job} if self.job else {}
        return {"request": self.request, "op": self.op, "devices": list(self.devices), **job}

    def level(self, otherwise: int) -> int:
        """At which its line is written."""
        return logging.DEBUG if self.quiet else otherwise


@asynccontextmanager
async def answered(
    context: Context, request: str, tell: Tell | None = None, *, quiet: bool = False
) -> AsyncIterator[Asked]:
    """A question from its first word to its end, for the caller, the log and the figures."""
    asked = Asked(request, operation_id.of(context.invocation_metadata()), quiet=quiet)
    async with translated(context), told(asked, tell):
        yield asked


@asynccontextmanager
async def told(asked: Asked, tell: Tell | None = None) -> AsyncIterator[None]:
    """One line at the end. Errors go on to whoever turns them into an answer."""
    clock = asyncio.get_running_loop().time
    begun = clock()

    def ended(outcome: str, reason: str = "") -> dict[str, object]:
        seconds = clock() - begun
        if tell is not None:
            tell(asked.request, outcome, reason, seconds)
        return {**asked.about(), "outcome": outcome, "reason": reason, "seconds": round(seconds, 4)}

    try:
        yield
    except AutoclaveError as error:
        logger.log(asked.level(logging.WARNING), "no", error=error.message, **ended("refused", error.reason.value))
        raise
    except asyncio.CancelledError:
        logger.log(asked.level(logging.WARNING), "whoever asked has left", **ended("cancelled"))
        raise
    except Exception:  # whatever it is, it is told here once, and goes on to be answered as a fault of ours
        logger.exception(FAULT, **ended("fault", Reason.INTERNAL.value))
        raise
    else:
        logger.log(asked.level(logging.INFO), "yes", **ended("ok"))


@asynccontextmanager
async def translated(context: Context) -> AsyncIterator[None]:
    """Turns our errors, and faults of ours, into gRPC's, with the reason beside the sentence."""
    try:
        yield
    except AutoclaveError as error:
        await abort(context, _code(error), error.reason, error.message)
    except grpc.aio.AbortError:
        raise
    except Exception:  # noqa: BLE001 - it has been told where it happened
        await abort(context, grpc.StatusCode.INTERNAL, Reason.INTERNAL, FAULT)


async def abort(context: Context, code: grpc.StatusCode, reason: Reason, message: str) -> NoReturn:
    """End a question with a reason that our client understands."""
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(reason=reason.value, domain="autoclave"))
    number = code_pb2.Code.Value(code.name)
    status = rpc_status.to_status(status_pb2.Status(code=number, message=message, details=[info]))
    await context.abort(code, message, tuple(status.trailing_metadata))


def _code(error: AutoclaveError) -> grpc.StatusCode:
    if error.reason is Reason.UNKNOWN_DEVICE:
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, InvalidRequest):
        return grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, NotReady) or error.reason is Reason.LEDGER_UNAVAILABLE:
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.FAILED_PRECONDITION
