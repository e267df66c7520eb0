"""What ``--for-update`` says of GPUs that no committed state has: with a fence, and with pods."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from autoclave.doctor.facts import update_facts
from autoclave.doctor.finding import Finding, Level
from autoclave.doctor.findings import update_checks
from ground import boot
from policies import load
from policies.values import FenceMode
from scrubber.core.events import NODE, LedgerEntry, PolicyInForce
from scrubber.core.model import Ailment, AilmentKind, Grant, Moment, Owner, Quarantine, ScrubPath, State
from scrubber.core.record import Record
from scrubber.core.use_counter import UseCounter
from scrubber.ledger import opening, reading
from scrubber.ledger.reading import LedgerFile
from scrubber.policy import digest_of
from tests import older_states

NEWEST = older_states.ALL[-1]


@pytest.fixture
def findings(tmp_path, monkeypatch):
    """These findings, of a state whose only GPU is a clean one that was changed."""
    older_states.unpack(NEWEST, tmp_path / "state")
    ledger = reading.read(tmp_path / "state/ledger.db")
    [clean, *_] = [it for it in ledger.records.values() if it.state is State.CLEAN]
    monkeypatch.setattr(boot, "boot_id", lambda: clean.incarnation.boot_id)

    monkeypatch.setattr(boot, "uptime", lambda: 1000.0)

    def judged(name: str, change: Callable[[Record], Record]) -> list[Finding]:
        update = update_facts.gather(replace(ledger, records={"a": change(clean)}), None, "default", None, {})
        return [it for it in update_checks.judge(update) if it.name == name]

    return judged


def with_receipt(record, receipt):
    return replace(record, scrubs=replace(record.scrubs, receipt=receipt))


def granted(record, *, announced):
    grant = Grant("g", record.since, "epoch", announced=announced, receipt=None)
    return replace(record, state=State.GRANTED, tenancy=replace(record.tenancy, grant=grant))


def used_by(record, owner):
    return replace(record, state=State.IN_USE, tenancy=replace(record.tenancy, owner=owner))


def test_a_quarantine_that_waits_for_its_owner_is_named(findings):
    ailment = Ailment(AilmentKind.OPERATOR, "its fan sounds odd")
    [found] = findings("quarantine", lambda it: replace(it, health=replace(it.health, ailment=ailment)))
    assert found.text.endswith(
        " is quarantined as soon as its owner has ended, as before the update: operator: its fan sounds odd"
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda it: with_receipt(it, replace(it.scrubs.receipt, witness=UseCounter.FENCE.value)),
            "unless the fence stays",
        ),
        (lambda it: with_receipt(it, None), "because the policy demands another proof"),
        (lambda it: replace(it, state=State.DIRTY), "because the present state is dirty"),
        (lambda it: granted(it, announced=True), "because no container of the pod has started yet"),
        (lambda it: granted(it, announced=False), None),
        (lambda it: used_by(it, Owner("uid", it.since)), None),
    ],
)
def test_each_state_says_whether_a_scrub_follows(findings, change, says):
    [found] = findings("scrub", change)
    assert (says in found.text) if says else found.text == "no scrub follows the update"


def quarantined(record, due, *, path=None, boot_id=None, kind=AilmentKind.XID):
    out = Quarantine(Ailment(kind, "why"), record.since, "autoclave", next_probe=due)
    record = replace(record, state=State.QUARANTINED, health=replace(record.health, quarantine=out))
    record = replace(record, scrubs=replace(record.scrubs, due_path=path))
    return replace(record, incarnation=replace(record.incarnation, boot_id=boot_id)) if boot_id else record


@pytest.mark.parametrize(
    ("change", "level", "says"),
    [
        (lambda it: quarantined(it, 900.0, path=ScrubPath.RESET), Level.WARNING, "by a reset, because the test"),
        (lambda it: quarantined(it, 1600.0, path=ScrubPath.RESET), Level.WARNING, "by a reset, because the test"),
        (lambda it: quarantined(it, 900.0, path=ScrubPath.SLOW), Level.OK, "by a self-test, because the test"),
        (lambda it: quarantined(it, 1601.0, path=ScrubPath.RESET), Level.OK, "no scrub follows the update"),
        (lambda it: quarantined(it, 900.0, kind=AilmentKind.LOST), Level.OK, "no scrub follows the update"),
        (lambda it: quarantined(it, None), Level.OK, "no scrub follows the update"),
        (lambda it: quarantined(it, 900.0, boot_id="another"), Level.OK, "no scrub follows the update"),
    ],
)
def test_a_test_that_comes_with_the_update_is_said(findings, change, level, says):
    [found] = findings("scrub", change)
    assert (found.level, says in found.text) == (level, True)


@pytest.mark.parametrize(
    ("change", "owner"),
    [
        (lambda it: used_by(it, Owner("uid-1", it.since, pod="ml/train")), "the pod ml/train,"),
        (lambda it: used_by(it, Owner("uid-1", it.since)), "the pod uid-1,"),
        (lambda it: used_by(it, Owner(None, it.since)), "a user without a name,"),
        (lambda it: granted(it, announced=True), "the pod that it was granted to,"),
    ],
)
def test_each_owner_is_named_as_well_as_it_is_known(findings, change, owner):
    [found] = findings("owner", change)
    assert f" stays with {owner.rstrip(',')} if the run directory stays," in found.text


@pytest.fixture
def in_force(tmp_path):
    """A ledger whose newest row about a policy is this one."""

    def written(name: str, digest: str) -> LedgerFile:
        at, path = Moment(1.0, 1.0), tmp_path / "ledger.db"
        store, _ = opening.open_or_set_aside(path, at)
        store.append([LedgerEntry(0, NODE, at, "", PolicyInForce(name, digest))])
        store.close()
        return reading.read(path)

    return written


@pytest.mark.parametrize(
    ("mode", "values", "says"),
    [
        (FenceMode.WATCH, None, "does not change whom the policy default keeps off"),
        (FenceMode.WATCH, "policy: {fence: watch}", "does not change whom the policy default keeps off"),
        (FenceMode.WATCH, "{}", "holds pods from this update on .*Before, under the policy default, nobody was kept"),
        (FenceMode.HOLD, "policy: {fence: watch}", "only watches .*default, pods were held$"),
        (FenceMode.REFUSE, "{}", "holds pods .*default, pods and programs of the host were refused$"),
    ],
)
def test_the_digest_tells_the_fence_of_the_last_service(in_force, tmp_path, mode, values, says):
    file = tmp_path / "values.yaml"
    file.write_text(values or "")
    ledger = in_force("default", digest_of(load.load("default").fenced(mode)))
    update = update_facts.gather(ledger, None, None, file if values else None, {})
    [found] = [it for it in update_checks.judge(update) if it.name == "fence"]
    assert re.search(says, found.text)


def test_a_last_policy_that_is_nowhere_is_not_guessed(in_force):
    update = update_facts.gather(in_force("mine", "0123"), None, None, None, {})
    [found] = [it for it in update_checks.judge(update) if it.name == "policy"]
    assert (found.level, "the last policy of the node, mine, is not in its state" in found.text) == (
        Level.WARNING,
        True,
    )
