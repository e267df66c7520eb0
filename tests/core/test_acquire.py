"""Who may have a device: Allocate and the release, as tables of cases.

W and S numbers are the cases of the design in which memory in use is wiped, or a needed scrub is skipped.
"""

from dataclasses import replace

import pytest

from ground.errors import Reason
from policies.policy_model import Clear, Paths
from scrubber.core import acquire, next_action, ownership, start, verdict
from scrubber.core import events as ev
from scrubber.core.acquire import ForClaim, ForJob, ForPod
from scrubber.core.answers import (
    AcquireAnswer,
    Blocked,
    CancelJob,
    HandOut,
    Join,
    Proceed,
    RecordFirst,
    Refuse,
    Scrub,
    Veto,
    Wait,
)
from scrubber.core.fencing import Pods
from scrubber.core.model import Blame, Owner, ScrubPath, Step, Trigger, Vitals
from tests.core import lives
from tests.core.lives import (
    AWAY,
    BACK,
    BY_WHOM,
    ENFORCE,
    FOREIGN,
    IN_THE_WAY,
    LEFTOVER,
    NOW,
    OBSERVE,
    OF_A,
    OF_B,
    STRICT,
    XID_79,
    A,
    B,
    facts,
    later,
    live,
    rows,
)

ANNOUNCED = ForPod(announced=True)
NOT_PROVEN = Wait(
    Reason.NOT_PROVEN_FREE, "cannot hand out GPU-1: it cannot be proven that no process uses it", IN_THE_WAY
)
IN_USE = Wait(Reason.IN_USE, "cannot hand out GPU-1: it is still in use", BY_WHOM)
GIVE_BACK = ("run `autoclave release 0` once its owner has ended",)
GONE = RecordFirst(ev.Released("it was asked for again, and its last owner is gone"))
SICK = Refuse(Reason.SICK, "cannot hand out GPU-1: it is unhealthy", BACK)
FAST = Scrub(ScrubPath.FAST, Trigger.ACQUIRE)
SLOW = Scrub(ScrubPath.SLOW, Trigger.ACQUIRE)
EXPIRED = Scrub(ScrubPath.FAST, Trigger.PROOF_EXPIRED)
OTHER_PROOF = ENFORCE.model_copy(update={"clear": Clear(min_coverage=0.5)})
BRISK = ENFORCE.model_copy(update={"paths": Paths(first_look=ScrubPath.FAST)})
UNSEEN_A = lives.but(lives.IN_USE, owner=Owner(A, NOW, seen=False))
UNKNOWN_AFTER_SLOW = lives.live(lives.FIRST_LOOK, ev.ScrubInterrupted("job-1", "the service was stopped"))
AFTER_REBOOT = live(lives.CLEAN, ev.Distrusted("the node was rebooted", lives.REBOOTED))
TESTED_AGAIN = live(AFTER_REBOOT, ev.ScrubStarted(lives.job(ScrubPath.SLOW, Trigger.FIRST_LOOK)))
TEST_FAILED = live(TESTED_AGAIN, ev.ScrubFailed("job-1", "a process is on it"))
SHORT = replace(facts(None), shortage="the node has too many files open")
NO_FILES = "cannot {} GPU-1: the node has too many files open"


def test_a_shortage_is_named_and_blames_neither_device_nor_tenant():
    refused = acquire.decide(lives.CLEAN, SHORT, ENFORCE, NOW, ForPod())
    assert refused == Wait(Reason.SHORTAGE, NO_FILES.format("hand out"), IN_THE_WAY)
    assert start.decide(lives.GRANTED, SHORT, ENFORCE, A, NOW) == Wait(
        Reason.SHORTAGE, NO_FILES.format("start on"), IN_THE_WAY
    )
    assert acquire.take_back(lives.IN_USE, SHORT, NOW) == Refuse(
        Reason.SHORTAGE, NO_FILES.format("take back"), IN_THE_WAY
    )
    assert next_action.tend(lives.CLEAN, SHORT, ENFORCE, NOW, 0.0) == Blocked("the node has too many files open")
    veto = verdict.veto(lives.SCRUBBING, "job-1", Step.CLEAR, SHORT)
    assert veto == Veto(Blame.SERVICE, "the node has too many files open")


