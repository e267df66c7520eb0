"""The tenancies of devices, read from their events: who had a device when, what was proven before, and wiped after.

A tenancy begins with a grant, or with a use that no grant covers. It continues when a container of its tenant starts
again. It ends with a release, a reboot or another loss of what was known, or with the next tenancy. The first scrub
that passes after its end is its wipe, even if another tenant had the device in between. The table of states is not used
here, because a compaction may have left the first entries without the records and steps before them. A row is also not
the record's tenancy: a grant on which no container started is a row, but not a hand-over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from scrubber.core import events as ev
from scrubber.core.events import LedgerEntry
from scrubber.core.guarded import EndedTenancy
from scrubber.core.model import Grant, Opener, Owner, Receipt, place_words

KUBELET, START, ACQUIRE = "kubelet", "container start", "acquire"
NO_GRANT = "it was used without a grant"
ANOTHER = "a container of another pod used it as well"
EVENTS: tuple[type[ev.Event], ...] = (
    ev.Discovered, ev.Distrusted, ev.Granted, ev.GrantedUnproven, ev.PutInUse, ev.Released, ev.ScrubPassed,
    ev.TenancyClosed, ev.OpenAttempted,
)  # fmt: skip
"""The events that tenancies are read from."""
# Whether nobody had the device before them.
_TELL_NO_OWNER = (ev.PutInUse, ev.OpenAttempted, ev.FenceMissed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenancyRow:
    """One tenancy of a device, as lists show it. A field is empty if the events do not say it."""

    device: str
    began: float
    row: int = 0  # of the ledger, with which it began
    last_row: int = field(default=0, compare=False)  # the last one that says something here
    ended: float | None = None  # None: it goes on
    pod: str = ""  # NAMESPACE/POD; in rows of an older version NAMESPACE/POD/CONTAINER, of the last container
    uid: str = ""  # of the pod; outside any pod, the id of the container
    owner: str = ""  # who it was acquired for, as the caller wrote it: a job, or the UID of a claim; not verified
    actor: str = ""  # kubelet: Allocate; container start: no earlier grant; acquire: a person, Slurm, the DRA driver
    proven: bool = False  # whether it was proven clean at the grant
    note: str = ""  # why it was not, and use by others
    receipt: str = ""
    proof: Receipt | None = None  # this receipt; None: it is not in the entries
    wipe: Receipt | None = None  # of the first scrub after its end; None: there was none so far
    closed: ev.TenancyClosed | None = None  # what its closing receipt says; None: it has none so far

    @property
    def tenant(self) -> str:
        """The best known name of the tenant."""
        return self.pod or self.owner or self.uid

    @property
    def closed_as_listed(self) -> bool:
        """Whether its closing receipt says the same tenant, beginning and end: nobody signs the rows that say these.

        Unproven grants in a row are one tenancy there, and several here.
        """
        if self.closed is None or self.ended is None:
            return self.closed is None
        it = self.closed.ended  # of the same UID
        began, ended = self.began if it.began is None else it.began.wall, it.ended.wall
        longer = not self.proven and began <= self.began and self.ended <= ended
        period = longer or (began, ended) == (self.began, self.ended)
        return period and (it.pod, it.acquired_by) == (self.pod, self.owner)


def tenancies(entries: Iterable[LedgerEntry]) -> list[TenancyRow]:
    """The tenancies in these entries, which are in order. Leaves out those that began before the first entry."""
    devices: dict[str, _Device] = {}
    for entry in entries:
        devices.setdefault(entry.device, _Device(entry.device)).add(entry)
    found = (tenancy for device in devices.values() for tenancy in device.all())
    return sorted(found, key=lambda tenancy: (tenancy.began, tenancy.device))


def _is_of(row: TenancyRow, ended: EndedTenancy) -> bool:
    return (row.uid, row.receipt) == (ended.container or "", ended.receipt)


class _Device:
    """The tenancies of one device so far."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._complete: list[TenancyRow] = []
        self._wiped = 0  # this many of them, the first ones, have their wipe
        self._present: TenancyRow | None = None
        self._owner: Owner | None = None  # of the present tenancy, once a start was admitted or a use was seen
        self._paused: float | None = None  # when its container ended, if the device is scrubbed for the next one
        self._wipe: Receipt | None = None  # ... and the first scrub since then
        self._next: TenancyRow | None = None  # ... and what begins now, if the next container is of another tenant
        self._known = False  # whether the entries so far tell who has the device
        self._receipt: Receipt | None = None
        self._row = 0

    def all(self) -> list[TenancyRow]:
        if self._present is None:
            return self._complete
        if self._next or self._paused is None:
            return [*self._complete, replace(self._present, closed=None)]
        return [*self._complete, replace(self._present, ended=self._paused, wipe=self._wipe)]

    def add(self, entry: LedgerEntry) -> None:
        at, self._row = entry.at.wall, entry.seq
        match entry.event:
            case ev.ScrubPassed(receipt=receipt):
                self._receipt = receipt
                self._cleaned(receipt)
            case ev.TenancyClosed():
                self._closed(entry.event)
            case ev.Granted(grant):
                self._granted(grant, entry)
            case ev.GrantedUnproven(grant, why):
                self._granted(grant, entry, why)
            case ev.PutInUse(owner):
                self._put_in_use(owner, entry)
            case ev.Released(restart=True):
                self._paused, self._wipe, self._next = at, None, None
                self._present = self._present and self._changed(self._present, closed=None)
            case ev.Released() | ev.Distrusted():
                self._end(at)
            case ev.OpenAttempted(opener, held=True) if opener.was_let_through:
                self._opened_by(opener)
            case _:
                pass
        self._known = self._known or not isinstance(entry.event, _TELL_NO_OWNER)

    def _cleaned(self, receipt: Receipt) -> None:
        rest = self._complete[self._wiped :]
        self._complete[self._wiped :] = [it if it.wipe else self._changed(it, wipe=receipt) for it in rest]
        self._wiped = len(self._complete)
        if self._present is not None and self._paused is not None and self._next is None and self._wipe is None:
            self._present, self._wipe = self._changed(self._present), receipt

    def _closed(self, closed: ev.TenancyClosed) -> None:
        ended, present = closed.ended, self._present
        if present is not None and self._paused is not None and _is_of(present, ended):
            self._present = self._changed(present, closed=closed)
            return
        open_rows = [at for at, it in enumerate(self._complete) if it.closed is None and _is_of(it, ended)]
        if open_rows:  # the last one, if none ended then
            place = next((at for at in open_rows if self._complete[at].ended == ended.ended.wall), open_rows[-1])
            self._complete[place] = self._changed(self._complete[place], closed=closed)

    def _granted(self, grant: Grant, entry: LedgerEntry, unproven: str = "") -> None:
        receipt = self._receipt if self._receipt is not None and self._receipt.id == grant.receipt else None
        tenancy = TenancyRow(
            device=self._uuid, began=entry.at.wall, row=entry.seq, last_row=entry.seq, owner=grant.owner,
            proven=not unproven, note=unproven, receipt=grant.receipt or "", proof=receipt,
            actor=START if grant.at_start else KUBELET if grant.announced else ACQUIRE,
        )  # fmt: skip
        present = self._present
        if present is not None and present.proven and tenancy.proven and present.owner == tenancy.owner:
            if self._paused is not None and grant.at_start:
                self._present, self._next = self._changed(present), tenancy
                return
            if self._paused is None and present.receipt == tenancy.receipt:
                return  # several containers of one admission
        self._begin(tenancy)

    def _put_in_use(self, owner: Owner, entry: LedgerEntry) -> None:
        if self._present is None and not self._known:
            return  # it began before the first entry
        uid = owner.container or ""
        if (following := self._next) is not None and self._present is not None:
            same, self._next = uid == self._present.uid, None
            if same:
                self._paused = self._wipe = None
                self._present = replace(self._present, closed=None)
            else:
                self._begin(following)
        present, before = self._present, self._owner
        shared = present is not None and present.actor == ACQUIRE  # several pods of a claim may use it
        another = before if before is not None and before.container not in (None, uid) and not shared else None
        if present is None or (another is not None and not another.unannounced):
            present = self._begin(TenancyRow(device=self._uuid, began=entry.at.wall, row=entry.seq, note=NO_GRANT))
        elif owner.crowded or another is not None:
            present = self._noted(present, ANOTHER)
        self._owner = owner
        pod = owner.called or (present.pod if uid == present.uid else "")
        self._present = self._changed(present, pod=pod, uid=uid)

    def _opened_by(self, opener: Opener) -> None:
        """Somebody else has opened the device. The row may follow the end of the tenancy, and the next grant."""
        note = f"{opener.pod or place_words(opener.place) or 'a process'} opened it as well"
        if self._present is not None and self._present.began <= opener.last:
            self._present = self._noted(self._present, note)
            return
        for place in range(len(self._complete) - 1, -1, -1):
            if self._complete[place].began <= opener.last:
                self._complete[place] = self._noted(self._complete[place], note)
                return

    def _begin(self, tenancy: TenancyRow) -> TenancyRow:
        self._end(tenancy.began)
        self._present = tenancy
        return tenancy

    def _end(self, at: float) -> None:
        if self._present is not None:
            ended = at if self._paused is None else self._paused
            self._complete.append(self._changed(self._present, ended=ended, wipe=self._wipe))
        self._present = self._owner = self._paused = self._wipe = self._next = None

    def _noted(self, tenancy: TenancyRow, what: str) -> TenancyRow:
        if what in tenancy.note:
            return tenancy
        return self._changed(tenancy, note="; ".join(filter(None, (tenancy.note, what))))

    def _changed(self, tenancy: TenancyRow, **what: Any) -> TenancyRow:  # noqa: ANN401 - by the name of the field
        """With what the present row says."""
        return replace(tenancy, last_row=self._row, **what)
