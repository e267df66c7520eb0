"""To whom the fence opens a device: a row for each moment of a device's life."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core.fencing import Container, Group, OpenTo, open_to
from scrubber.core.model import Owner
from scrubber.core.record import Record
from tests.core import lives
from tests.core.lives import NOW, B, live, rows

OF_A_JOB = live(
    lives.CLEAN,
    ev.Granted(replace(lives.grant(lives.CLEAN, announced=False), until_release=True, owner="job 7", group=4711)),
)

ANNOUNCED_KEPT = live(lives.CLEAN, ev.Granted(replace(lives.grant(lives.CLEAN), until_release=True)))


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
        ("handed out until its release, with starts that are announced", ANNOUNCED_KEPT, OpenTo.ALL),
        ("in use by its pod", lives.IN_USE, Container(lives.A)),
        ("sick in use", lives.SICK_IN_USE, Container(lives.A)),
        ("in use by another pod as well", lives.CROWDED, Container(lives.A)),
        ("in use by a container in no pod", lives.VISITED_BY_NO_POD, Container("container:0123456789ab")),
        ("in use by a process of the host", lives.USED_BY_HOST, OpenTo.ALL),
        ("in use until its release", lives.VISITED_KEPT, OpenTo.ALL),
        ("handed out to a job with a control group", OF_A_JOB, Group(4711)),
        ("in use by that job", live(OF_A_JOB, ev.PutInUse(Owner(None, NOW, unannounced=True))), Group(4711)),
        ("in use by a container of that job", live(OF_A_JOB, ev.PutInUse(Owner(B, NOW, seen=True))), Group(4711)),
        ("given back by that job", live(OF_A_JOB, ev.Released("it was given back")), OpenTo.SERVICE),
    ),
)
def test_a_device_is_open_to(record: Record, whom: OpenTo | Container | Group) -> None:
    assert open_to(record) == whom
