"""Every event tells a plain sentence, and a whole life reads like a story."""

import typing
from dataclasses import replace

import pytest

from policies.values import FenceMode
from scrub_api.measurements import Uncovered
from scrubber.core import events as ev
from scrubber.core.guarded import UNKNOWN as UNREAD
from scrubber.core.guarded import EndedTenancy, Guarded
from scrubber.core.measured import Mismatch
from scrubber.core.model import (
    Ailment,
    AilmentKind,
    InTheWay,
    Moment,
    Outcome,
    Owner,
    Quarantine,
    Receipt,
    ScrubPath,
    Step,
    Trigger,
)
from scrubber.words import event_text
from tests.core import lives
from tests.core.lives import LIVES, NOW, events_about, result

MET = InTheWay((lives.LEFTOVER,), unnamed=False)
XID = Ailment(AilmentKind.XID, "xid 79 was reported", xid=79)


HELD = Guarded(
    NOW, FenceMode.HOLD, "", FenceMode.WATCH, "", "", let_through=1, ignored=2, refused=3, gaps=1, open_to_all=True
)
WATCHED = Guarded(NOW, FenceMode.WATCH, "", FenceMode.WATCH, "", "", refused=4)
OF_DEVICES = [kind for kind in typing.get_args(ev.Event) if kind not in ev.OF_NODE]


@pytest.mark.parametrize("kind", OF_DEVICES, ids=lambda kind: kind.__name__)
def test_every_event_tells_one_plain_line(kind):
    for record in LIVES.values():
        reported = event_text.tell(events_about(record)[kind])
        assert reported == " ".join(reported.split())
        assert reported[0].islower()
        assert not {"None", "Step", "ScrubPath"} & set(reported.replace(".", " ").split())


RECEIPT = Receipt(
    id="r-1", device="GPU-1", job="job-1", path=ScrubPath.FAST, incarnation=lives.HERE, policy="defaults",
    policy_digest="d", finished=NOW, steps=(), covered_bytes=995, allocatable_bytes=1000, residue_bytes=64,
    processes_found=2, processes_terminated=1, baseline=lives.CLEAN.health.baseline, previous=None, digest="0000",
)  # fmt: skip
PROVEN = replace(
    RECEIPT, steps=((Step.RESET, 1.0),), uncovered=(Uncovered("own context", 3), Uncovered("unexplained", 2)),
    patterns=("random", "zero"),
    units=132, units_reached=132, shared_unreached_bytes=132 * 1024, units_left=("caches", "tensor memory"),
    tests=("address", "arithmetic"), last_owner="4711",
)  # fmt: skip
AT_NIGHT = Moment(1795745403.0, 0.0)
GRANT = replace(lives.grant(lives.CLEAN), receipt="r-1")
REST = (Uncovered("own context", 300 * 2**20), Uncovered("fragments", 7))
FAULT = Mismatch(offset=4096, expected=0, got=255, count=3)

