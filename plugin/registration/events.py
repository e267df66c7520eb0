"""The events of a registration, for logs and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


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
