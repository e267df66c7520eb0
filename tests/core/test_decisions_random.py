"""What holds of every life and of every decision, whatever has happened, whatever is seen, whatever policy says."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.policy_model import Mode
from scrubber.core import acquire, answers, next_action, next_scrub, offering, pauses, proof, start, verdict
from scrubber.core import events as ev
from scrubber.core.acquire import ForPod
from scrubber.core.model import State, Step
from tests.core import lives
from tests.core.lives import ENFORCE, LIVES, NOW, OBSERVE, A, B, facts, later, live

RECORD, SEEN, BLIND, POLICY, MOMENT = (
    lives.records(),
    lives.observations(),
    lives.observations(st.none()),
    lives.policies(),
    lives.moments(),
)
CHANCE = st.floats(0, 1, exclude_max=True)
CROWD = st.lists(st.sampled_from([lives.OF_B, lives.LEFTOVER, lives.FOREIGN]), max_size=2).map(
    lambda it: (lives.OF_A, *it)
)
CROWDED = lives.observations(CROWD)
NAMED = [
    record
    for record in LIVES.values()
    if record.tenancy.owner is not None and record.tenancy.owner.container is not None
]
USED_BY_B = [record for record in NAMED if record.tenancy.owner and record.tenancy.owner.unannounced]
OWNED = [record for record in NAMED if record.tenancy.owner and not record.tenancy.owner.unannounced]
GRANTED = [record for record in LIVES.values() if record.state is State.GRANTED]
RUNNING = [record for record in LIVES.values() if record.scrubs.job is not None]
IN_USE = {State.GRANTED, State.IN_USE}
DEEDS = (answers.Scrub, answers.StartProbation)
ENOUGH = 5  # notes that one question may lead to


def everything_asked(record, seen, policy, now, chance=0.0):
    """The answers to all questions about a device, by question."""
    return {
        "acquire": acquire.decide(record, seen, policy, now, ForPod()),
        "start": start.decide(record, seen, policy, A, now),
        "tend": next_action.tend(record, seen, policy, now, chance),
        "release": acquire.take_back(record, seen, now),
    }


def events_of(record, answer):
    """What the service would record of an answer."""
    match answer:
        case answers.Admit(event, handed_out) if handed_out is not None:
            return (*events_of(record, handed_out), event)
        case answers.RecordFirst(event) | answers.Admit(event):
            return (event,)
        case answers.HandOut(unproven=None):
            return (ev.Granted(lives.grant(record)),)
        case answers.HandOut(str(why)):
            return (ev.GrantedUnproven(lives.grant(record, proven=False), why),)
        case answers.Scrub(path, trigger):
            return (ev.ScrubStarted(lives.job(path, trigger, "job-9")),)
        case answers.StartProbation(path):
            return (ev.ProbationStarted(lives.job(path, name="job-9"), "autoclave"),)
    return ()


def settle(ask, record, now):
    """Ask until the answer is no note, as the service does; the record then, and the answer."""
    noted = []
    for _ in range(ENOUGH):
        answer = ask(record)
        if not isinstance(answer, answers.RecordFirst):
            return record, answer
        noted.append(answer.event)
        record = live(record, answer.event, at=now)
    raise AssertionError(f"it does not settle: {noted}")


@given(RECORD, BLIND, POLICY, MOMENT)
def test_nothing_is_done_to_a_device_with_unknown_holders(record, seen, policy, now):
    said = everything_asked(record, seen, policy, now)
    for answer in said.values():
        assert answer != answers.HandOut(unproven=None)
        assert not isinstance(answer, DEEDS)
    assert said["start"] != answers.Proceed() or policy.mode is Mode.OBSERVE
    if record.state in {State.GRANTED, State.IN_USE}:
        assert said["release"] != answers.Proceed()


@given(RECORD, CROWDED, POLICY, MOMENT)
def test_no_device_that_a_live_container_uses_is_changed(record, seen, policy, now):
    for answer in everything_asked(record, seen, policy, now).values():
        assert not isinstance(answer, DEEDS)
        assert not isinstance(answer, answers.RecordFirst) or not isinstance(answer.event, ev.Released)
    assert not any(next_scrub.terminable(holder, record, policy) for holder in seen.holders if holder.container)


@given(st.sampled_from(OWNED), SEEN, st.sampled_from([True, None]), POLICY, MOMENT)
def test_no_device_whose_owner_may_live_is_changed(record, seen, alive, policy, now):
    """Unless the owner itself starts anew, and no container is on it."""
    seen = replace(seen, incarnation=record.incarnation, owner_alive=alive)
    for question, answer in everything_asked(record, seen, policy, now).items():
        assert not isinstance(answer, DEEDS)
        if isinstance(answer, answers.RecordFirst) and isinstance(answer.event, ev.Released):
            assert question == "start"
            assert record.tenancy.owner.container == A
            assert all(holder.container is None for holder in seen.holders)


@given(st.sampled_from(USED_BY_B), SEEN, POLICY, MOMENT)
def test_only_an_unannounced_pod_loses_a_device_while_alive(record, seen, policy, now):
    seen = replace(seen, incarnation=record.incarnation, owner_alive=True)
    for answer in everything_asked(record, seen, policy, now).values():
        assert not isinstance(answer, DEEDS)
        if isinstance(answer, answers.RecordFirst) and isinstance(answer.event, ev.Released):
            assert (record.tenancy.grant.announced, record.tenancy.grant.epoch, seen.holders) == (True, seen.epoch, ())
            assert record.tenancy.grant.receipt is not None
            assert seen.assigned_pods is not None
            assert record.tenancy.owner.container not in seen.assigned_pods


@given(RECORD, SEEN, POLICY, MOMENT, CHANCE)
def test_no_message_for_tenants_names_a_process_or_container(record, seen, policy, now, chance):
    for answer in everything_asked(record, seen, policy, now, chance).values():
        if isinstance(answer, answers.Wait | answers.Refuse):
            assert record.device.uuid in answer.message
            for holder in (lives.OF_A, lives.OF_B, lives.LEFTOVER, lives.FOREIGN):
                assert holder.command not in answer.message
                assert str(holder.pid) not in answer.message
            assert A not in answer.message
            assert B not in answer.message


@given(RECORD, SEEN, MOMENT)
def test_policy_observe_refuses_only_quarantined_devices(record, seen, now):
    seen = replace(seen, incarnation=record.incarnation)
    record, answer = settle(lambda it: acquire.decide(it, seen, OBSERVE, now, ForPod()), record, now)
    if record.state is State.QUARANTINED:
        assert isinstance(answer, answers.Refuse)
    else:
        assert isinstance(answer, answers.HandOut | answers.Join)


@given(RECORD, POLICY, MOMENT)
def test_i3_no_sick_quarantined_or_unproven_device_is_offered(record, policy, now):
    offer = offering.offer(record, policy, now)
    assert offer.why
    unproven = policy.mode is Mode.ENFORCE and record.state is State.UNKNOWN
    if unproven or record.health.quarantine is not None or record.health.ailment is not None:
        assert not offer.healthy
    elif record.state in {State.CLEAN, State.GRANTED, State.IN_USE}:
        assert offer.healthy


@given(RECORD, SEEN, POLICY, MOMENT, CHANCE)
def test_whatever_is_decided_can_be_recorded(record, seen, policy, now, chance):
    for answer in everything_asked(record, seen, policy, now, chance).values():
        live(record, *events_of(record, answer), at=now)


@given(RECORD, SEEN, POLICY, MOMENT, CHANCE)
def test_every_decision_ends(record, seen, policy, now, chance):
    settle(lambda it: acquire.decide(it, seen, policy, now, ForPod()), record, now)
    settle(lambda it: start.decide(it, seen, policy, A, now), record, now)
    settle(lambda it: acquire.take_back(it, seen, now), record, now)
    settle(lambda it: next_action.tend(it, seen, policy, now, chance), record, now)


@given(st.sampled_from(GRANTED), lives.observations(st.just(())), MOMENT)
def test_i1_enforced_starts_on_a_grant_need_a_valid_proof(record, seen, now):
    answer = start.decide(record, seen, ENFORCE, A, now)
    if isinstance(answer, answers.Admit):
        assert proof.is_valid(record.scrubs.receipt, seen, ENFORCE, now)


@given(RECORD, SEEN, MOMENT)
def test_i1_enforced_handouts_need_a_valid_proof_and_no_holder(record, seen, now):
    if acquire.decide(record, seen, ENFORCE, now, ForPod()) == answers.HandOut():
        assert seen.holders == ()
        assert record.health.ailment is None
        assert seen.incarnation == record.incarnation == record.scrubs.receipt.incarnation
        assert proof.is_valid(record.scrubs.receipt, seen, ENFORCE, now)


@given(RECORD, SEEN, st.sampled_from(Step))
def test_i2_a_step_runs_only_without_other_jobs_or_holders(record, seen, step):
    if verdict.veto(record, "job-1", step, seen) is None:
        assert record.scrubs.job.id == "job-1"
        assert seen.holders is not None
        assert not any(holder.container for holder in seen.holders)
        assert step is Step.EVICT or seen.holders == ()
        assert step is not Step.RESET or seen.siblings_busy is False


@given(st.sampled_from(RUNNING), MOMENT)
def test_i5_i6_an_interrupted_job_leaves_no_clean_device(record, now):
    after = live(record, next_action.interruption(record, "killed", now), at=now)
    assert after.state is (State.DIRTY if record.health.quarantine is None else State.QUARANTINED)
    assert (after.scrubs.job, after.scrubs.receipt) == (None, None)


# -- any life


@given(lives.walks())
def test_the_fields_of_a_record_always_fit_its_state(walk):
    for _, _, record in walk:
        proven = record.tenancy.grant is not None and record.tenancy.grant.receipt is not None
        assert (record.scrubs.receipt is not None) == (
            record.state is State.CLEAN or (record.state is State.GRANTED and proven)
        ), "a receipt is held while it stands, and at no other time"
        assert (record.scrubs.job is not None) == (record.state is State.SCRUBBING)
        assert (record.tenancy.owner is not None) == (record.state is State.IN_USE)
        assert record.health.quarantine is not None or record.state is not State.QUARANTINED
        assert record.health.quarantine is None or record.state in {State.QUARANTINED, State.SCRUBBING}
        assert record.tenancy.grant is None or record.state in IN_USE
        assert record.tenancy.began is not None or record.state not in IN_USE
        assert record.health.ailment is None or record.state in IN_USE | {State.DIRTY, State.UNKNOWN}


@given(lives.walks())
def test_i1_every_grant_is_proven_or_marked_as_unproven(walk):
    for before, event, after in walk:
        if after.state is State.GRANTED and before.state is not State.GRANTED:
            marked = isinstance(event, ev.GrantedUnproven) and after.tenancy.grant.receipt is None
            assert marked or (before.state is State.CLEAN and after.tenancy.grant.receipt == before.scrubs.receipt.id)


@given(lives.walks())
def test_only_a_passed_job_with_its_receipt_makes_clean(walk):
    for before, event, after in walk:
        if after.state is State.CLEAN and before.state is not State.CLEAN:
            assert isinstance(event, ev.ScrubPassed)
            assert event.receipt.job == before.scrubs.job.id
            assert after.scrubs.receipt == event.receipt
            assert after.scrubs.receipt.incarnation == after.incarnation


# -- liveness: nothing is stuck for ever once it is free and well

STUCK_BY_INTENT = {"STICKY": "a person took it out", "REINSTATED": "its job ends first"}


def years_later(record, policy=ENFORCE):
    """Tend a free, well device until it is clean or nothing more happens; its record then."""
    seen = facts(alive=False)
    for day in range(1, 8):
        now = later(86_400.0 * day)
        seen = replace(seen, incarnation=record.incarnation, observed_since=0.0)
        record, answer = settle(lambda it: next_action.tend(it, seen, policy, now, 0.5), record, now)  # noqa: B023 - used now
        if record.scrubs.job is not None:
            return live(record, lives.passed(record, now), at=now)
        record = live(record, *events_of(record, answer), at=now)
    return record


@pytest.mark.parametrize("name", [name for name in LIVES if name not in STUCK_BY_INTENT])
def test_a_free_healthy_device_becomes_clean_or_stays_granted(name):
    record = years_later(LIVES[name])
    waiting_for_its_owner = record.state in {State.GRANTED, State.IN_USE} and record.health.ailment is None
    assert record.state is State.CLEAN or waiting_for_its_owner


@pytest.mark.parametrize("incarnation", [lives.REBOOTED, lives.RELOADED], ids=["reboot", "reload"])
@pytest.mark.parametrize("name", LIVES)
def test_the_clock_of_another_boot_delays_no_device(name, incarnation):
    """A minute after a boot the clock shows less than anything that was recorded before it."""
    record = LIVES[name]
    early = replace(NOW, uptime=60.0)
    if record.scrubs.job is not None:
        record = live(record, next_action.interruption(record, "killed", early), at=early)
    seen = facts(incarnation=incarnation, since=50.0)
    record, answer = settle(lambda it: next_action.tend(it, seen, ENFORCE, early, 0.5), record, early)
    if name not in STUCK_BY_INTENT and record.health.quarantine is None:
        assert isinstance(answer, answers.Scrub)
    elif name not in STUCK_BY_INTENT:
        assert record.health.quarantine.next_probe <= early.uptime + pauses.INTERRUPTED_LONGEST
