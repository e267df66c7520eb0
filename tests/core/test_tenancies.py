"""Who had a device when, read from its events alone."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given

from scrubber.core import events as ev
from scrubber.core import tenancies
from scrubber.core.events import LedgerEntry
from scrubber.core.guarded import UNKNOWN as NOT_KNOWN
from scrubber.core.guarded import EndedTenancy
from scrubber.core.model import Incarnation, Owner, State
from scrubber.core.tenancies import ACQUIRE, ANOTHER, KUBELET, NO_GRANT, START, TenancyRow
from tests.core import lives
from tests.core.lives import DEVICE, NOW, A, B, later

AT = NOW.wall
SIGNED = replace(lives.proof(lives.CLEAN), envelope=lives.ENVELOPE)
GRANT = lives.grant(lives.CLEAN)
FOUND = ev.Discovered(DEVICE, lives.HERE)
PASSED, GRANTED = ev.ScrubPassed("job-1", SIGNED), ev.Granted(GRANT)
BY_KUBELET = TenancyRow(
    device="GPU-1", began=AT + 2, row=2, actor=KUBELET, proven=True, receipt=SIGNED.id, proof=SIGNED
)
OF_A, NAMED, GONE = Owner(A, NOW), Owner(A, NOW, name="team/a-0/main"), ev.Released("its pod is gone")


def read(*events: ev.Event) -> list[TenancyRow]:
    """The tenancies after these events, one a second. What is said of each comes from its rows up to the last one."""
    entries = [LedgerEntry(n, DEVICE.uuid, later(n), "", event) for n, event in enumerate(events)]
    found = tenancies.tenancies(entries)
    assert all(it in tenancies.tenancies(entries[: it.last_row + 1]) for it in found)
    return found


def test_a_tenancy_has_its_times_tenant_receipt_and_key():
    story = (FOUND, PASSED, GRANTED, ev.PutInUse(OF_A), ev.PutInUse(NAMED), GONE)
    of_a = replace(BY_KUBELET, pod="team/a-0/main", uid=A)
    assert read(*story) == [replace(of_a, ended=AT + 5)]
    assert read(*story[:-1]) == [of_a]
    assert [read(*story[:n])[0].tenant for n in (3, 4, 5)] == ["", A, "team/a-0/main"]


def test_a_tenancy_keeps_the_name_of_its_pod():
    story = (FOUND, PASSED, GRANTED, ev.PutInUse(OF_A), ev.PutInUse(replace(OF_A, pod="team/a-0")), GONE)
    assert [(row.pod, row.tenant, row.uid) for row in read(*story)] == [("team/a-0", "team/a-0", A)]


def test_an_acquired_device_shows_its_owner_and_all_its_pods():
    job = ev.Granted(replace(GRANT, announced=False, until_release=True, owner="job 4711"))
    used = replace(BY_KUBELET, actor=ACQUIRE, owner="job 4711", uid=B)
    assert read(FOUND, PASSED, job, ev.PutInUse(NAMED), ev.PutInUse(Owner(B, NOW))) == [used]
    assert used.tenant == "job 4711"


STARTED = ev.Granted(replace(GRANT, at_start=True))
RESTARTED = ev.Released("per-container", restart=True)


@pytest.mark.parametrize(
    ("events", "ends"),
    lives.rows(
        ("two containers of one admission", (GRANTED,), [None]),
        ("its next container waits for the scrub", (ev.PutInUse(OF_A), RESTARTED), [4]),
        ("its next container", (ev.PutInUse(OF_A), RESTARTED, PASSED, STARTED, ev.PutInUse(OF_A)), [None]),
        ("its next container was granted", (ev.PutInUse(OF_A), RESTARTED, PASSED, STARTED), [None]),
        ("its next container ended at once", (ev.PutInUse(OF_A), RESTARTED, PASSED, STARTED, RESTARTED), [7]),
        ("its next container never came", (ev.PutInUse(OF_A), RESTARTED, PASSED, STARTED, GONE), [4]),
        ("another pod after the last container", (ev.PutInUse(OF_A), RESTARTED, PASSED, GRANTED), [4, None]),
        ("a grant that was not used", (GONE, PASSED, STARTED), [3, None]),
        ("a reboot", (ev.PutInUse(OF_A), ev.Distrusted("reboot", Incarnation("b2", "d")), PASSED, STARTED), [4, None]),
    ),
)
def test_a_tenancy_ends_with_its_last_container(events, ends):
    after = read(FOUND, PASSED, GRANTED, *events)
    assert [it.ended and it.ended - AT for it in after] == ends
    assert [it.actor for it in after] == [KUBELET, START][: len(ends)] or events[-1] == GRANTED


NEXT, SECOND = (ev.ScrubPassed("job-2", replace(SIGNED, id=f"wipe-{n}")) for n in (1, 2))
IN_USE, BY_B = ev.PutInUse(OF_A), ev.PutInUse(Owner(B, NOW))


@pytest.mark.parametrize(
    ("events", "wipes"),
    lives.rows(
        ("a tenancy that goes on", (IN_USE,), [None]),
        ("no scrub so far", (IN_USE, GONE), [None]),
        ("the first scrub after its end", (IN_USE, GONE, NEXT, SECOND), [NEXT]),
        ("a container waits, and its GPU is wiped", (IN_USE, RESTARTED, NEXT), [NEXT]),
        ("a scrub between two of its containers", (IN_USE, RESTARTED, NEXT, STARTED, IN_USE, GONE), [None]),
        ("the same, and one after its end", (IN_USE, RESTARTED, NEXT, STARTED, IN_USE, GONE, SECOND), [SECOND]),
        ("another pod came instead", (IN_USE, RESTARTED, NEXT, STARTED, BY_B, GONE, SECOND), [NEXT, SECOND]),
        ("a use in between without a proof", (IN_USE, GONE, BY_B, GONE, NEXT), [NEXT, NEXT]),
        ("a reboot", (IN_USE, ev.Distrusted("reboot", Incarnation("b2", "d")), NEXT), [NEXT]),
    ),
)
def test_a_tenancy_shows_the_wipe_after_its_end(events, wipes):
    assert [it.wipe for it in read(FOUND, PASSED, GRANTED, *events)] == [it and it.receipt for it in wipes]


def test_a_container_that_starts_again_keeps_its_name():
    after = read(FOUND, PASSED, GRANTED, ev.PutInUse(NAMED), RESTARTED, PASSED, STARTED, ev.PutInUse(OF_A))
    assert [it.pod for it in after] == ["team/a-0/main"]


def test_another_pod_may_start_instead_of_the_next_container():
    of_a, of_b = read(FOUND, PASSED, GRANTED, ev.PutInUse(OF_A), RESTARTED, PASSED, STARTED, ev.PutInUse(Owner(B, NOW)))
    assert (of_a.uid, of_a.ended, of_a.note) == (A, AT + 4, "")
    assert (of_b.uid, of_b.began, of_b.actor, of_b.proven, of_b.note) == (B, AT + 6, START, True, "")


OPENED = ev.OpenAttempted(replace(lives.OPENER, last=AT + 3), 1, held=True)
WAS_REFUSED = replace(OPENED, opener=replace(lives.OPENER, refused=3))
UNPROVEN = ev.GrantedUnproven(replace(GRANT, receipt=None), "not scrubbed")


@pytest.mark.parametrize(
    ("events", "notes"),
    lives.rows(
        ("observe hands out a used device", (GRANTED, ev.PutInUse(OF_A), UNPROVEN), ["", "not scrubbed"]),
        ("an unproven grant after a proven one", (GRANTED, UNPROVEN), ["", "not scrubbed"]),
        ("observe restarts a container on a dirty device",
         (GRANTED, ev.PutInUse(OF_A), RESTARTED, replace(UNPROVEN, grant=replace(UNPROVEN.grant, at_start=True))),
         ["", "not scrubbed"]),
        ("a use without a grant", (ev.PutInUse(Owner(B, NOW, unannounced=True)),), [NO_GRANT]),
        ("another pod starts under observe", (GRANTED, ev.PutInUse(OF_A), ev.PutInUse(Owner(B, NOW))), ["", NO_GRANT]),
        ("another pod beside it", (GRANTED, ev.PutInUse(replace(OF_A, crowded=True))), [ANOTHER]),
        ("another pod before it", (GRANTED, ev.PutInUse(Owner(B, NOW, unannounced=True)), ev.PutInUse(OF_A)),
         [ANOTHER]),
        ("a stranger", (GRANTED, OPENED, replace(OPENED, ended=True)), ["team/b opened it as well"]),
        ("a stranger at its end", (GRANTED, ev.PutInUse(OF_A), GONE, OPENED), ["team/b opened it as well"]),
        ("a stranger whose row follows the next grant", (GRANTED, ev.PutInUse(OF_A), GONE, PASSED, GRANTED, OPENED),
         ["team/b opened it as well", ""]),
        ("strangers who were refused, or came afterwards", (GRANTED, WAS_REFUSED, GONE, replace(OPENED, held=False)),
         [""]),
    ),
)  # fmt: skip
def test_what_was_not_proven_is_noted(events, notes):
    after = read(FOUND, PASSED, *events)
    assert [it.note for it in after] == notes
    assert [it.proven for it in after] == [note not in ("not scrubbed", NO_GRANT) for note in notes]


FOR_JOB = ev.Granted(replace(GRANT, owner="job 7"))
ENDED = EndedTenancy(1, "boot-1", later(4), later(2), A, "team/a-0", "job 7", SIGNED.id)
OBSERVED = {"acquired_by": "", "receipt": ""}


@pytest.mark.parametrize(
    ("grant", "differs", "as_listed"),
    lives.rows(
        ("the same", FOR_JOB, {}, True),
        ("another pod", FOR_JOB, {"pod": "team/b"}, False),
        ("another owner", FOR_JOB, {"acquired_by": "job 8"}, False),
        ("another end", FOR_JOB, {"ended": later(5)}, False),
        ("an earlier beginning", FOR_JOB, {"began": later(1)}, False),
        ("a beginning that is not known", FOR_JOB, {"began": None}, True),
        ("an earlier grant that proved nothing either", UNPROVEN, {"began": later(1), **OBSERVED}, True),
        ("a later grant", UNPROVEN, {"began": later(3), **OBSERVED}, False),
        ("a later grant that proved nothing either", UNPROVEN, {"ended": later(5), **OBSERVED}, True),
        ("an earlier end", UNPROVEN, {"ended": later(3), **OBSERVED}, False),
    ),
)
def test_a_closing_receipt_says_what_is_listed(grant, differs, as_listed):
    closed = ev.TenancyClosed(replace(ENDED, **differs), NEXT.receipt.id, NOT_KNOWN)
    [row] = read(FOUND, PASSED, grant, ev.PutInUse(replace(OF_A, pod="team/a-0")), GONE, NEXT, closed)
    assert (row.closed, row.closed_as_listed) == (closed, as_listed)


PAUSE, WHOLE = (
    ev.TenancyClosed(replace(ENDED, pod="", acquired_by="", ended=later(end)), wipe.receipt.id, NOT_KNOWN)
    for end, wipe in ((4, NEXT), (9, SECOND))
)
AT_PAUSE = (GRANTED, IN_USE, RESTARTED, NEXT, PAUSE)
IN_A_ROW = replace(PAUSE, ended=replace(PAUSE.ended, receipt=""))


@pytest.mark.parametrize(
    ("events", "closings"),
    lives.rows(
        ("its next container waits", AT_PAUSE, [PAUSE]),
        ("its next container", (*AT_PAUSE, STARTED, IN_USE), [None]),
        ("its last container", (*AT_PAUSE, STARTED, IN_USE, GONE, SECOND, WHOLE), [WHOLE]),
        ("its next container never came", (*AT_PAUSE, STARTED, GONE), [PAUSE]),
        ("another pod came instead", (*AT_PAUSE, STARTED, BY_B), [PAUSE, None]),
        ("unproven grants in a row", (UNPROVEN, IN_USE, UNPROVEN, IN_USE, GONE, NEXT, IN_A_ROW), [IN_A_ROW, None]),
    ),
)
def test_a_tenancy_has_the_closing_receipt_of_its_end(events, closings):
    after = read(FOUND, PASSED, *events)
    assert [it.closed for it in after] == closings
    assert all(it.closed_as_listed for it in after)


def test_a_use_that_began_before_the_entries_is_left_out():
    assert read(ev.PutInUse(OF_A), GONE, PASSED) == []


@given(lives.walks())
def test_every_moment_of_use_is_in_exactly_one_tenancy(walk):
    entries = [LedgerEntry(0, DEVICE.uuid, NOW, "", FOUND)]
    entries += [LedgerEntry(n, DEVICE.uuid, later(n), "", event) for n, (_, event, _) in enumerate(walk, 1)]
    for number, record in enumerate([lives.UNKNOWN, *(after for _, _, after in walk)], 1):
        present = [it for it in tenancies.tenancies(entries[:number]) if it.ended is None]
        assert len(present) == (record.state in (State.GRANTED, State.IN_USE))
    complete = tenancies.tenancies(entries)
    assert all(before.ended and before.ended <= after.began for before, after in pairwise(complete))
    unproven = {entry.at.wall for entry in entries if isinstance(entry.event, ev.GrantedUnproven)}
    assert unproven <= {it.began for it in complete if not it.proven}
    assert {it.receipt for it in complete if it.proven} <= {
        entry.event.receipt.id for entry in entries if isinstance(entry.event, ev.ScrubPassed)
    }