HELD_UP_BY = '"python" (pid 7, pod-b) took 1.3 s to read'
NO_PROOF = "it cannot be proven that no process uses it"


def test_only_operators_read_which_process_was_too_slow():
    held_up = replace(facts(None), held_up=HELD_UP_BY)
    assert acquire.decide(lives.CLEAN, held_up, ENFORCE, NOW, ForPod()) == NOT_PROVEN
    waits = start.decide(lives.GRANTED, held_up, ENFORCE, A, NOW)
    assert waits == Wait(Reason.NOT_PROVEN_FREE, f"cannot start on GPU-1: {NO_PROOF}", IN_THE_WAY)
    for waiting in (lives.CLEAN, lives.DIRTY):
        assert next_action.tend(waiting, held_up, ENFORCE, NOW, 0.0) == Blocked(f"{NO_PROOF}: {HELD_UP_BY}")
    veto = verdict.veto(lives.SCRUBBING, "job-1", Step.CLEAR, held_up)
    assert veto == Veto(Blame.TENANT, f"{NO_PROOF}: {HELD_UP_BY}")


def held(words):
    return Refuse(Reason.IN_USE, f"cannot hand out GPU-1: it is {words}", GIVE_BACK)


ACQUIRE = rows(
    ("W16 no sight of processes: a clean device is not handed out", lives.CLEAN, facts(None), ENFORCE, NOT_PROVEN),
    ("S10 a clean device that is used without a grant is soiled", lives.CLEAN, facts((OF_B,)), ENFORCE,
     RecordFirst(ev.Soiled("it was used without a grant", (OF_B,)))),
    ("a proof under another clearing policy is none", lives.CLEAN, facts(), OTHER_PROOF, EXPIRED),
    ("S8 a proof from before the service was away is none", lives.CLEAN, facts(since=AWAY), ENFORCE, EXPIRED),
    ("S6 a proof of another boot is distrusted", lives.CLEAN, facts(incarnation=lives.REBOOTED), ENFORCE,
     RecordFirst(ev.Distrusted("the node was rebooted", lives.REBOOTED))),
    ("an init and an app container share a grant in one admission", lives.GRANTED, facts(), ENFORCE, HandOut()),
    ("S7 a grant of another kubelet life counts as dirty", lives.GRANTED, facts(epoch="epoch-2"), ENFORCE, GONE),
    ("S4 a grant whose start is not announced is never shared", lives.UNANNOUNCED, facts(), ENFORCE, GONE),
    ("a grant without a proof is never shared", lives.UNPROVEN, facts(), ENFORCE, GONE),
    ("S8 a grant from before the service was away is not shared", lives.GRANTED, facts(since=AWAY), ENFORCE, GONE),
    ("a grant on a device that somebody unseen holds memory of is not shared", lives.GRANTED,
     facts(vitals=Vitals(leaked_bytes=7)), ENFORCE, GONE),
    ("a grant that a container already uses is that container's, on record", lives.GRANTED, facts((OF_A,)), ENFORCE,
     RecordFirst(ev.PutInUse(Owner(A, later(1), seen=True, unannounced=True)))),
    ("W16 no sight of processes: a grant is not shared", lives.GRANTED, facts(None), ENFORCE, NOT_PROVEN),
    ("W1 double allocation: a live owner is refused", lives.IN_USE, facts((OF_A,), alive=True), ENFORCE, IN_USE),
    ("W2 force delete: a live owner without a process is refused", lives.IN_USE, facts(alive=True), ENFORCE, IN_USE),
    ("W3 checkpoint lost: a process of a container is not disturbed", lives.IN_USE, facts((OF_A,), alive=False),
     ENFORCE, IN_USE),
    ("W13 nobody can say whether the owner lives: it is not taken for gone", lives.IN_USE, facts(alive=None), ENFORCE,
     NOT_PROVEN),
    ("W20 another pod still has it open after the owner's end", lives.IN_USE, facts((OF_B,), alive=False), ENFORCE,
     IN_USE),
    ("S5 a tenant that ended a moment ago left its bytes", lives.IN_USE, facts(alive=False), ENFORCE, GONE),
    ("orphans of a dead owner do not keep the device", lives.IN_USE, facts((LEFTOVER,), alive=False), ENFORCE, GONE),
    ("W15 a user that no kubelet knows is gone with its last process", lives.USED_BY_HOST, facts(), ENFORCE, GONE),
    ("S11 an empty dirty device is scrubbed all the same", lives.DIRTY, facts(), ENFORCE, FAST),
    ("orphans of the last tenant are cleared away", lives.DIRTY, facts((LEFTOVER,)), ENFORCE, FAST),
    ("W10 a host daemon is waited for", lives.DIRTY, facts((FOREIGN,)), ENFORCE, IN_USE),
    ("one that must stay is enough", lives.DIRTY, facts((LEFTOVER, FOREIGN)), ENFORCE, IN_USE),
    ("W9 a container of somebody else is never cleared away", lives.DIRTY, facts((OF_B,)), lives.ENDS_ALL, IN_USE),
    ("W16 no sight of processes: a dirty device is not scrubbed", lives.DIRTY, facts(None), ENFORCE, NOT_PROVEN),
    ("a device of which nothing is known takes the slow path", lives.UNKNOWN, facts(), ENFORCE, SLOW),
    ("a slow path that was cut off is not followed by a fast one", UNKNOWN_AFTER_SLOW, facts(), ENFORCE, SLOW),
    ("W14 lost ledger: a device in use is not scrubbed", lives.UNKNOWN, facts((OF_A,)), lives.ENDS_ALL, IN_USE),
    ("a device that is being scrubbed is joined", lives.SCRUBBING, facts(), ENFORCE, Join()),
    ("a grant on a device that fell sick is not shared", lives.SICK_GRANTED, facts(), ENFORCE, SICK),
    ("a clean device that does not answer is refused", lives.CLEAN, facts(vitals=Vitals(unresponsive=True)), ENFORCE,
     SICK),
    ("a refused request records that the owner was seen", UNSEEN_A, facts((OF_A,), alive=True), ENFORCE,
     RecordFirst(ev.PutInUse(Owner(A, NOW, seen=True)))),
)  # fmt: skip
OBSERVED = rows(
    ("a clean device is handed out with its proof", lives.CLEAN, facts(), HandOut()),
    ("a used device is handed out, and it is said why not", lives.IN_USE, facts((OF_A,), alive=True),
     HandOut("cannot hand out GPU-1: it is still in use")),
    ("a dirty device is handed out unscrubbed", lives.DIRTY, facts(),
     HandOut("not scrubbed: mode enforce needs the fast path (acquire)")),
    ("a sick device whose sibling is being reset goes to nobody", lives.SICK_DIRTY,
     replace(facts(), domain_resetting=True), Refuse(Reason.SICK, "cannot hand out GPU-1: it is unhealthy", BACK)),
    ("a scrub that a person started is joined", lives.SCRUBBING, facts(), Join()),
    ("the same, and the device is sick", lives.SCRUBBING, facts(vitals=XID_79), Join()),
    ("a quarantined device is refused even so", lives.QUARANTINED, facts(),
     Refuse(Reason.QUARANTINED, "cannot hand out GPU-1: it is quarantined", BACK)),
)  # fmt: skip


