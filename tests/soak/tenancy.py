"""Who may use a device, read from the rows of the ledger by other rules than the service's own."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from scrubber.core import events as ev
from scrubber.ledger import codec, database


@dataclass
class Tenancy:
    """What the rows of one device come to."""

    proven: bool = False
    granted: bool = False
    owner: str | None = None
    changed_hands: bool = False  # from one owner to another, without a scrub
    last: str = "nothing"
    wrong: list[str] = field(default_factory=list)  # what no row of a ledger may say

    def take(self, kind: str, event: ev.Event) -> None:
        """One more row."""
        match event:
            case ev.ScrubPassed():
                self.proven, self.granted, self.owner, self.changed_hands = True, False, None, False
            case ev.Granted():
                if not self.proven or self.owner is not None:
                    self.wrong.append(f"it was granted after {self.last}")
                self.granted = True
            case ev.GrantedUnproven():
                self.wrong.append("it was granted unproven")
            case ev.PutInUse(owner):
                self.changed_hands = self.changed_hands or self.owner not in (None, owner.container)
                self.owner = owner.container
            case (
                ev.Discovered()
                | ev.Distrusted()
                | ev.Released()
                | ev.Soiled()
                | ev.ScrubStarted()
                | ev.ProbationStarted()
                | ev.Quarantined()
            ):
                self.proven, self.granted, self.owner = False, False, None
            case _:  # says nothing about whose it is
                return
        self.last = kind

    def objections(self, device: str, pod: str) -> list[str]:
        """Why this pod may not start on the device."""
        found = []
        if not (self.proven and self.granted):
            found.append(f"the last proof of {device} does not stand: the ledger ends with {self.last}")
        if self.owner != pod or self.changed_hands:
            found.append(f"by the ledger {device} belongs to {self.owner}, the last row is {self.last}")
        return found


class Tenancies:
    """Reads the new rows of a ledger, whether the service runs or not."""

    def __init__(self) -> None:
        self._seen = 0
        self._of: dict[str, Tenancy] = {}

    def objections(self, ledger: Path, device: str, pod: str) -> list[str]:
        """Why this pod may not start on this device, by the ledger."""
        self._read(ledger)
        return self._of.setdefault(device, Tenancy()).objections(device, pod)

    def wrong(self, ledger: Path) -> list[str]:
        """What no ledger may say of any device, and this one says since the last call."""
        self._read(ledger)
        found = [f"{device}: {it}" for device, tenancy in self._of.items() for it in tenancy.wrong]
        for tenancy in self._of.values():
            tenancy.wrong.clear()
        return found

    def _read(self, ledger: Path) -> None:
        with closing(database.connect(ledger, "mode=ro")) as connection:
            for row in database.rows(connection, self._seen + 1):
                self._seen = row.seq
                if row.kind in codec.CLASSES:
                    tenancy = self._of.setdefault(row.device, Tenancy())
                    tenancy.take(row.kind, codec.decode(row.kind, row.body))
