"""PreStartContainer, as tables of cases.

W, S and R numbers are the cases of the design in which memory in use is wiped, or a needed scrub is skipped, and what a
real kubelet was seen to do.
"""

from dataclasses import replace

import pytest

from ground.errors import Reason
from policies.policy_model import Evict, Eviction, Starts
from scrubber.core import events as ev
from scrubber.core import ownership, start
from scrubber.core.ailment_traits import AILMENTS
from scrubber.core.answers import Admit, HandOut, Join, Proceed, RecordFirst, Refuse, Scrub, Wait
from scrubber.core.model import Ailment, AilmentKind, KubeletAssignment, Owner, ScrubPath, Trigger
from scrubber.core.ownership import STARTS_WITHIN
from tests.core import lives
from tests.core.lives import (
    AWAY,
    BACK,
    BY_WHOM,
    ENFORCE,
    IN_THE_WAY,
    LEFTOVER,
    OBSERVE,
    OF_A,
    OF_B,
    A,
    B,
    facts,
    later,
    live,
    rows,
)

BUSY = Wait(Reason.IN_USE, "cannot start on GPU-1: it is still in use", BY_WHOM)
NOT_PROVEN = Wait(
    Reason.NOT_PROVEN_FREE, "cannot start on GPU-1: it cannot be proven that no process uses it", IN_THE_WAY
)
SICK = Refuse(Reason.SICK, "cannot start on GPU-1: it is unhealthy", BACK)
ADMIT = Admit(ev.PutInUse(Owner(A, later(1))))
CROWD = RecordFirst(ev.PutInUse(Owner(A, lives.NOW, seen=True, crowded=True)))
EXPIRED = Scrub(ScrubPath.FAST, Trigger.PROOF_EXPIRED)


def seen_starting_pod():
    return replace(facts(), starting_pod_alive=True)


START = rows(
    ("a grant of somebody who never says that he starts", lives.UNANNOUNCED, facts(), ENFORCE, BUSY),
    ("a grant on which its own container already runs", lives.GRANTED, facts((OF_A,)), ENFORCE,
     ADMIT),
    ("W17 somebody else's container is on the grant: it may have left by the next look", lives.GRANTED, facts((OF_B,)),
     ENFORCE, RecordFirst(ev.PutInUse(Owner(B, later(1), seen=True, unannounced=True)))),
    ("W16 no sight of processes: a grant does not start", lives.GRANTED, facts(None), ENFORCE,
     NOT_PROVEN),
    ("S8 the service was away since the proof: it is scrubbed before the start", lives.GRANTED, facts(since=AWAY),
     ENFORCE, RecordFirst(ev.Released("its proof ended before a container started on it"))),
    ("a container that already runs is not scrubbed away under an old proof", lives.GRANTED,
     facts((OF_A,), since=AWAY), ENFORCE, ADMIT),
    ("a container beside another pod's", lives.CROWDED, facts((OF_A, OF_B), alive=True), ENFORCE, BUSY),
    ("a restart while nothing of the pod runs: it is about to come", lives.IN_USE, facts(alive=False), ENFORCE, ADMIT),
    ("the same, nobody can say what runs", lives.IN_USE, facts(), ENFORCE, ADMIT),
    ("a restart in a pod that is there", lives.IN_USE, seen_starting_pod(), ENFORCE, Proceed()),
    ("a pod that is there before its containers is seen at once", lives.GRANTED, seen_starting_pod(), ENFORCE,
     Admit(ev.PutInUse(Owner(A, later(1), seen=True)))),
    ("a user that was seen before it had a name", lives.USED_BY_HOST, facts((OF_A,)), ENFORCE,
     ADMIT),
    ("a nameless user that is gone was somebody else", lives.USED_BY_HOST, facts(), ENFORCE,
     RecordFirst(ev.Released("another owner is about to start, and its last owner is gone"))),
    ("a nameless user that is still there is not taken for another's container", lives.USED_BY_HOST, facts((OF_B,)),
     ENFORCE, BUSY),
    ("W12 nobody can say whether the other owner lives", lives.IN_USE_BY_B, facts(alive=None), ENFORCE,
     NOT_PROVEN),
    ("a start is no proof of ownership: the container on it may be anybody's", lives.IN_USE_BY_B,
     facts((OF_A,), alive=False), ENFORCE, BUSY),
    ("S6 reboot: a start without a grant is decided as in Allocate", lives.UNKNOWN, facts(), ENFORCE,
     Scrub(ScrubPath.SLOW, Trigger.START)),
    ("S6 reboot: what was granted before is distrusted", lives.GRANTED, facts(incarnation=lives.REBOOTED), ENFORCE,
     RecordFirst(ev.Distrusted("the node was rebooted", lives.REBOOTED))),
    ("S3 a start on a dirty device is decided as in Allocate", lives.DIRTY, facts(), ENFORCE,
     Scrub(ScrubPath.FAST, Trigger.START)),
    ("a start on a clean device is decided as in Allocate", lives.CLEAN, facts(), ENFORCE,
     replace(ADMIT, handed_out=HandOut())),
    ("W21 nothing starts while a job runs", lives.SCRUBBING, facts(), ENFORCE, Join()),
    ("observe: somebody else's container is on the grant, on record", lives.GRANTED, facts((OF_B,)), OBSERVE,
     RecordFirst(ev.PutInUse(Owner(B, later(1), seen=True, unannounced=True)))),
    ("observe: no sight, and its owner restarts", lives.IN_USE, facts(None, alive=True), OBSERVE, Proceed()),
    ("observe: a grant on a sick device starts", lives.SICK_GRANTED, facts(), OBSERVE,
     ADMIT),
)  # fmt: skip