@pytest.mark.parametrize(("record", "seen", "policy", "answer"), ACQUIRE)
def test_acquire(record, seen, policy, answer):
    assert acquire.decide(record, seen, policy, later(1), ForPod()) == answer


FIRST_LOOKS = rows(
    ("a device that was never proven is tested first", lives.FIRST_LOOK, ENFORCE, Join()),
    ("after a reboot no request waits for a test to begin", AFTER_REBOOT, ENFORCE, FAST),
    ("nor for one to end", TESTED_AGAIN, ENFORCE, CancelJob()),
    ("a first look without a test is joined",
     live(AFTER_REBOOT, ev.ScrubStarted(lives.job(trigger=Trigger.FIRST_LOOK))), ENFORCE, Join()),
    ("a test that follows every tenant does not give way", TESTED_AGAIN, STRICT, Join()),
    ("nor does a job on a quarantined device", live(lives.QUARANTINED, ev.ProbationStarted(
     lives.job(ScrubPath.SLOW, Trigger.PROBATION), "ann")), ENFORCE, Join()),
    ("a test that failed is repeated", TEST_FAILED, ENFORCE, SLOW),
)  # fmt: skip


@pytest.mark.parametrize(("record", "policy", "answer"), FIRST_LOOKS)
def test_the_first_look_after_a_reboot_gives_way(record, policy, answer):
    assert acquire.decide(record, facts(incarnation=record.incarnation), policy, later(1), ForPod()) == answer
    starting = start.decide(record, facts(incarnation=record.incarnation), policy, A, later(1))
    assert starting == (replace(answer, trigger=Trigger.START) if isinstance(answer, Scrub) else answer)


