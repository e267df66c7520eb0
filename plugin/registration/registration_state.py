"""Whether one resource is registered: for the log and a listener, with the pauses between attempts."""

from __future__ import annotations

import asyncio

import tenacity

from plugin.registration import events
from plugin.registration.events import Cause, NotRegistered
from scrubber.ground import log

logger = log.get("registration")

PAUSES = tenacity.wait_random_exponential(multiplier=0.02, max=30.0)


class RegistrationState:
    """Whether a resource is registered. The listener gets every event.

    The log gets each cause once until ``restart``: a kubelet that refuses the plugin must not fill the log.
    """

    def __init__(self, resource: str, endpoint: str, on_event: events.Listener) -> None:
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
        self._on_event(events.Registered(self._resource, self._endpoint, seconds))

    def lost(self, cause: Cause, detail: str) -> None:
        """The registration is lost; without one, nothing changes."""
        if self._registered:
            self.failed(cause, detail)

    def failed(self, cause: Cause, detail: str) -> None:
        """An attempt failed, or the registration is lost."""
        if self._registered:
            self._trying_since = _now()
        self._registered = False
        self._on_event(events.Unregistered(self._resource, cause, detail))
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
