"""The tree of the product's errors, their remedies and reasons. An exit code in brackets is what ``cli`` ends with.

::

    Exception
      ErrorWithRemedies        what happened, and what a person can do about it
        FatalError             the program cannot run, and its user can change that [2]
        AutoclaveError         a caller may see it: it has a reason for programs [1; 4 for another owner's GPU]
          Refused              no, until something changes
          NotReady             no for now: the caller may repeat the request
          InvalidRequest       the request itself is wrong [2]
          LedgerUnavailable    nothing is granted until the ledger can be written
            CorruptLedgerError the ledger is not what was written
          Unreachable          the scrub service does not answer [3]
          ContainerFailed      a container of a public test did not do its part
            AnotherGpu         it got another GPU than the first one
        ReceiptError           a key, a receipt or a checkpoint cannot be used
          NotSignedError       no given key has signed the checkpoint
      DocumentError            the faults of a file that people write [2]
      DeviceError              a device, its driver or the node failed, or lacks something [1]

Every error that leaves the service has a :class:`Reason` for programs and a message for people. Tenants read the
message, because the kubelet puts it into pod events. So it never holds the name, process id or bytes of another
tenant: these go to the ledger and to the operators' socket. ``api`` maps reasons to gRPC codes.

No program cuts a message apart: what it needs of an error is a value beside the message.
"""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """Reasons that programs can read. The values are a stable contract: they are part of the API."""

    INVALID_REQUEST = "invalid-request"
    UNKNOWN_DEVICE = "unknown-device"
    IN_USE = "in-use"
    NOT_PROVEN_FREE = "not-proven-free"
    NOT_READY = "not-ready"
    SCRUBBING = "scrubbing"
    SCRUB_FAILED = "scrub-failed"
    QUARANTINED = "quarantined"
    SICK = "sick"
    NOT_QUARANTINED = "not-quarantined"
    OTHER_OWNER = "other-owner"
    OWNER_UNKNOWN = "owner-unknown"
    OWNER_AMBIGUOUS = "owner-ambiguous"
    TOO_MANY_CALLS = "too-many-calls"
    SHORTAGE = "shortage"
    UNRESPONSIVE = "unresponsive"
    LEDGER_UNAVAILABLE = "ledger-unavailable"
    SHUTTING_DOWN = "shutting-down"
    UNREACHABLE = "unreachable"
    VENDOR = "vendor"
    TIMED_OUT = "timed-out"
    INTERNAL = "internal"


LONGEST = 900  # characters of a message: an event of Kubernetes has at most 1,024, with the words of the kubelet

VENDOR_LOG = "the log of the vendor's program on its node says more"

_DOCTOR = "on its node, `autoclave doctor` says why"
_FOR_TENANTS = {
    Reason.UNREACHABLE: f"the scrub service of this node does not answer; {_DOCTOR}",
    Reason.INTERNAL: "the scrub service of this node failed; its log says why",
    Reason.LEDGER_UNAVAILABLE: f"the scrub service of this node cannot record anything; {_DOCTOR}",
}


def plain(text: str) -> str:
    """Words for an event, which may be those of another program: without control characters, and not too long."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[:LONGEST])
    return shown if len(text) <= LONGEST else f"{shown} ..."


def joined(*parts: str) -> str:
    """A message and its remedies, or remedies alone, as people read them: in one line."""
    return "; ".join(parts)


class ErrorWithRemedies(Exception):
    """What happened, and what a person can do about it: each remedy is a command or a sentence. ``str`` joins them."""

    def __init__(self, message: str, *remedies: str) -> None:
        super().__init__(joined(message, *remedies))
        self.message = message
        self.remedies = remedies


class AutoclaveError(ErrorWithRemedies):
    """Base of all errors that a caller may see. ``device``: the UUID of the device that it is about, if it is one."""

    def __init__(self, reason: Reason, message: str, *remedies: str, device: str = "") -> None:
        super().__init__(message, *remedies)
        self.reason = reason
        self.device = device

    @property
    def for_tenants(self) -> str:
        """The words for the pod's events. The service writes its messages for tenants; gRPC does not."""
        return plain(_FOR_TENANTS.get(self.reason, str(self)))


class Refused(AutoclaveError):
    """Refused: the same request is refused again until something changes."""


class NotReady(AutoclaveError):
    """Refused for now: the caller may repeat the request."""


class InvalidRequest(AutoclaveError):
    """The request itself is wrong; nothing was changed."""

    def __init__(self, message: str, *remedies: str, reason: Reason = Reason.INVALID_REQUEST, device: str = "") -> None:
        super().__init__(reason, message, *remedies, device=device)


class LedgerUnavailable(AutoclaveError):
    """The ledger cannot be written or read: the service grants nothing until it can."""

    def __init__(self, message: str, *remedies: str) -> None:
        super().__init__(Reason.LEDGER_UNAVAILABLE, message, *remedies)


def start(*, on_kubernetes: bool) -> str:
    """How a person starts the service of this node."""
    pod = ", or on a Kubernetes node `kubectl describe` its pod" if on_kubernetes else ""
    return f"start the service: `systemctl start autoclave-scrubber`{pod}"


def restart(*, on_kubernetes: bool) -> str:
    """How a person restarts the service of this node."""
    pod = ", or on a Kubernetes node delete its pod" if on_kubernetes else ""
    return f"restart the service: `systemctl restart autoclave-scrubber`{pod}"


class Unreachable(AutoclaveError):
    """The scrub service does not answer: nobody listens (UNREACHABLE), or who listens takes too long (TIMED_OUT)."""

    def __init__(self, message: str, *remedies: str, reason: Reason = Reason.UNREACHABLE) -> None:
        super().__init__(reason, message, *remedies)


class FatalError(ErrorWithRemedies):
    """The program cannot run, and the user can change that: a wrong flag, a missing directory, a second instance."""
