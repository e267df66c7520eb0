"""What can go wrong, in words of our own.

Every error that leaves the service carries a :class:`Reason` for machines and a sentence for people. The sentence is
read by tenants (the kubelet puts it into pod events), so it never holds another tenant's name, process id or bytes;
that detail goes to the ledger and to the operator's socket. ``api`` maps reasons to gRPC codes, ``cli`` to exit codes.
"""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """Machine-readable reasons: a stable contract, the value is what goes over the wire."""

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
    OWNER_UNKNOWN = "owner-unknown"
    OWNER_AMBIGUOUS = "owner-ambiguous"
    UNRESPONSIVE = "unresponsive"
    LEDGER_UNAVAILABLE = "ledger-unavailable"
    SHUTTING_DOWN = "shutting-down"
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed-out"
    INTERNAL = "internal"


class AutoclaveError(Exception):
    """Base of all errors that a caller may see: a reason and a sentence."""

    def __init__(self, reason: Reason, message: str) -> None:
        """Keep the reason beside the sentence."""
        super().__init__(message)
        self.reason = reason
        self.message = message


class Refused(AutoclaveError):
    """The answer is no, and asking again without a change would get the same answer."""


class NotReady(AutoclaveError):
    """The answer is no for now: the same question may be asked again."""


class InvalidRequest(AutoclaveError):
    """The question itself is wrong; nothing was touched."""

    def __init__(self, message: str, reason: Reason = Reason.INVALID_REQUEST) -> None:
        """Default to the general reason."""
        super().__init__(reason, message)


class LedgerUnavailable(AutoclaveError):
    """The ledger cannot be written or read: nothing is granted until it can."""

    def __init__(self, message: str) -> None:
        """The reason is always the same."""
        super().__init__(Reason.LEDGER_UNAVAILABLE, message)


class Unreachable(AutoclaveError):
    """The scrub service does not answer."""

    def __init__(self, message: str) -> None:
        """The reason is always the same."""
        super().__init__(Reason.UNREACHABLE, message)


class FatalError(Exception):
    """Something the person at the keyboard can mend: a wrong flag, a missing directory, a second instance."""
