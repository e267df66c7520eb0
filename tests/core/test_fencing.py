"""To whom the fence opens a device: a row for each moment of a device's life."""

from __future__ import annotations

import pytest

from scrubber.core.fencing import OpenTo, Pod, open_to
from scrubber.core.record import Record
from tests.core import lives
from tests.core.lives import rows


@pytest.mark.parametrize(
    ("record", "whom"),
    rows(
        ("first seen", lives.UNKNOWN, OpenTo.SERVICE),
        ("during a scrub", lives.SCRUBBING, OpenTo.SERVICE),
        ("proven clean", lives.CLEAN, OpenTo.SERVICE),
        ("quarantined", lives.QUARANTINED, OpenTo.SERVICE),
        ("released", lives.DIRTY, OpenTo.SERVICE),
        ("handed out, before the start is admitted", lives.GRANTED, OpenTo.SERVICE),
        ("handed out to who announces no start", lives.UNANNOUNCED, OpenTo.ALL),
        ("handed out until its release", lives.KEPT, OpenTo.ALL),
        ("in use by its pod", lives.IN_USE, Pod(lives.A)),
        ("sick in use", lives.SICK_IN_USE, Pod(lives.A)),
        ("in use by another pod as well", lives.CROWDED, OpenTo.ALL),
        ("in use by a container in no pod", lives.VISITED_BY_NO_POD, OpenTo.ALL),
        ("in use by a process of the host", lives.USED_BY_HOST, OpenTo.ALL),
        ("in use until its release", lives.VISITED_KEPT, OpenTo.ALL),
    ),
)
def test_a_device_is_open_to(record: Record, whom: OpenTo | Pod) -> None:
    assert open_to(record) == whom