@pytest.mark.parametrize(("record", "seen", "answer"), OBSERVED)
def test_acquire_under_observe(record, seen, answer):
    assert acquire.decide(record, seen, OBSERVE, later(1), ForPod()) == answer


@pytest.mark.parametrize("seen", [facts(), facts((OF_B,))], ids=["free", "used"])
@pytest.mark.parametrize("record", [lives.UNKNOWN, lives.CLEAN, lives.DIRTY, lives.SCRUBBING, lives.QUARANTINED])
def test_an_exclusive_request_for_a_free_device_is_like_others(record, seen):
    asked = acquire.decide(record, seen, ENFORCE, later(1), ForJob())
    assert asked == acquire.decide(record, seen, ENFORCE, later(1), ForPod())


@pytest.mark.parametrize("recipient", [ForJob(), ForClaim("claim 8", Pods(frozenset()))])
@pytest.mark.parametrize("policy", [ENFORCE, OBSERVE])
@pytest.mark.parametrize("record", [lives.GRANTED, lives.UNANNOUNCED, lives.UNPROVEN, lives.IN_USE, lives.USED_BY_HOST])
@pytest.mark.parametrize("seen", [facts(), facts((OF_A,), alive=True), facts(alive=False), facts(None)])
def test_an_exclusive_request_is_refused_under_every_policy_and_fact(policy, record, seen, recipient):
    answer = acquire.decide(record, seen, policy, later(1), recipient)
    assert answer == held(record.state.words)


KEPT_BY_A_JOB = live(
    lives.CLEAN, ev.Granted(replace(lives.grant(lives.KEPT), until_release=True, owner="job 7", group=4711))
)


@pytest.mark.parametrize("seen", [facts(), facts((OF_B,), alive=True), facts(None)])
@pytest.mark.parametrize("record", [KEPT_BY_A_JOB, live(KEPT_BY_A_JOB, ev.PutInUse(Owner(B, NOW, seen=True)))])
def test_only_its_owner_may_repeat_an_exclusive_request(record, seen):
    def answer(owner: str, group: int = 4711) -> AcquireAnswer:
        return acquire.decide(record, seen, ENFORCE, later(1), ForJob(owner, group))

    assert answer("job 7") == Proceed()
    assert {answer(""), answer("job 8"), answer("job 7", 4712)} == {held(record.state.words)}