@pytest.mark.parametrize(("record", "seen", "policy", "answer"), START)
def test_start(record, seen, policy, answer):
    assert start.decide(record, seen, policy, A, later(1)) == answer


HERE = facts(alive=True)  # something of the pod runs, and nobody is on the device
BESIDE = facts((OF_A,), alive=True)
PER_POD, PER_CONTAINER, CACHED = (
    ENFORCE.model_copy(update={"model": word})
    for word in (Starts.PER_POD, Starts.PER_CONTAINER, Starts.PER_CONTAINER_CACHED)
)
LEFT = RecordFirst(ev.Released(start.LEFT_BEHIND, restart=True))
FIRST = RecordFirst(ev.Released(start.EACH_CONTAINER))
EACH = RecordFirst(ev.Released(start.EACH_CONTAINER, restart=True))
HOT_IN_USE = live(lives.IN_USE, ev.AilmentFound(Ailment(AilmentKind.HEAT, "it is slowed down")))
# What each of the three models of the Allocate proposal answers: per-pod, per-container, per-container-cached.
MODELS = rows(
    ("the first start of a grant", lives.GRANTED, facts(), (ADMIT, ADMIT, ADMIT)),
    ("a restart, or an app container after its init container", lives.IN_USE, HERE, (Proceed(), EACH, Proceed())),
    ("a restart with processes left behind", lives.IN_USE, facts((LEFTOVER,), alive=True), (Proceed(), LEFT, LEFT)),
    ("W18 a restart beside a live container of the pod", lives.IN_USE, BESIDE, (Proceed(), BUSY, Proceed())),
    ("W18 the same, with processes left behind", lives.IN_USE, facts((OF_A, LEFTOVER), alive=True),
     (Proceed(), BUSY, BUSY)),
    ("a restart on a device that fell sick", lives.SICK_IN_USE, HERE, (SICK,) * 3),
    ("a restart on a device that is only hot", HOT_IN_USE, HERE, (Proceed(), EACH, Proceed())),
    ("R11 the first start that we hear of after a kubelet restart", lives.GRANTED, facts(epoch="epoch-2"),
     (ADMIT, FIRST, ADMIT)),
    ("R11 the same, and its container runs", lives.GRANTED, facts((OF_A,), epoch="epoch-2"), (ADMIT, BUSY, ADMIT)),
    ("S1 another pod on the same device: no restart", lives.IN_USE_BY_B, facts(alive=False),
     (RecordFirst(ev.Released("another owner is about to start, and its last owner is gone")),) * 3),
    ("W17 another pod, and the owner lives", lives.IN_USE_BY_B, facts(alive=True), (BUSY,) * 3),
    ("somebody else's container has appeared", lives.IN_USE, facts((OF_B,), alive=True), (CROWD,) * 3),
    ("S10 somebody else's container was there, and has left", lives.CROWDED, HERE,
     (RecordFirst(ev.Released(start.CROWDED, restart=True)),) * 3),
    ("S10 the same, and a container of the pod is on it", lives.CROWDED, facts((OF_A,), alive=True), (BUSY,) * 3),
    ("W16 no sight of processes", lives.IN_USE, facts(None),
     (NOT_PROVEN,) * 3),
)  # fmt: skip


