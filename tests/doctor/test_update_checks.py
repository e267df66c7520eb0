"""What ``--for-update`` says of GPUs that no committed state has: with a fence, and with pods."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from autoclave.doctor.facts import update_facts
from autoclave.doctor.findings import update_checks
from ground import boot
from scrubber.core.model import Grant, Owner, State
from scrubber.core.record import Record
from scrubber.core.witness import Witness
from scrubber.ledger import reading
from tests import older_states

NEWEST = older_states.OF_ONE_STORY[-1]


@pytest.fixture
def findings(tmp_path, monkeypatch):
    """The texts of these findings, of a state whose only GPU is a clean one that was changed."""
    older_states.unpack(NEWEST, tmp_path / "state")
    ledger = reading.read(tmp_path / "state/ledger.db")
    [clean, *_] = [it for it in ledger.records.values() if it.state is State.CLEAN]
    monkeypatch.setattr(boot, "boot_id", lambda: clean.incarnation.boot_id)

    def judged(name: str, change: Callable[[Record], Record]) -> list[str]:
        update = update_facts.gather(replace(ledger, records={"a": change(clean)}), "default", None, {})
        return [it.text for it in update_checks.judge(update) if it.name == name]

    return judged


def with_receipt(record, receipt):
    return replace(record, scrubs=replace(record.scrubs, receipt=receipt))


def granted(record, *, announced):
    grant = Grant("g", record.since, "epoch", announced=announced, receipt=None)
    return replace(record, state=State.GRANTED, tenancy=replace(record.tenancy, grant=grant))


def used_by(record, owner):
    return replace(record, state=State.IN_USE, tenancy=replace(record.tenancy, owner=owner))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda it: with_receipt(it, replace(it.scrubs.receipt, witness=Witness.FENCE.value)),
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
    [text] = findings("scrub", change)
    assert (says in text) if says else text == "no scrub follows the update"


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
    [text] = findings("owner", change)
    assert f" stays with {owner.rstrip(',')} if the run directory stays," in text
