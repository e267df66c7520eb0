"""Which devices were taken away on purpose."""

from __future__ import annotations

from dataclasses import replace

from scrubber.core import absence
from scrubber.core.model import Ailment, AilmentKind
from scrubber.core.record import Record
from tests.core import lives


def test_a_gpu_waiting_for_a_person_is_not_removed():
    def out(kind: AilmentKind, due: float | None = None, parent: str | None = None) -> Record:
        info = replace(lives.DEVICE, parent=parent)
        return lives.but(lives.QUARANTINED, device=info, quarantine=lives.quarantine(Ailment(kind, ""), due))

    assert absence.taken_away(out(AilmentKind.REPLACED))
    assert absence.taken_away(out(AilmentKind.RELAID, due=1.0))
    assert not absence.taken_away(out(AilmentKind.RELAID))
    assert absence.taken_away(out(AilmentKind.RELAID, parent="GPU-p"))
    assert not absence.taken_away(out(AilmentKind.LOST, due=1.0))
    assert not absence.taken_away(lives.CLEAN)