@pytest.mark.parametrize("kind", AilmentKind)
def test_no_container_restarts_on_a_doubtful_device(kind):
    record = live(lives.IN_USE, ev.AilmentFound(Ailment(kind, "so it is")))
    assert start.decide(record, HERE, CACHED, A, later(1)) == (SICK if AILMENTS[kind].doubtful else Proceed())


@pytest.mark.parametrize(("record", "seen", "wanted"), MODELS)
def test_each_model_of_starts_admits_a_restart_as_documented(record, seen, wanted):
    found = tuple(start.decide(record, seen, policy, A, later(1)) for policy in (PER_POD, PER_CONTAINER, CACHED))
    assert found == wanted


def names(containers: int, written: float = lives.NOW.wall) -> KubeletAssignment:
    """A checkpoint that names so many containers of the starting pod."""
    return KubeletAssignment(frozenset({A}), containers, written)


AGAIN = ev.Granted(lives.grant(lives.GRANTED))
DOUBLED = live(lives.GRANTED, AGAIN)
DOUBLED_IN_USE = live(DOUBLED, ev.PutInUse(Owner(A, lives.NOW, seen=True)))
RESTARTED = live(DOUBLED_IN_USE, ev.Released(start.CONTESTED, restart=True))
SHOWN = later(STARTS_WITHIN)  # a container that was admitted can be seen by then
ADMIT_SHOWN = Admit(ev.PutInUse(Owner(A, SHOWN)))
CONTESTED = RecordFirst(ev.Released(start.CONTESTED))
CONTESTED_AGAIN = RecordFirst(ev.Released(start.CONTESTED, restart=True))
# How often Allocate has handed the device out, and how many containers of the pod the checkpoint names for it.
DOUBLE = rows(
    ("one for one", lives.IN_USE, HERE, 1, Proceed()),
    ("R8 the other pod's entry is gone, and its container may have run", DOUBLED_IN_USE, HERE, 1, CONTESTED_AGAIN),
    ("no container of it was admitted yet", DOUBLED, facts(), 1, ADMIT_SHOWN),
    ("R11 the kubelet was restarted since: one may have run", DOUBLED, facts(epoch="epoch-2"), 1, CONTESTED),
    ("R11 the same, for an init and an app container", DOUBLED, facts(epoch="epoch-2"), 2, ADMIT_SHOWN),
    ("W18 a container of the pod is on it", DOUBLED_IN_USE, BESIDE, 1, BUSY),
    ("W16 no sight of processes", DOUBLED_IN_USE, facts(None), 1,
     NOT_PROVEN),
    ("another pod", live(DOUBLED, ev.PutInUse(Owner(B, lives.NOW, seen=True))), facts(alive=False), 1,
     RecordFirst(ev.Released("another owner is about to start, and its last owner is gone"))),
    ("it is scrubbed", RESTARTED, facts(), 1, Scrub(ScrubPath.FAST, Trigger.START)),
)  # fmt: skip


