"""What a pod's events may say of an error. Pure."""

from __future__ import annotations

from scrubber.ground.errors import AutoclaveError, Reason

_PUBLIC_MESSAGES = {
    Reason.UNREACHABLE: "the scrub service of this node does not answer",
    Reason.INTERNAL: "the scrub service of this node failed",
    Reason.LEDGER_UNAVAILABLE: "the scrub service of this node cannot record anything",
}


def message(error: AutoclaveError) -> str:
    """The message for the pod's events. The service writes its messages for tenants; gRPC does not."""
    return _PUBLIC_MESSAGES.get(error.reason, error.message)