def test_a_request_for_devices_partly_held_is_refused():
    assert acquire.partly_held({"GPU-1": HandOut(), "GPU-2": FAST}) is None
    assert acquire.partly_held({"GPU-1": Proceed(), "GPU-2": Proceed()}) is None
    refused = acquire.partly_held({"GPU-1": HandOut(), "GPU-2": Proceed()})
    assert refused is not None
    assert refused.reason is Reason.IN_USE
    assert refused.message == "cannot hand out GPU-1: this owner already has GPU-2"
    assert refused.remedies == ("run `autoclave release GPU-2` first, or acquire the others alone",)


@pytest.mark.parametrize("owner", ["", "job 7"])
def test_a_grant_without_a_release_is_not_repeated(owner):
    named = live(lives.CLEAN, ev.Granted(replace(lives.grant(lives.CLEAN), owner=owner)))
    answer = acquire.decide(named, facts(), ENFORCE, later(1), ForJob(owner))
    assert answer == held("granted")


@pytest.mark.parametrize(("record", "owner"), [(KEPT_BY_A_JOB, "job 7"), (lives.GRANTED, "")])
def test_a_grant_of_another_boot_refuses_no_exclusive_request(record, owner):
    seen = facts(incarnation=lives.REBOOTED)
    answer = acquire.decide(record, seen, ENFORCE, later(1), ForJob(owner))
    assert answer == RecordFirst(ev.Distrusted("the node was rebooted", lives.REBOOTED))


GIVEN_BACK = RecordFirst(ev.Released("it was given back"))
TAKE_BACK = Refuse(Reason.IN_USE, "cannot take back GPU-1: it is still in use", BY_WHOM)
RELEASE = rows(
    ("an exposed device whose owner is gone", lives.IN_USE, facts(alive=False), GIVEN_BACK),
    ("a grant that nobody used", lives.GRANTED, facts(), GIVEN_BACK),
    ("orphans are no users", lives.IN_USE, facts((LEFTOVER,), alive=False), GIVEN_BACK),
    ("W5 the caller's word is not enough: the owner lives", lives.IN_USE, facts(alive=True), TAKE_BACK),
    ("W17 a caller who is not the owner: a container is on it", lives.IN_USE, facts((OF_A,), alive=False), TAKE_BACK),
    ("W13 nobody can say whether the owner lives", lives.IN_USE, facts(),
     Refuse(Reason.NOT_PROVEN_FREE, "cannot take back GPU-1: it cannot be proven that no process uses it", IN_THE_WAY)),
)  # fmt: skip


@pytest.mark.parametrize(("record", "seen", "answer"), RELEASE)
def test_release(record, seen, answer):
    assert acquire.take_back(record, seen, later(1)) == answer


OF_4711 = lives.but(lives.GRANTED, grant=replace(lives.grant(lives.CLEAN), owner="4711"))
NOT_THEIRS = Refuse(
    Reason.OTHER_OWNER,
    "cannot take back GPU-1: it was not acquired for this owner",
    ("`autoclave status` names its owner",),
)
OWNED = rows(
    ("its owner", OF_4711, "4711", RecordFirst(ev.Released("it was given back by 4711"))),
    ("another owner", OF_4711, "4712", NOT_THEIRS),
    ("any owner", OF_4711, "", GIVEN_BACK),
    ("a GPU that was granted without an owner, such as to a pod", lives.GRANTED, "4711", NOT_THEIRS),
    ("a GPU that was found in use: no grant is known", lives.but(lives.GRANTED, grant=None), "4711",
     RecordFirst(ev.Released("it was given back by 4711"))),
)  # fmt: skip


@pytest.mark.parametrize(("record", "owner", "answer"), OWNED)
def test_a_release_for_an_owner_refuses_another_owners_gpu(record, owner, answer):
    assert acquire.take_back(record, facts(), later(1), owner) == answer