ONCE = replace(lives.OPENER, times=1, first=lives.OPENER.last)
LIFE = [
    (ev.Discovered(lives.DEVICE, lives.HERE),
     "found NVIDIA H100 80GB HBM3 at index 0; nothing is known about its memory"),
    (ev.ScrubStarted(lives.job(ScrubPath.SLOW)), "scrub job-1 on the slow path (release) started"),
    (ev.ScrubStarted(replace(lives.job(ScrubPath.SLOW), trigger=Trigger.FIRST_LOOK)),
     "scrub job-1 on the slow path (nothing was known of its memory) started"),
    (ev.StepsRecorded("job-1", (result(Step.EVICT),), Step.RESET),
     "ending processes (evict) passed in 0.250 s; reset begins"),
    (ev.StepsRecorded("job-1", (result(Step.RESET),)), "reset passed in 0.250 s"),
    (ev.ScrubPassed("job-1", RECEIPT),
     ("proven clean (receipt r-1): 995 of 1000 bytes (99.50%) overwritten and read back, "
      "64 bytes of residue found, 1 of 2 processes ended")),
    (ev.ScrubPassed("job-1", PROVEN),
     ("proven clean (receipt r-1): 995 of 1000 bytes (99.50%) overwritten (random, zero) and read back, "
      "64 bytes of residue found, 1 of 2 processes ended; the last owner was 4711; the device was reset; "
      "not covered: 3B own context, 2B unexplained; shared memory and registers overwritten on 132 of 132 units; "
      "132KiB of shared memory out of reach; not overwritten on the chip: caches, tensor memory; "
     "tested: address, arithmetic")),
    (ev.ScrubPassed("job-1", replace(RECEIPT, envelope=lives.ENVELOPE)),
     ("proven clean (receipt r-1): 995 of 1000 bytes (99.50%) overwritten and read back, "
      "64 bytes of residue found, 1 of 2 processes ended; signed by 0123456789abcdef")),
    (ev.ScrubPassed("job-1", replace(RECEIPT, residue_bytes=0, searched_bytes=0, processes_found=0)),
     ("proven clean (receipt r-1): 995 of 1000 bytes (99.50%) overwritten and read back, "
      "what the last owner left is not known, because the pattern of an earlier clear may have been in memory, "
      "no process was left")),
    (ev.ScrubPassed("job-1", replace(RECEIPT, patterns=("random",))),
     ("proven clean (receipt r-1): 995 of 1000 bytes (99.50%) overwritten (random) and read back, "
      "64 bytes of residue found, 1 of 2 processes ended; the pattern stays in memory unless the driver clears it: "
      "the next user may find it instead of zeros")),
    (ev.Granted(GRANT), "handed out (grant grant-1, receipt r-1)"),
    (ev.Granted(replace(GRANT, announced=False, until_release=True)),
     "handed out (grant grant-1, receipt r-1), until it is released"),
    (ev.Granted(replace(GRANT, until_release=True, owner="4711")),
     "handed out to 4711 (grant grant-1, receipt r-1), until it is released"),
    (ev.GrantedUnproven(replace(GRANT, owner="4711"), "not scrubbed"),
     "handed out to 4711 WITHOUT PROOF (grant grant-1) under policy observe: not scrubbed"),
    (ev.LetIn(("pod-a", "pod-b")), "its claim is reserved for 2 pods: pod-a, pod-b"),
    (ev.LetIn(()), "its claim is reserved for 0 pods"),
    (ev.Deferred(), "given to a pod whose containers wait until it is proven clean"),
    (ev.PutInUse(Owner("pod-a", NOW)), "in use by pod-a"),
    (ev.PutInUse(Owner("pod-a", NOW, name="team/a-0/main")), "in use by team/a-0/main (pod pod-a)"),
    (ev.PutInUse(Owner("pod-a", NOW, crowded=True)),
     "in use by pod-a, and also by another pod's container"),
    (ev.PutInUse(Owner("pod-a", NOW, unannounced=True, crowded=True)),
     "in use by pod-a, which is unannounced, and also by another pod's container"),
    (ev.PutInUse(Owner(None, NOW, unannounced=True)), "in use by a process without a known container"),
    (ev.AilmentFound(lives.LOST),
     "sick while in use (lost): the device has fallen off its bus; left alone until it is released"),
    (ev.ErrorsNoted(((13, 2), (43, 1)), 9),
     "the driver reported xid 13 2 times, xid 43"),
    (ev.ErrorsNoted(((79, 1),), 9, grave=True),
     "the driver reported xid 79 that no scrub has judged, so a reset is due"),
    (ev.Reinstated("ann: it was the cable"),
     "reinstated WITHOUT EVIDENCE by ann: it was the cable; it is scrubbed as after a tenant"),
    (ev.QuarantineWithdrawn("ann: wrong node"),
     "the quarantine that waited for the end of its use was withdrawn by ann: wrong node"),
    (ev.Released("its owner is gone"), "released: its owner is gone"),
    (ev.Quarantined(lives.quarantine()),
     "quarantined by autoclave (lost): the device has fallen off its bus; Autoclave will test it again"),
    (ev.Quarantined(replace(lives.quarantine(XID), errors=((13, 1), (79, 1)))),
     "quarantined by autoclave (xid): xid 79 was reported; the driver reported xid 13; Autoclave will test it again"),
    (ev.Quarantined(Quarantine(lives.PULLED, NOW, "ann")),
     "quarantined by ann (operator): suspect; until an operator reinstates it"),
    (ev.ProbationStarted(lives.job(ScrubPath.SLOW), "ann"),
     "probation: scrub job-1 on the slow path (release) started by ann"),
    (ev.StepsRecorded("job-1", (result(Step.EVICT, holders=(lives.LEFTOVER,), terminated=(43, 44)),)),
     'ending processes (evict) passed in 0.250 s (found "orphan" (pid 43, no container); ended pid 43, 44)'),
    (ev.StepsRecorded("job-1", (result(Step.CLEAR, residue_bytes=12, residue_at=(4096, 8192), uncovered=REST),)),
     ("clear passed in 0.250 s (12 bytes were not zero before, the first at 0x1000; "
      "not covered: 300MiB own context, 7B fragments)")),
    (ev.StepsRecorded("job-1", (result(Step.SCRATCH, outcome=Outcome.FAILED, units_reached=0),)),
     "memory on the chip (scratch) failed in 0.250 s (0 of 132 units) - not clean"),
    (ev.StepsRecorded("job-1", (replace(result(Step.SELFTEST), detail="no time was left for retention"),)),
     "selftest passed in 0.250 s (ran address, arithmetic; no time was left for retention)"),
    (ev.StepsRecorded("job-1", (replace(result(Step.VERIFY, outcome=Outcome.FAILED, mismatch=FAULT), detail="bad"),)),
     ("verify failed in 0.250 s (bad; at byte 4096 0xff was read where 0x00 was written, 3 bytes wrong in all)"
      " - not clean")),
    (ev.StepsRecorded("job-1", (replace(result(Step.SCRATCH, outcome=Outcome.ABORTED), detail="x", findings=MET),)),
     "memory on the chip (scratch) aborted in 0.250 s (x) - not clean"),
    (ev.StepsRecorded("job-1", (result(Step.SETTINGS, drift=("clocks", "power limit")),)),
     "settings passed in 0.250 s (restored clocks, power limit)"),
    (ev.StepsRecorded("job-1", (result(Step.HEALTH, outcome=Outcome.TIMED_OUT),)),
     "health timed-out in 0.250 s - not clean"),
    (ev.StepsRecorded("job-1", (result(Step.SETTINGS, drift=("clocks",)), result(Step.HEALTH))),
     "settings passed in 0.250 s (restored clocks); health passed in 0.250 s"),
    (ev.Escalated("job-1", "verify failed", ScrubPath.SLOW), "escalated to the slow path: verify failed"),
    (ev.ScrubFailed("job-1", "evict failed"), "not clean: evict failed"),
    (ev.ScrubFailed("job-1", "used", times=17),
     "not clean: used (not clean after a scrub 17 times since its last proof, its reinstatement or the boot)"),
    (ev.ScrubInterrupted("job-1", "it was killed"), "scrub cancelled, nothing was proven: it was killed"),
    (ev.TenancyClosed(
        EndedTenancy(7, "boot-1", NOW, NOW, lives.A, "team/train", guarded=HELD), "r-1", UNREAD),
     ("wiped after team/train, who had it from 2025-06-15 15:06:40 UTC to 2025-06-15 15:06:40 UTC (the "
      "receipt of the wipe is r-1); "
     "others: 1 open attempt let through, 3 refused (fence: watch, then hold), 2 open attempts of programs that "
     "the policy ignores, 1 moment at which the fence may have missed somebody, for a time open to all; "
     "others until it was wiped: not known: the fence was not read at the start or at the end of this period")),
    (ev.TenancyClosed(
        EndedTenancy(7, "boot-1", NOW, NOW, lives.A, guarded=WATCHED), "r-1", replace(WATCHED, refused=0)),
     ("wiped after pod-a, who had it from 2025-06-15 15:06:40 UTC to 2025-06-15 15:06:40 UTC (the receipt of the wipe "
      "is r-1); others: 0 open attempts let through, 4 refused (fence: watch at both ends, another mode between); "
      "others until it was wiped: 0 open attempts let through, 0 refused (fence: watch)")),
    (ev.TenancyClosed(EndedTenancy(7, "boot-1", NOW, acquired_by="job 7"), "r-1", UNREAD),
     ("wiped after job 7, who had it from an unknown time to 2025-06-15 15:06:40 UTC (the receipt of the wipe is r-1); "
     "others: not known: the fence was not read at the start or at the end of this period; "
     "others until it was wiped: not known: the fence was not read at the start or at the end of this period")),
    (ev.FenceMissed("somebody had taken it out of the kernel"),
     "the fence may have missed somebody: somebody had taken it out of the kernel"),
    (ev.OpenAttempted(lives.OPENER, 7, held=True),
     ('opened by pod team/b (pod-b), last by "train-b" (pid 42), while somebody else had it; '
      "it asked the kernel at least 3 times"
      ", from 2025-06-15 15:06:40 UTC to 2025-06-15 15:06:41 UTC")),
    (ev.OpenAttempted(lives.OPENER, 7, held=False),
     ('opened by pod team/b (pod-b), last by "train-b" (pid 42), while nobody had it; it asked the kernel at least 3 '
      "times, from 2025-06-15 15:06:40 UTC to 2025-06-15 15:06:41 UTC")),
    (ev.OpenAttempted(replace(lives.OPENER, place="/system.slice/x.service", pod="", refused=2), 7, held=False),
     ("opened by /system.slice/x.service while nobody had it; it asked the kernel at least 3 times, and was refused "
      "2 times"
      ", from 2025-06-15 15:06:40 UTC to 2025-06-15 15:06:41 UTC")),
    (ev.OpenAttempted(replace(lives.OPENER, place="/kubepods/besteffort", pod=""), 7, held=True),
     ('opened by a pod that is gone, last by "train-b" (pid 42), while somebody else had it; '
      "it asked the kernel at least 3 times"
      ", from 2025-06-15 15:06:40 UTC to 2025-06-15 15:06:41 UTC")),
    (ev.OpenAttempted(replace(lives.OPENER, pod="", refused=3), 7, held=True, ended=True),
     ('refused: pod pod-b, last by "train-b" (pid 42), asked the kernel at least 3 times while somebody else '
      'had it, and '
      "each of these was refused, from 2025-06-15 15:06:40 UTC to 2025-06-15 15:06:41 UTC")),
    (ev.OpenAttempted(replace(ONCE, place="no container", pod="", refused=1), 7, held=True),
     ('refused: "train-b" (pid 42, no container) asked the kernel at least 1 time while somebody else had it, '
      "and each of these was refused, at 2025-06-15 15:06:41 UTC")),
    (ev.OpenAttempted(replace(lives.OPENER, place="no container", pod="", refused=2), 7, held=False),
     ('opened by processes called "train-b" (no container) while nobody had it; they asked the kernel at least 3 '
      "times, and were refused 2 times"
      ", from 2025-06-15 15:06:40 UTC to 2025-06-15 15:06:41 UTC")),
    (ev.OpenAttempted(replace(lives.OPENER, place="container:0123", pod="", exempt=True), 7, held=True, ended=True),
     ('opened by container 0123, last by "train-b" (pid 42), which the policy exempted; it asked the kernel at '
      'least 3 times, '
      "from 2025-06-15 15:06:40 UTC to 2025-06-15 15:06:41 UTC")),
    (ev.OpenAttempted(replace(lives.OPENER, place="other containers", command="12", pid=0), 7, held=True),
     ("opened by at least 12 other containers without a row of their own while somebody else had it; "
      "they asked the kernel at least 3 times"
      ", from 2025-06-15 15:06:40 UTC to 2025-06-15 15:06:41 UTC")),
    (ev.OpenAttempted(replace(lives.OPENER, place="other programs of the node", command="1", refused=1), 7, held=True),
     ("opened by at least 1 other program of the node without a row of its own while somebody else had it; it asked "
      "the kernel at least 3 times, and was refused 1 time"
      ", from 2025-06-15 15:06:40 UTC to 2025-06-15 15:06:41 UTC")),
    (ev.OpenAttempted(replace(lives.OPENER, place="other containers", command="2", exempt=True), 7, held=False),
     ("opened by at least 2 other containers without a row of their own, which the policy exempted; they asked the "
      "kernel at least 3 times"
      ", from 2025-06-15 15:06:40 UTC to 2025-06-15 15:06:41 UTC")),
    (ev.Soiled("it was used without a grant", (lives.OF_B, lives.FOREIGN)),
     ('no longer clean: it was used without a grant by "train-b" (pid 42, pod-b), "nv-hostengine" (pid 44, no '
      "container)")),
    (ev.Soiled("it was used without a grant", (lives.OF_B,), times=1200),
     ('no longer clean: it was used without a grant by "train-b" (pid 42, pod-b) (no longer '
      "clean 1200 times since its last tenancy, or since it was found)")),
    (ev.Soiled("it is not known whether it was used: it was taken away", times=2),
     ("no longer clean: it is not known whether it was used: it was taken away (no longer clean 2 times since its last "
      "tenancy, or since it was found)")),
    (ev.Described(replace(lives.DEVICE, index=3)), "now seen as NVIDIA H100 80GB HBM3 at index 3"),
    (ev.Distrusted("the node was rebooted", lives.REBOOTED),
     "what was known about its memory no longer holds: the node was rebooted"),
    (ev.ServiceStarted("0.1.0"), "the service started (version 0.1.0)"),
    (ev.ServiceStarted("0.1.0", cut_off=True),
     ("the service started (version 0.1.0); its last run was interrupted, so it may not have run "
      "since the previous row")),
    (ev.ServiceStopped(), "the service was stopped"),
    (ev.StoodStill(AT_NIGHT, 26.7), "the service stood still for 27 s, and answered no request during that time"),
    (ev.StoodStill(AT_NIGHT, 300.0, suspended=298.0),
     ("the service stood still for 300 s, and answered no request during that time; "
     "the machine was suspended for 298 s of that time")),
    (ev.StoodStill(AT_NIGHT, 61.0, times=14),
     ("the service stood still 14 times since 2026-11-27 02:10:03 UTC, together for 61 s, and answered no "
      "request during that time")),
    (ev.WritesFailed(AT_NIGHT, Moment(AT_NIGHT.wall + 247, 247.0), "cannot write to the ledger: the disk is full"),
     ("the ledger could not be written for 247 s, from 2026-11-27 02:10:03 UTC to 2026-11-27 02:14:10 UTC: cannot "
      "write to the ledger: the disk is full")),
    (ev.ClockMoved(3600.2), "the clock was set forward by 3600 s"),
    (ev.ClockMoved(-2.0), "the clock was set back by 2 s"),
    (ev.PolicyInForce("site", "0123456789abcdef"), "policy site (digest 0123456789abcdef) is in force from here on"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "reported"), LIFE, ids=[reported for _, reported in LIFE])
def test_each_event_has_its_expected_text(event, reported):
    assert event_text.tell(event) == reported


def test_every_kind_of_event_has_its_words_above():
    assert {type(event) for event, _ in LIFE} == set(typing.get_args(ev.Event))