@pytest.mark.parametrize(("record", "seen", "containers", "wanted"), DOUBLE)
@pytest.mark.parametrize("policy", [PER_POD, CACHED], ids=["per-pod", "cached"])
def test_a_contested_device_is_clean_before_each_start(policy, record, seen, containers, wanted):
    named = None if containers is None else names(containers)
    assert start.decide(record, seen, policy, A, SHOWN, named) == wanted


def test_the_first_of_two_contested_starts_gets_time_to_appear():
    """The other pod may have been admitted under the name of this one."""
    assert start.decide(DOUBLED_IN_USE, HERE, PER_POD, A, later(STARTS_WITHIN - 0.1), names(1)) == BUSY
    assert start.decide(DOUBLED_IN_USE, HERE, PER_POD, A, SHOWN, names(1)) == CONTESTED_AGAIN


def test_a_contested_device_stays_contested_after_its_scrub():
    scrubbing = live(RESTARTED, ev.ScrubStarted(lives.job()))
    clean = live(scrubbing, lives.passed(scrubbing))
    granted = live(clean, ev.Granted(replace(lives.grant(clean), at_start=True)))
    in_use = live(granted, ev.PutInUse(Owner(A, lives.NOW, seen=True)))
    assert start.decide(in_use, HERE, CACHED, A, SHOWN, names(1)) == CONTESTED_AGAIN


def test_under_observe_a_contested_device_starts_unscrubbed():
    assert start.decide(DOUBLED_IN_USE, HERE, OBSERVE, A, later(1), names(1)) == Proceed()
    released = start.decide(DOUBLED_IN_USE, HERE, OBSERVE, A, SHOWN, names(1))
    assert released == CONTESTED_AGAIN
    unproven = start.decide(RESTARTED, facts(), OBSERVE, A, later(1), names(1))
    assert isinstance(unproven, Admit)
    assert unproven.handed_out is not None
    assert unproven.handed_out.unproven


EARLIER = live(lives.IN_USE, ev.Released("its pod is gone"), ev.ScrubStarted(lives.job()))
CLEAN_AGAIN = live(EARLIER, lives.passed(EARLIER))
GRANTED_AGAIN = live(CLEAN_AGAIN, ev.Granted(lives.grant(CLEAN_AGAIN)))
AT_START = live(CLEAN_AGAIN, ev.Granted(replace(lives.grant(CLEAN_AGAIN), at_start=True)))
DEFERRED = live(AT_START, ev.PutInUse(Owner(A, lives.NOW)), ev.Deferred())
DEFERRED_AT_START = live(CLEAN_AGAIN, ev.Deferred(), ev.Granted(replace(lives.grant(CLEAN_AGAIN), at_start=True)))
NO_OWNER = "cannot start on GPU-1: the kubelet's checkpoint "
OLD = Refuse(
    Reason.OWNER_UNKNOWN,
    NO_OWNER + "is older than its last Allocate, so its owner is not known",
    (start.TRIES_AGAIN,),
)
ENDED = Refuse(Reason.OWNER_UNKNOWN, NO_OWNER + "names a pod for it that has ended", (start.TRIES_AGAIN,))
TICK = ownership.CLOCK_TICK
# When the kubelet wrote the checkpoint, in seconds after the grant, and by how many the wall clock was set since.
WRITTEN = rows(
    ("within the resolution of a file system", lives.GRANTED, -TICK, 0, ADMIT),
    ("before the grant", lives.GRANTED, -TICK - 0.01, 0, OLD),
    ("before the grant, and the owner restarts", lives.IN_USE, -TICK - 0.01, 0, OLD),
    ("after the grant, the clock was set back before", lives.GRANTED, 1 - 3600, -3600, ADMIT),
    ("after the grant, the clock was set forward later", lives.GRANTED, 1, 3600, ADMIT),
    ("before the grant, the clock was set back", lives.GRANTED, -3600 - TICK - 0.01, -3600, OLD),
    ("for a grant by a start there is no Allocate", AT_START, -TICK - 1, 0, ADMIT),
    ("before a deferral, and the owner restarts", DEFERRED, -TICK - 0.01, 0, OLD),
    ("before a deferral that a start has granted", DEFERRED_AT_START, -TICK - 0.01, 0, OLD),
    ("within the resolution, for the same", DEFERRED_AT_START, -TICK, 0, ADMIT),
)  # fmt: skip