def test_the_right_owner_alone_frees_no_gpu_in_use():
    used = lives.but(lives.IN_USE, grant=OF_4711.tenancy.grant)
    assert acquire.take_back(used, facts(alive=True), later(1), "4711") == TAKE_BACK


OF_A_JOB = live(KEPT_BY_A_JOB, ev.PutInUse(Owner(A, NOW, seen=True)))
JOBS_OF_A_POD = rows(
    ("slurmd's pod lives on between its jobs", OF_A_JOB, facts(alive=True, assigned_pods=[A]),
     RecordFirst(ev.Released("it was given back by job 7"))),
    ("a process of the pod is on it", OF_A_JOB, facts((OF_A,), alive=True, assigned_pods=[A]), TAKE_BACK),
    ("the kubelet gave it to another pod", OF_A_JOB, facts(alive=True, assigned_pods=[B]), TAKE_BACK),
    ("the checkpoint cannot be read", OF_A_JOB, facts(alive=True), TAKE_BACK),
    ("the holders are not known", OF_A_JOB, facts(None, alive=True, assigned_pods=[A]),
     Refuse(Reason.NOT_PROVEN_FREE, "cannot take back GPU-1: it cannot be proven that no process uses it", IN_THE_WAY)),
    ("a pod that the kubelet has asked for", lives.IN_USE, facts(alive=True, assigned_pods=[A]), TAKE_BACK),
)  # fmt: skip


@pytest.mark.parametrize(("record", "seen", "answer"), JOBS_OF_A_POD)
def test_a_job_gives_back_a_device_of_its_pod(record, seen, answer):
    assert acquire.take_back(record, seen, later(1), "job 7" if record is OF_A_JOB else "") == answer


DOUBT = "another program calls it unhealthy"
DOUBTED = RecordFirst(ev.Distrusted(DOUBT, lives.HERE))
DISTRUST = rows(
    ("a clean device", lives.CLEAN, DOUBTED),
    ("a grant that announces its start", lives.GRANTED, DOUBTED),
    ("a grant that announces no start may be in use", lives.UNANNOUNCED, Proceed()),
    ("a job could still prove it", lives.SCRUBBING,
     Wait(Reason.SCRUBBING, "cannot end the proof of GPU-1: it is being scrubbed", ("try again after the scrub",))),
)  # fmt: skip


@pytest.mark.parametrize(("record", "answer"), DISTRUST)
def test_the_doubt_of_another_program_ends_a_standing_proof(record, answer):
    assert acquire.distrust(record, DOUBT) == answer


SCRUBBING, SERVICE, TENANT = lives.SCRUBBING, Blame.SERVICE, Blame.TENANT
NOT_ITS_OWN = "the device no longer belongs to this job"
VETOES = rows(
    ("nobody is on it", SCRUBBING, Step.CLEAR, facts(), None, None),
    ("W11 the job lost its device", live(SCRUBBING, ev.ScrubFailed("job-1", "x"), ev.ScrubStarted(lives.job(name="2"))),
     Step.CLEAR, facts(), SERVICE, NOT_ITS_OWN),
    ("the driver was reloaded under it", SCRUBBING, Step.CLEAR, facts(incarnation=lives.RELOADED), SERVICE,
     "restarted during the job"),
    ("W16 no sight of processes", SCRUBBING, Step.EVICT, facts(None), TENANT, "cannot be proven"),
    ("W21 a container appeared before the evict", SCRUBBING, Step.EVICT, facts((OF_A,)), TENANT,
     'container uses the device ("train-a"'),
    ("orphans are what the evict is for", SCRUBBING, Step.EVICT, facts((LEFTOVER, FOREIGN)), None, None),
    ("W21 a container appeared before the clear", SCRUBBING, Step.CLEAR, facts((OF_A,)), TENANT, "live container"),
    ("an orphan appeared before the clear", SCRUBBING, Step.CLEAR, facts((LEFTOVER,)), TENANT,
     'used by "orphan" (pid 43, no container)'),
    ("W8 a neighbour is in use", SCRUBBING, Step.RESET, facts(siblings=True), TENANT, "reset domain"),
    ("W8 nobody can say whether a neighbour is in use", SCRUBBING, Step.RESET, facts(siblings=None), TENANT,
     "reset domain"),
    ("a reset of a device without busy neighbours", SCRUBBING, Step.RESET, facts(siblings=False), None, None),
    ("W8 a neighbour is being reset", SCRUBBING, Step.EVICT, replace(facts(), domain_resetting=True), SERVICE,
     "is being reset"),
    ("a clear does not reach the neighbours", SCRUBBING, Step.CLEAR, facts(siblings=True), None, None),
)  # fmt: skip


