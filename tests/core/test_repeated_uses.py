"""Who comes again and again, read from the events of a device."""

from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Blame, Owner
from scrubber.core.repeated_uses import LATELY, RepeatedUse, UnauthorisedUse, of, unauthorised
from tests.core import lives
from tests.core.lives import FOREIGN, NOW, OF_A, OF_B, later, rows

AGAIN = replace(OF_A, pid=99)  # another process of its pod
OTHER = replace(FOREIGN, pid=98, command="nvtop")


def soiled(*holders, unnamed=False):
    return ev.Soiled("used", holders, unnamed=unnamed)


def failed(*holders, unnamed=False):
    return ev.ScrubFailed("job-1", "used", Blame.TENANT, holders, unnamed)


HANDED_OUT = ev.Granted(lives.grant(lives.CLEAN))
COME = rows(
    ("once", [soiled(FOREIGN)], ()),
    ("twice", [soiled(FOREIGN), failed(FOREIGN)], (RepeatedUse(FOREIGN, 2),)),
    ("by processes of one pod", [failed(OF_A), soiled(AGAIN)], (RepeatedUse(AGAIN, 2),)),
    ("by several of a pod at once", [failed(OF_A, AGAIN)], ()),
    ("by processes of two names", [failed(FOREIGN), failed(OTHER)], ()),
    (
        "the most frequent first",
        [soiled(OF_B), *[failed(OF_A, OF_B)] * 2],
        (RepeatedUse(OF_B, 3), RepeatedUse(OF_A, 2)),
    ),
    ("by nobody that can be named", [soiled(unnamed=True), failed(unnamed=True)], (RepeatedUse(None, 2),)),
    ("failed for another reason", [failed(), failed(), failed()], ()),
    ("before it was handed out", [soiled(FOREIGN), soiled(FOREIGN), HANDED_OUT, soiled(FOREIGN)], ()),
)  # fmt: skip


def recorded(events):
    return [LedgerEntry(number, lives.DEVICE.uuid, NOW, "op", event) for number, event in enumerate(events)]


@pytest.mark.parametrize(("events", "found"), COME)
def test_who_comes_again_and_again_is_found(events, found):
    assert of(recorded(events), later(LATELY).uptime) == found
    assert of(recorded(events), later(LATELY + 1).uptime) == ()


def opened(**fields):
    return ev.OpenAttempted(replace(lives.OPENER, **fields), 7, held=True)


@pytest.mark.parametrize(
    ("events", "places"),
    rows(
        ("nobody", [failed(OF_A), ev.FenceMissed("gone")], {}),
        ("a pod, and a process of the node", [soiled(OF_A, FOREIGN)], {lives.A: "", "no container": ""}),
        ("a process that had ended", [soiled(unnamed=True)], {"": ""}),
        ("one that the fence has named", [soiled(unnamed=True), opened()], {lives.B: "team/b"}),
        ("one that was refused, and an exempt one", [opened(refused=3), opened(exempt=True)], {}),
        ("one that it is not known of", [soiled()], {}),
    ),
)  # fmt: skip
def test_unauthorised_users_are_found_by_their_places(events, places):
    found = unauthorised(recorded(events), later(LATELY).uptime)
    assert (dict(found.places) if found is not None else {}) == places
    assert unauthorised(recorded(events), later(LATELY + 1.0).uptime) is None


def proven(seconds):
    return ev.ScrubPassed("job-1", replace(lives.proof(lives.CLEAN), finished=later(seconds)))


def attempt(seconds, *, held):
    return ev.OpenAttempted(replace(lives.OPENER, last=later(seconds).wall), 7, held)


FOREIGN_USE = {"no container": ""}
ATTEMPTED = {lives.B: "team/b"}


@pytest.mark.parametrize(
    ("events", "use"),
    rows(
        ("before a proof", [soiled(FOREIGN), proven(9)], (FOREIGN_USE, NOW.wall, True, (), False, True)),
        ("after a proof", [proven(0), soiled(FOREIGN)], (FOREIGN_USE, NOW.wall, False, (), False, True)),
        ("before and after", [soiled(FOREIGN), proven(3), attempt(5, held=False)], (ATTEMPTED, NOW.wall + 5, False)),
        ("before it, with a later row", [proven(9), attempt(5, held=False)], (ATTEMPTED, NOW.wall + 5, True)),
        ("in the tenancy after it", [proven(9), HANDED_OUT, attempt(5, held=True)],
         (ATTEMPTED, NOW.wall + 5, False, (), True)),
        ("noticed later", [proven(-9), soiled(unnamed=True), attempt(-5, held=False)],
         (ATTEMPTED, NOW.wall - 5, False)),
        ("noticed later, and before a proof", [proven(-9), attempt(-5, held=False), soiled(unnamed=True), proven(9)],
         (ATTEMPTED, NOW.wall - 5, True)),
        ("noticed after the next proof", [attempt(-5, held=False), proven(-3), soiled(unnamed=True), proven(9)],
         (ATTEMPTED, NOW.wall, True, (), False, True)),
        ("noticed, and others in a tenancy", [proven(-9), attempt(-5, held=True), soiled(unnamed=True)],
         (ATTEMPTED, NOW.wall, False, (), True, True)),
        ("the last of several", [attempt(7, held=True), attempt(5, held=False)],
         (ATTEMPTED, NOW.wall + 7, False, (), True)),
    ),
)  # fmt: skip
def test_an_unauthorised_use_is_wiped_by_a_later_proof(events, use):
    assert unauthorised(recorded(events), later(LATELY).uptime) == UnauthorisedUse(*use)


def in_use(container, pod="", seconds=0):
    return later(seconds), ev.PutInUse(Owner(container, later(seconds), pod=pod))


JOB = later(0), ev.Granted(replace(lives.grant(lives.CLEAN), owner="job 7"))
RELEASED, AGAIN_GRANTED = (later(6), ev.Released("its owner is gone")), (later(6), HANDED_OUT)
WHILE_HELD = later(7), attempt(5, held=True)
WHILE_LATER = later(7), attempt(7, held=True)


@pytest.mark.parametrize(
    ("events", "tenants"),
    rows(
        ("a pod by its name", [in_use("uid-1"), in_use("uid-1", "team/a", 1), WHILE_HELD], ("team/a",)),
        ("a pod by its UID", [in_use("uid-1"), WHILE_HELD], ("uid-1",)),
        ("a job", [JOB, in_use("container:01"), WHILE_HELD], ("job 7",)),
        ("in a late row", [JOB, in_use("uid-1"), RELEASED, AGAIN_GRANTED, WHILE_HELD], ("job 7",)),
        ("who came after a release", [JOB, RELEASED, in_use("uid-2", seconds=6), WHILE_LATER], ("uid-2",)),
        ("nobody, after a release", [JOB, RELEASED, (later(7), attempt(7, held=False))], ()),
        ("nobody that these rows tell", [WHILE_HELD], ()),
    ),
)
def test_a_use_names_the_tenant_of_its_time(events, tenants):
    entries = [LedgerEntry(number, lives.DEVICE.uuid, at, "op", event) for number, (at, event) in enumerate(events)]
    found = unauthorised(entries, later(LATELY).uptime)
    assert found is not None
    assert found.tenants == tenants
