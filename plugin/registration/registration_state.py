"""The events of a registration, for logs and metrics, and its state, with the pauses between attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

import tenacity

from ground import log

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


class NotRegistered(Exception):
    """An attempt failed, or a registration was lost; the next attempt follows."""

    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(f"{cause.value}: {detail}")
        self.cause = cause
        self.detail = detail


Listener = Callable[[str, NotRegistered | None], None]  # of a resource; None: the kubelet has accepted it


def ignore(_resource: str, _failure: NotRegistered | None) -> None:
    """A listener that does nothing."""


PAUSES = tenacity.wait_random_exponential(multiplier=0.02, max=30.0)


class RegistrationState:
    """Whether a resource is registered. The listener gets every event.

    The log gets each cause once until ``restart``: a kubelet that refuses the plugin must not fill the log.
    """

    def __init__(self, resource: str, on_event: Listener) -> None:
        self._resource = resource
        self._on_event = on_event
        self._logged: set[Cause] = set()
        self._registered = False
        self._trying_since = 0.0

    def restart(self) -> None:
        """Log every cause again: the kubelet is a new one, or the last registration lasted."""
        self._logged.clear()
        self._trying_since = _now()

    def accepted(self, endpoint: str) -> None:
        """The kubelet has accepted the registration of this socket."""
        seconds = round(_now() - self._trying_since, 4)
        self._registered = True
        logger.info("registered", resource=self._resource, endpoint=endpoint, seconds=seconds)
        self._on_event(self._resource, None)

    def lost(self, cause: Cause, detail: str) -> None:
        """The registration is lost. If there was none, nothing changes."""
        if self._registered:
            self.failed(NotRegistered(cause, detail))

    def failed(self, failure: NotRegistered) -> None:
        """An attempt failed, or the registration is lost."""
        if self._registered:
            self._trying_since = _now()
        self._registered = False
        self._on_event(self._resource, failure)
        if failure.cause not in self._logged:
            self._logged.add(failure.cause)
            logger.warning("not registered", resource=self._resource, cause=failure.cause.value, error=failure.detail)

    def retrying(self) -> tenacity.AsyncRetrying:
        """Retry forever after NotRegistered, with growing, random pauses, so that not all resources retry together."""
        return tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(NotRegistered), wait=PAUSES, before_sleep=self._failed_attempt
        )

    def _failed_attempt(self, attempt: tenacity.RetryCallState) -> None:
        error = attempt.outcome and attempt.outcome.exception()
        if isinstance(error, NotRegistered):
            self.failed(error)


def _now() -> float:
    return asyncio.get_running_loop().time()
