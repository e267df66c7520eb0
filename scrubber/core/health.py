"""What is wrong with a device, and which of its errors are known: one part of the record.

* ``ailment``: set by ``AilmentFound`` while the device is granted or in use. After the release, ``upkeep`` turns it
  into a quarantine; until then the device is not offered, and no scrub may start on it. ``QuarantineWithdrawn`` ends
  an ailment that an operator has named, no other one.
* ``quarantine.probes``: how often a probation has failed. It sets the next pause.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from scrubber.core import ailments, pauses
from scrubber.core import events as ev
from scrubber.core.model import Ailment, AilmentKind, Baseline, Job, Moment, Quarantine, Trigger

REMEMBERED = 10  # returns from quarantine


@dataclass(frozen=True, slots=True)
class Health:
    """What is wrong with the device, and which of its errors are known."""

    baseline: Baseline = field(default_factory=Baseline)
    ailment: Ailment | None = None  # found while in use: leads to a quarantine after the release
    quarantine: Quarantine | None = None
    returns: tuple[float, ...] = ()  # wall times of returns from quarantine, for the flap counter
    errors_noted: float | None = None  # uptime; when errors without an ailment were last recorded


def guard(health: Health, event: ev.Event) -> None:
    """Reject an event that does not fit what is wrong with the device."""
    match event:
        case ev.ScrubStarted() | ev.Granted():
            ev.demand(health.ailment is None, "the device has an ailment")
        case ev.ScrubFailed() | ev.ScrubInterrupted():
            ev.demand(health.quarantine is None, "the job of a quarantined device ends clean or in quarantine")
        case ev.QuarantineWithdrawn():
            asked = health.ailment is not None and health.ailment.kind is AilmentKind.OPERATOR
            ev.demand(asked, "no operator has asked for its quarantine")
        case _:
            pass


def fold(health: Health, event: ev.Event, at: Moment, *, job: Job | None, rebooted: bool) -> Health:
    """What an event changes. ``job``: the one that runs. ``rebooted``: with it the service notices another boot."""
    match event:
        case ev.AilmentFound(ailment):
            return replace(health, ailment=ailment)
        case ev.Quarantined(quarantine):
            return replace(health, ailment=None, quarantine=quarantine, baseline=quarantine.baseline)
        case ev.ProbationStarted() if health.quarantine is not None:
            return replace(health, quarantine=replace(health.quarantine, probes=health.quarantine.probes + 1))
        case ev.ScrubPassed(receipt=receipt):
            return replace(health, baseline=receipt.baseline, quarantine=None, returns=_returns(health, job, at))
        case ev.Reinstated():
            return replace(health, quarantine=None, returns=())
        case ev.QuarantineWithdrawn():
            return replace(health, ailment=None)
        case ev.ErrorsNoted(last=last):
            return replace(health, baseline=replace(health.baseline, last_xid=last), errors_noted=at.uptime)
        case ev.Distrusted():
            return _distrusted(health, at, rebooted=rebooted)
        case _:
            return health


def _returns(health: Health, job: Job | None, at: Moment) -> tuple[float, ...]:
    """The returns after a scrub has passed. A reinstatement clears them: maintenance does not count as flapping."""
    if health.quarantine is None:
        return health.returns
    if job is None or job.trigger is not Trigger.PROBATION:
        return ()
    if health.quarantine.ailment.kind in ailments.BLAMELESS:
        return health.returns
    return (*health.returns[1 - REMEMBERED :], at.wall)


def _distrusted(health: Health, at: Moment, *, rebooted: bool) -> Health:
    """A quarantine stays, and its next probation is timed anew. A reboot restarts the numbers and counts of errors."""
    baseline, quarantine = Baseline() if rebooted else health.baseline, health.quarantine
    if quarantine is not None:
        waits = quarantine.next_probe is None
        due = None if waits else at.uptime + pauses.after_interruption(quarantine)
        quarantine = replace(quarantine, next_probe=due, baseline=baseline)
    return replace(health, baseline=baseline, quarantine=quarantine, errors_noted=None)
