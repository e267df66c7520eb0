"""What is said of a service that answers: its ledger, its policy, and the pods on its devices."""

from dataclasses import replace

import pytest

from autoclave.doctor import base
from autoclave.doctor.base import Level
from autoclave.doctor.findings import roster
from scrubber.core import views
from scrubber.ground.errors import LedgerUnavailable, Unreachable
from tests.doctor.nodes import FACTS, STATUS, only


@pytest.mark.parametrize(
    ("changes", "name", "level", "words"),
    [
        ({"ledger_fault": "disk is full"}, "ledger", Level.BROKEN, "nothing is handed out: disk is full"),
        ({"policy_fault": "a:1: x\na:2: y"}, "policy", Level.BROKEN, "the old one is: a:1: x; a:2: y"),
        (
            {"set_aside": ("ledger.db.corrupt-1",)},
            "ledger-set-aside",
            Level.WARNING,
            "set aside as ledger.db.corrupt-1",
        ),
        ({"policy_fault": "site.yaml:1: x"}, "policy", Level.BROKEN, "the old one is: site.yaml:1: x"),
        (
            {"unlisted": (views.UnlistedProgram("/usr/bin/x", "site", "write it into the policy"),)},
            "bystanders",
            Level.WARNING,
            "/usr/bin/x had a GPU open in the namespace site",
        ),
        ({"concessions": ("mode observe",)}, "concession", Level.WARNING, "gives up a promise: mode observe"),
    ],
)
def test_each_fault_that_the_service_reports_is_a_finding(changes, name, level, words):
    assert only(FACTS, name)[0] is Level.OK
    found = only(replace(FACTS, answer=replace(STATUS, service=replace(STATUS.service, **changes))), name)
    assert (found[0], words in found[1]) == (level, True)


def test_a_ledger_fault_that_names_its_remedy_gets_no_other():
    service = replace(STATUS.service, ledger_fault="it is locked; close that program")
    [found] = [
        it for it in roster.judge(replace(FACTS, answer=replace(STATUS, service=service))) if it.name == "ledger"
    ]
    assert found.text.endswith("it is locked")
    assert found.remedy == "close that program"


def test_an_unusable_ledger_is_broken_but_its_service_is_ok():
    facts = replace(FACTS, answer=LedgerUnavailable("cannot open /s/ledger.db"))
    assert only(facts, "ledger") == (Level.BROKEN, "there is no ledger, so cannot open /s/ledger.db")
    assert only(facts, "service")[0] is Level.OK
    assert not {it.name for it in roster.judge(facts)} & {"policy", "device", "concession"}


def test_a_service_that_does_not_run_names_its_last_error():
    silent = replace(FACTS, answer=Unreachable("cannot reach the scrub service; start it"))
    assert only(silent, "service") == (Level.BROKEN, "cannot reach the scrub service")
    ended = replace(silent, last_error=base.LastError("cannot use it: no driver; load it", 0.0))
    [found] = [it for it in roster.judge(ended) if it.name == "service"]
    assert found.text.startswith("the scrub service does not run. It ended at 19")
    assert found.text.endswith(": cannot use it: no driver")
    assert found.remedy == "load it"


@pytest.mark.parametrize(
    ("device", "pods", "answer", "level"),
    [
        ("GPU-1", {"pod-1"}, STATUS, Level.OK),
        ("GPU-1", {"pod-1", "pod-2"}, STATUS, Level.BROKEN),
        ("0", {"pod-1", "pod-2"}, STATUS, Level.OK),  # of another resource
        ("0", {"pod-1", "pod-2"}, Unreachable("no service"), Level.BROKEN),  # any device may be ours
    ],
)
def test_two_pods_on_one_device_give_a_broken_finding(device, pods, answer, level):
    facts = replace(FACTS, checkpoint={device: frozenset(pods)}, answer=answer)
    assert only(facts, "double-allocation")[0] is level
