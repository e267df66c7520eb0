"""Whose tenancy a device is in, folded from the ledger's rows by other rules than the service's own."""

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
    last: str = "nothing"
    wrong: list[str] = field(default_factory=list)  # what no history may say

    def take(self, kind: str, event: ev.Event) -> None:
        """One more row."""
        match event:
            case ev.ScrubPassed():
                self.proven, self.granted, self.owner = True, False, None
            case ev.Granted():
                if not self.proven or self.owner is not None:
                    self.wrong.append(f"it was granted after {self.last}")
                self.granted = True
            case ev.GrantedUnproven():
                self.wrong.append("it was granted unproven")
            case ev.PutInUse(owner):
                if self.owner not in (None, owner.container):
                    self.wrong.append(f"it went from {self.owner} to {owner.container} without a scrub")
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


class Tenancies:
    """Reads what is new, whether the service runs or not."""

    def __init__(self) -> None:
        self._seen = 0
        self._of: dict[str, Tenancy] = {}

    def objections(self, ledger: Path, device: str, pod: str) -> list[str]:
        """Why this pod may not be on this device, by the ledger."""
        self._read(ledger)
        tenancy = self._of.setdefault(device, Tenancy())
        found, tenancy.wrong = tenancy.wrong, []
        if not (tenancy.proven and tenancy.granted):
            found.append(f"its last proof does not stand: the ledger ends with {tenancy.last}")
        if tenancy.owner != pod:
            found.append(f"by the ledger it is {tenancy.owner}'s, the last row is {tenancy.last}")
        return found

    def _read(self, ledger: Path) -> None:
        with closing(database.connect(ledger, "mode=ro")) as connection:
            for row in database.rows(connection, self._seen + 1):
                self._seen = row.seq
                if row.kind in codec.CLASSES:
                    tenancy = self._of.setdefault(row.device, Tenancy())
                    tenancy.take(row.kind, codec.decode(row.kind, row.body))