@pytest.mark.parametrize(("record", "after", "jump", "wanted"), WRITTEN)
def test_a_checkpoint_older_than_allocate_names_no_owner(record, after, jump, wanted):
    now = later(1)
    answer = start.decide(record, HERE, CACHED, A, replace(now, wall=now.wall + jump), names(1, lives.NOW.wall + after))
    if isinstance(wanted, Admit):
        assert isinstance(answer, Admit)
    else:
        assert answer == wanted


LAST = rows(
    ("nothing of it runs", GRANTED_AGAIN, facts(), ENDED),
    ("nobody can say what runs", GRANTED_AGAIN, facts(None), ENDED),
    ("a static pod was made again, and its sandbox runs", GRANTED_AGAIN, seen_starting_pod(),
     Admit(ev.PutInUse(Owner(A, later(1), seen=True)))),
)  # fmt: skip


@pytest.mark.parametrize(("record", "seen", "wanted"), LAST)
def test_the_last_owner_owns_no_new_grant_after_its_end(record, seen, wanted):
    assert start.decide(record, seen, CACHED, A, later(1), names(1)) == wanted


def test_under_observe_no_stale_checkpoint_makes_an_owner():
    assert start.decide(lives.GRANTED, facts(), OBSERVE, A, later(1), names(1, 0.0)) == OLD


def test_processes_that_policy_protects_block_a_restart():
    policy = CACHED.model_copy(update={"evict": Evict(leftovers=Eviction.WAIT)})
    assert start.decide(lives.IN_USE, facts((LEFTOVER,)), policy, A, later(1)) == BUSY


CLAIMS = rows(
    ("one pod", {"GPU-1": {"a"}, "GPU-2": {"a"}}, "a"),
    ("nobody", {"GPU-1": set()}, Reason.OWNER_UNKNOWN),
    ("one of two is nobody's", {"GPU-1": {"a"}, "GPU-2": set()}, Reason.OWNER_UNKNOWN),
    ("two pods on one of two devices", {"GPU-1": {"a"}, "GPU-2": {"a", "b"}}, Reason.OWNER_AMBIGUOUS),
    ("R8 two pods on one device", {"GPU-1": {"a", "b"}}, Reason.OWNER_AMBIGUOUS),
    ("two devices of two pods", {"GPU-1": {"a"}, "GPU-2": {"b"}}, Reason.OWNER_AMBIGUOUS),
)


@pytest.mark.parametrize(("owners", "wanted"), CLAIMS)
def test_the_starting_pod(owners, wanted):
    found = start.starting_pod({device: frozenset(pods) for device, pods in owners.items()})
    assert (found.reason if isinstance(found, (Wait, Refuse)) else found) == wanted


SICK_CLAIM = live(lives.OF_CLAIM, ev.AilmentFound(lives.LOST))
NAME = "team/pod-a/main"
CREATED = Admit(ev.PutInUse(Owner(A, later(1), name=NAME)))
STARTED_CLAIM = live(lives.OF_CLAIM, ev.PutInUse(Owner(A, lives.NOW, seen=True, name=NAME)))
SEEN_ON_CLAIM = live(lives.OF_CLAIM, ev.PutInUse(Owner(None, lives.NOW)))
A_ON_CLAIM, B_ON_CLAIM = (live(lives.OF_CLAIM, ev.PutInUse(Owner(it, lives.NOW, seen=True))) for it in (A, B))
USED = replace(facts(), used_at=lives.NOW.uptime + 1)
