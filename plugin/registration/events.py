"""The events of a registration, for logs and metrics, and its state, with the pauses between attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import tenacity

from scrubber.ground import log

logger = log.get("registration")


class Cause(Enum):
    """Why a resource is not registered; a fixed set, because metrics count them."""

    NOT_SERVING = "not-serving"  # the plugin's own socket does not answer, so the plugin does not register
    KUBELET_SILENT = "kubelet-silent"  # kubelet.sock exists, but the kubelet does not answer
    REFUSED = "refused"  # the kubelet answered with an error, or too late
    NOT_ASKED = "not-asked"  # accepted, but the kubelet did not open ListAndWatch
    STREAM_ENDED = "stream-ended"  # the kubelet ended ListAndWatch
    KUBELET_CHANGED = "kubelet-changed"  # kubelet.sock was removed or replaced
    SOCKET_GONE = "socket-gone"  # the file of the plugin's own socket was removed or replaced


@dataclass(frozen=True, slots=True)
class Registered:
    """The kubelet accepted the resource, ``seconds`` after the first attempt."""

    resource: str
    endpoint: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Unregistered:
    """A registration failed or was lost; another attempt follows."""

    resource: str
    cause: Cause
    detail: str


Event = Registered | Unregistered
Listener = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """A listener that does nothing."""


class NotRegistered(Exception):
    """An attempt failed; the next one follows after a pause."""

    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(f"{cause.value}: {detail}")
        self.cause = cause
        self.detail = detail


PAUSES = tenacity.wait_random_exponential(multiplier=0.02, max=30.0)


class RegistrationState:
    """Whether a resource is registered. The listener gets every event.

    The log gets each cause once until ``restart``: a kubelet that refuses the plugin must not fill the log.
    """

    def __init__(self, resource: str, endpoint: str, on_event: Listener) -> None:
        self._resource = resource
        self._endpoint = endpoint
        self._on_event = on_event
        self._logged: set[Cause] = set()
        self._registered = False
        self._trying_since = 0.0

    def restart(self) -> None:
        """Log every cause again: the kubelet is a new one, or the last registration lasted."""
        self._logged.clear()
        self._trying_since = _now()

    def accepted(self) -> None:
        """The kubelet has accepted the registration."""
        seconds = round(_now() - self._trying_since, 4)
        self._registered = True
        logger.info("registered", resource=self._resource, endpoint=self._endpoint, seconds=seconds)
        self._on_event(Registered(self._resource, self._endpoint, seconds))

    def lost(self, cause: Cause, detail: str) -> None:
        """The registration is lost; without one, nothing changes."""
        if self._registered:
            self.failed(cause, detail)

    def failed(self, cause: Cause, detail: str) -> None:
        """An attempt failed, or the registration is lost."""
        if self._registered:
            self._trying_since = _now()
        self._registered = False
        self._on_event(Unregistered(self._resource, cause, detail))
        if cause not in self._logged:
            self._logged.add(cause)
            logger.warning("not registered", resource=self._resource, cause=cause.value, error=detail)

    def retrying(self) -> tenacity.AsyncRetrying:
        """Retry for ever after NotRegistered, with growing pauses, random so that resources do not retry at once."""
        return tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(NotRegistered), wait=PAUSES, before_sleep=self._failed_attempt
        )

    def _failed_attempt(self, attempt: tenacity.RetryCallState) -> None:
        error = attempt.outcome and attempt.outcome.exception()
        if isinstance(error, NotRegistered):
            self.failed(error.cause, error.detail)


def _now() -> float:
    return asyncio.get_running_loop().time()
