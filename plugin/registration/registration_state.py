"""Where one resource stands with the kubelet: told to the log and to a listener, and the pauses between tries."""

from __future__ import annotations

import asyncio

import structlog
import tenacity

from plugin.registration import events
from plugin.registration.events import Cause, NotRegistered

logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(room="registration")

PAUSES = tenacity.wait_random_exponential(multiplier=0.02, max=30.0)


class RegistrationState:
    """Registered or not, since when wanted. The listener hears everything, the log each cause once until a fresh start.

    Without that, a kubelet that refuses us would fill the log with the same line at every try.
    """

    def __init__(self, resource: str, endpoint: str, on_event: events.Listener) -> None:
        """Not registered, and not wanted yet."""
        self._resource = resource
        self._endpoint = endpoint
        self._on_event = on_event
        self._told: set[Cause] = set()
        self._registered = False
        self._wanted_since = 0.0

    def fresh(self) -> None:
        """A new kubelet, or a registration that lasted: what went wrong before is told again if it happens again."""
        self._told.clear()
        self._wanted_since = _now()

    def accepted(self) -> None:
        """The kubelet knows us."""
        seconds = round(_now() - self._wanted_since, 4)
        self._registered = True
        logger.info("registered", resource=self._resource, endpoint=self._endpoint, seconds=seconds)
        self._on_event(events.Registered(self._resource, self._endpoint, seconds))

    def lost(self, cause: Cause, detail: str) -> None:
        """The kubelet knows us no longer; nothing to tell if it never did."""
        if self._registered:
            self.failed(cause, detail)

    def failed(self, cause: Cause, detail: str) -> None:
        """A registration that was lost or never came about."""
        if self._registered:
            self._wanted_since = _now()
        self._registered = False
        self._on_event(events.Unregistered(self._resource, cause, detail))
        if cause not in self._told:
            self._told.add(cause)
            logger.warning("not registered", resource=self._resource, cause=cause.value, error=detail)

    def retrying(self) -> tenacity.AsyncRetrying:
        """For ever; the pause after a NotRegistered grows, and is random so that resources do not march in step."""
        return tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(NotRegistered), wait=PAUSES, before_sleep=self._tell
        )

    def _tell(self, attempt: tenacity.RetryCallState) -> None:
        error = attempt.outcome and attempt.outcome.exception()
        if isinstance(error, NotRegistered):
            self.failed(error.cause, error.detail)


def _now() -> float:
    return asyncio.get_running_loop().time()
