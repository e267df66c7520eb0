"""Everything that the ledger knows about one device: five values, the results of all its events.

``changes`` says which event changes what in them, and ``states`` in which state it may happen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from scrubber.core.events import LedgerEntry
from scrubber.core.guarded import FenceMemory
from scrubber.core.leftover import Span
from scrubber.core.model import (
    Ailment,
    Baseline,
    DeviceInfo,
    Grant,
    Incarnation,
    Job,
    Moment,
    Owner,
    Quarantine,
    Receipt,
    ScrubPath,
    Setback,
    State,
    Stuck,
)


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Who was given the device, who uses it, and who had it last."""

    # Counts the tenancies, from the milliseconds of the device's discovery on: the ids of hand-overs are made from it.
    # So the id of the next one is known before the present one ends, and none comes twice, also after a lost ledger.
    number: int = 0
    grant: Grant | None = None
    owner: Owner | None = None
    began: float | None = None  # uptime; kept until the next proof
    ended: float | None = None  # uptime; when the last tenant with an admitted start released the device
    allocations: int = 0  # how often Allocate has handed it out since its last tenant ended
    last_owner: str | None = None  # the last tenant with an admitted start that has ended
    left_by: str = ""  # ``Grant.owner`` of the last tenancy that has ended
    kept_for: str = ""  # the claim that keeps the device during a scrub between two of its containers
    awaits: str = ""  # the pod that the device is scrubbed for once more before its next container: its tenancy goes on
    deferred: Moment | None = None  # when Allocate last gave it to a pod whose containers wait, if not granted since
    held_from: int | None = None  # ``number`` of the first hand-over whose directory a pod may have; None: the present
    claim_pods: tuple[str, ...] | None = None  # by UID, those that its claim is reserved for; None: not known

    @property
    def container(self) -> str | None:
        """The container of the owner, as in ``Holder.container``. None: it is not known, or there is no owner."""
        return self.owner.container if self.owner is not None else None

    @property
    def is_crowded(self) -> bool:
        """Whether a container of another pod was seen on the device beside that of its owner."""
        return self.owner is not None and self.owner.crowded

    @property
    def start_admitted(self) -> bool:
        """Whether the device has an owner whose start was admitted.

        A grant that announces no start counts as an admitted start.
        """
        if self.owner is not None and not self.owner.unannounced:
            return True
        return self.grant is not None and not self.grant.announced

    @property
    def span(self) -> Span | None:
        """When the last admitted tenant had the device; None where no start was admitted."""
        if self.began is None:
            return None
        ended = math.inf if self.start_admitted else self.ended
        return None if ended is None else (self.began, ended)

    @property
    def is_paused(self) -> bool:
        """Whether it goes on with another container, once the device is scrubbed."""
        return self.awaits != "" or self.kept_for != ""

    @property
    def until_release(self) -> bool:
        """Whether the device was granted until its release, so that any container may use it until then."""
        return self.grant is not None and self.grant.until_release

    @property
    def acquired_by(self) -> str:
        """Who has acquired the device; empty if nobody has, or if the owner has no name."""
        return self.grant.owner if self.grant is not None else self.kept_for

    @property
    def group(self) -> int:
        """The control group that the device was acquired for, by its id; 0: none was named."""
        return self.grant.group if self.grant is not None else 0

    def acquired_for(self, owner: str) -> bool:
        """Whether the device was granted to this owner, or is kept for it. An owner without a name has no device."""
        return owner != "" and self.acquired_by == owner


@dataclass(frozen=True, slots=True)
class Scrubs:
    """What the scrubs of the device have shown, the running scrub, and what the next scrub must do."""

    job: Job | None = None
    receipt: Receipt | None = None  # None once something has ended the proof
    last_receipt: str | None = None  # digest of the newest receipt ever given
    proven_at: float = 0.0  # uptime of this boot; when the last scrub that passed had finished
    setback: Setback | None = None
    stuck: Stuck | None = None  # told to end by a scrub, and still on the device
    undecided: bool = False  # since the last proof, a program of ours has failed on the device
    node_or_device: Moment | None = None  # the first failure since the last proof that the node may have caused
    due_path: ScrubPath | None = None  # the next scrub takes at least this path
    half_cleared: bool = False  # a clear began and no proof followed: what is in memory may be our own pattern
    pattern_left: bool = False  # the last proof left a pattern: what no user has overwritten may still be that
    soiled: int = 0  # how often it was no longer clean, whatever the reason, since its last tenancy or its discovery
    fast_seconds: tuple[float, ...] = ()  # seconds of its last fast scrubs that passed
    tested: float | None = None  # wall; when a scrub with a self-test last passed, or the first receipt was given

    @property
    def usual_seconds(self) -> float | None:
        """How long the device's fast path usually takes; None until a fast path was measured."""
        times = sorted(self.fast_seconds)
        return times[len(times) // 2] if times else None

    @property
    def failures(self) -> int:
        """How many scrubs have failed since the last proof."""
        return self.setback.count if self.setback is not None else 0


@dataclass(frozen=True, slots=True)
class Health:
    """What is wrong with the device, and which of its errors are known."""

    baseline: Baseline = field(default_factory=Baseline)
    ailment: Ailment | None = None  # found while in use: leads to a quarantine after the release
    quarantine: Quarantine | None = None
    returns: tuple[float, ...] = ()  # wall times of returns from quarantine, for the flap counter
    errors_noted: float | None = None  # uptime; when errors without an ailment were last recorded


@dataclass(frozen=True, slots=True)
class Record:
    """What the ledger knows about one device. Its fields are a stored format, as those of the events are."""

    device: DeviceInfo
    incarnation: Incarnation
    state: State
    since: Moment
    tenancy: Tenancy = field(default_factory=Tenancy)
    scrubs: Scrubs = field(default_factory=Scrubs)
    health: Health = field(default_factory=Health)
    fence: FenceMemory = field(default_factory=FenceMemory)


class Change(NamedTuple):
    """An event that is in the ledger, and its device before and after it."""

    entry: LedgerEntry
    before: Record | None
    after: Record
