"""How the plugin calls the API server: a client, a time limit for each call, and classified failures.

The only module, with those of the objects, that knows the client library. The library is an optional dependency, and
costs more memory and time than the rest of the plugin's start. So the modules that use it are imported by name, and
only if there are credentials.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpx2
from lightkube import ApiError, AsyncClient, KubeConfig

from plugin.cluster.base import Failure, FailureKind, Unusable
from plugin.cluster.credentials import Credentials, File, InCluster

STALE = frozenset({HTTPStatus.CONFLICT})
_MOST_QUOTED = 300  # characters of an answer of the API server


def connect(credentials: Credentials, namespace: str, within: float) -> AsyncClient:
    """A client that has sent nothing yet. ``within``: the time limit of a call, in seconds."""
    try:
        return AsyncClient(_config(credentials), namespace=namespace, timeout=httpx2.Timeout(within))
    except Exception as error:  # the library fails in many ways on a broken file
        raise Unusable(f"cannot use the credentials: {_one_line(error)}") from error


def _config(credentials: Credentials) -> KubeConfig:
    match credentials:
        case InCluster(directory):
            return KubeConfig.from_service_account(directory)
        case File(path):
            return KubeConfig.from_file(path)


@asynccontextmanager
async def call(verb: str, what: str, within: float | None, stale: Collection[int] = STALE) -> AsyncIterator[None]:
    """Limit the time of a whole call, with DNS, TLS and the answer, and raise a Failure for each error."""
    try:
        async with asyncio.timeout(within):
            yield
    except (TimeoutError, httpx2.TimeoutException):
        raise Failure(FailureKind.AWAY, f"the API server did not answer within {within:g} s") from None
    except httpx2.HTTPStatusError as error:
        raise _failure(error, f"{verb} {what}", stale) from None
    except (httpx2.HTTPError, OSError) as error:
        raise Failure(FailureKind.AWAY, f"cannot reach the API server: {_one_line(error)}") from None
    except Exception as error:  # the library fails in many ways on an invalid answer
        raise Failure(FailureKind.AWAY, f"the API server's answer is invalid: {_one_line(error)}") from error


def _failure(error: httpx2.HTTPStatusError, right: str, stale: Collection[int]) -> Failure:
    code, said = _code(error), _one_line(error)
    match code:
        case HTTPStatus.UNAUTHORIZED:
            return Failure(FailureKind.FORBIDDEN, f"the API server does not accept the credentials: {said}")
        case HTTPStatus.FORBIDDEN:
            return Failure(FailureKind.FORBIDDEN, f"the right to {right} is missing: {said}")
        case HTTPStatus.NOT_FOUND:
            return Failure(FailureKind.MISSING, f"cannot {right}, the object does not exist: {said}")
        case HTTPStatus.TOO_MANY_REQUESTS:
            return Failure(FailureKind.BUSY, "the API server is busy", _retry_after(error))
        case HTTPStatus.UNPROCESSABLE_ENTITY if code in stale:
            why = f"another client changed the object before {right}, or an admission policy refused it: {said}"
            return Failure(FailureKind.STALE, why)
        case HTTPStatus.GONE:
            return Failure(FailureKind.STALE, f"the API server has forgotten the state before {right}: {said}")
        case _ if code in stale:
            return Failure(FailureKind.STALE, f"another client changed the object before {right}: {said}")
        case _ if HTTPStatus.BAD_REQUEST <= code < HTTPStatus.INTERNAL_SERVER_ERROR:
            return Failure(FailureKind.REFUSED, f"the API server refuses to {right}: {said}")
        case _:
            return Failure(FailureKind.AWAY, f"the API server failed with status {code}", _retry_after(error))


def _code(error: httpx2.HTTPStatusError) -> int:
    """The status of the answer, or of an error that came as an event of a watch."""
    if _is_event(error):
        return (isinstance(error, ApiError) and error.status.code) or HTTPStatus.INTERNAL_SERVER_ERROR
    return error.response.status_code


def _is_event(error: httpx2.HTTPStatusError) -> bool:
    """Whether the error has no answer of its own; the types do not know that."""
    return getattr(error, "response", None) is None


def _retry_after(error: httpx2.HTTPStatusError) -> float | None:
    """In seconds; the API server never sends a date."""
    seconds = "" if _is_event(error) else error.response.headers.get("Retry-After", "")
    return float(seconds) if seconds.isdecimal() else None


def _one_line(error: Exception) -> str:
    said = " ".join(f"{error}".split()) or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in said)[:_MOST_QUOTED]
