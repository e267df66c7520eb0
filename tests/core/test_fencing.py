"""To whom the fence opens a device: a row for each moment of a device's life."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core.fencing import Container, Group, MayOpen, OpenTo, Pods, open_to
from scrubber.core.model import Owner
from scrubber.core.record import Record
from tests.core import lives
from tests.core.lives import NOW, A, B, live, rows

OF_A_JOB = live(
    lives.CLEAN,
    ev.Granted(replace(lives.grant(lives.CLEAN, announced=False), until_release=True, owner="job 7", group=4711)),
)
OF_ANOTHER = ev.GrantedUnproven(lives.grant(lives.CLEAN, announced=False, proven=False), "it was in use")
GIVEN_BACK = ev.Released("it was given back")
NAMED = live(lives.OF_CLAIM, ev.LetIn((A, B)))
OF_BOTH = Pods(frozenset({A, B}))
KEPT = live(NAMED, ev.Released("its proof ended", restart=True), ev.ScrubStarted(lives.job()))
KEPT_CLEAN = live(KEPT, lives.passed(KEPT))
OF_THE_SAME = replace(lives.grant(KEPT_CLEAN, announced=False), until_release=True, owner="claim 7")

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
        ("handed out to a claim whose pods are not known", lives.OF_CLAIM, OpenTo.ALL),
        ("handed out to a claim", NAMED, OF_BOTH),
        ("handed out to a claim that has lost a pod", live(NAMED, ev.LetIn((B,))), Pods(frozenset({B}))),
        ("handed out to a claim that has lost all pods", live(NAMED, ev.LetIn(())), Pods(frozenset())),
        ("in use by a pod of the claim", live(NAMED, ev.PutInUse(Owner(A, NOW, seen=True))), OF_BOTH),
        ("in use by nobody knows whom, as of a claim", live(NAMED, ev.PutInUse(Owner(None, NOW))), OF_BOTH),
        ("given back by the claim", live(NAMED, GIVEN_BACK), OpenTo.SERVICE),
        ("kept for the claim while it is scrubbed", KEPT, OpenTo.SERVICE),
        ("kept for the claim, and clean", KEPT_CLEAN, OpenTo.SERVICE),
        ("handed out to the claim again", live(KEPT_CLEAN, ev.Granted(OF_THE_SAME)), OF_BOTH),
        ("handed out to another, as the policy observe does", live(NAMED, OF_ANOTHER), OpenTo.ALL),
        ("handed out to the next claim", live(KEPT_CLEAN, GIVEN_BACK, ev.Granted(OF_THE_SAME)), OpenTo.ALL),
    ),
)
def test_a_device_is_open_to(record: Record, whom: MayOpen) -> None:
    assert open_to(record) == whom