@pytest.mark.parametrize(("record", "step", "seen", "blame", "why"), VETOES)
def test_fence(record, step, seen, blame, why):
    veto = verdict.veto(record, "job-1", step, seen)
    assert veto is None if why is None else veto is not None and why in veto.why
    assert veto is None or (veto.blame, veto.in_the_way.unnamed) == (blame, False)


CLEARED_AT = lives.NOW.uptime
SINCE_CLEAR = rows(
    ("a use before the clear", replace(facts(), used_at=CLEARED_AT - 1), None),
    ("a use since then", replace(facts(), used_at=CLEARED_AT + 1), Blame.TENANT),
    ("perhaps a use", replace(facts(), used_at=CLEARED_AT + 1, use_unsure="raise its limit"), Blame.SERVICE),
    ("a time without observations since then", replace(facts(since=CLEARED_AT + 1), unobserved="a gap"), Blame.SERVICE),
)


@pytest.mark.parametrize(("seen", "blame"), SINCE_CLEAR)
def test_a_use_since_the_clear_ends_the_job(seen, blame):
    veto = verdict.veto(lives.SCRUBBING, "job-1", Step.SETTINGS, seen, CLEARED_AT)
    assert (veto and veto.blame) is blame
    assert (veto is not None and veto.in_the_way.unnamed) is (blame is Blame.TENANT)
    assert verdict.veto(lives.SCRUBBING, "job-1", Step.SETTINGS, seen) is None


def test_r8_a_device_with_a_starting_owner_is_refused():
    """The kubelet can give a device away between a permitted start and its first process."""
    gone = facts(alive=False)
    soon = later(ownership.STARTS_WITHIN - 0.1)
    late = later(ownership.STARTS_WITHIN)
    assert isinstance(acquire.decide(UNSEEN_A, gone, ENFORCE, soon, ForPod()), Wait)
    assert isinstance(start.decide(UNSEEN_A, gone, ENFORCE, "pod-b", soon), Wait)
    assert acquire.decide(UNSEEN_A, gone, ENFORCE, late, ForPod()) == RecordFirst(
        ev.Released("it was asked for again, and its last owner is gone")
    )
    assert acquire.take_back(UNSEEN_A, gone, soon) == TAKE_BACK
    assert acquire.take_back(UNSEEN_A, gone, late) == RecordFirst(ev.Released("it was given back"))


@pytest.mark.parametrize("policy", [ENFORCE, OBSERVE], ids=["enforce", "observe"])
@pytest.mark.parametrize("record", [lives.CLEAN, lives.DIRTY, lives.GRANTED], ids=["clean", "dirty", "granted"])
def test_w8_no_device_is_handed_out_during_a_siblings_reset(record, policy):
    seen = replace(facts(), domain_resetting=True)
    start_answer = start.decide(record, seen, policy, A, NOW)
    assert isinstance(acquire.decide(record, seen, policy, NOW, ForPod()), Wait)
    assert isinstance(start_answer, Wait)
    assert start_answer.reason is Reason.NOT_READY
