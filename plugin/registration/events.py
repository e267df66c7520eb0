"""What happens to a registration, as values: for logs, for metrics, for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Cause(Enum):
    """Why we are not registered; few and fixed, so that they can be counted."""

    NOT_SERVING = "not-serving"  # our own socket does not answer: nothing is registered before it does
    KUBELET_SILENT = "kubelet-silent"  # kubelet.sock lies there, nobody answers
    REFUSED = "refused"  # the kubelet answered with an error, or not in time
    NOT_ASKED = "not-asked"  # accepted, but the kubelet never asked for the devices
    STREAM_ENDED = "stream-ended"  # the kubelet no longer listens to us
    KUBELET_CHANGED = "kubelet-changed"  # kubelet.sock went, or another came in its place
    SOCKET_GONE = "socket-gone"  # the file of our own socket was removed or replaced


@dataclass(frozen=True, slots=True)
class Registered:
    """The kubelet accepted the resource, so many seconds after there was a reason to ask."""

    resource: str
    endpoint: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Unregistered:
    """A registration failed or was lost; another try follows."""

    resource: str
    cause: Cause
    detail: str


Event = Registered | Unregistered
Listener = Callable[[Event], None]


def unheard(_event: Event) -> None:
    """The listener when nobody listens."""


class NotRegistered(Exception):
    """A try that came to nothing; the next one comes after a pause."""

    def __init__(self, cause: Cause, detail: str) -> None:
        """Keep the cause beside the detail."""
        super().__init__(f"{cause.value}: {detail}")
        self.cause = cause
        self.detail = detail
