"""What is said of a node: above all what a live service shows only after a while, or never on simulated GPUs."""

from dataclasses import replace

import pytest

from autoclave.doctor import base
from autoclave.doctor.base import Level
from autoclave.doctor.findings import roster
from scrubber.core import views
from scrubber.ground.errors import NotReady, Reason, Refused
from tests.doctor.nodes import DENIED, FACTS, GPU, NOW, RECEIPT, STATUS, of_others


@pytest.fixture
def facts():
    """A node on which all is well."""
    return FACTS


def of_device(facts, later=0.0, **changes):
    """What is said of a GPU, as level and text."""
    status = replace(STATUS, devices=(replace(GPU, **changes),))
    judged = roster.judge(replace(facts, now=NOW + later, answer=status))
    return [(it.level, it.text) for it in judged if it.name == "device"]


def test_a_healthy_node_gets_one_ok_finding_of_each_check(facts):
    found = roster.judge(facts)
    assert sorted(it.name for it in found) == sorted({it.name for it in found})
    assert len(found) == len(roster.CHECKS)
    assert roster.worst(found) is Level.OK


def test_a_node_with_other_gpus_skips_the_nvidia_checks():
    nvidias = {
        "driver", "cupy", "scrub-on-free", "coherent-memory", "vgpu-host", "mps", "persistence", "container-toolkit",
        "cdi", "reset", "ecc", "pid-namespace", "privileges", "cgroups", "kernel-log",
    }  # fmt: skip
    everything = {it.name for it in roster.judge(FACTS)}
    assert everything - {it.name for it in roster.judge(of_others())} == nvidias


@pytest.mark.parametrize("state", ["unknown", "dirty"])
def test_a_gpu_left_unknown_or_dirty_becomes_a_warning(facts, state):
    changes = {"state": state, "healthy": False, "receipt": None}
    assert [level for level, _ in of_device(facts, 60.0, **changes)] == [Level.OK]
    said = f"GPU 3 (GPU-1) has been {state} for more than 60 seconds"
    assert of_device(facts, 60.1, **changes) == [(Level.WARNING, said)]


@pytest.mark.parametrize("state", ["unknown", "dirty"])
def test_a_failed_scrub_is_a_warning_at_once(facts, state):
    """Each try begins its time in that state anew, so that no clock would ever show that it has been out for hours."""
    said = f"GPU 3 (GPU-1) is {state} and not offered: used by x"
    results = of_device(facts, 1.0, state=state, healthy=False, receipt=None, setback="used by x")
    assert results == [(Level.WARNING, said)]


@pytest.mark.parametrize("state", ["clean", "granted", "in_use"])
def test_a_scrubbed_gpu_that_is_not_offered_is_a_warning(facts, state):
    said = f"GPU 3 (GPU-1) is {state} and not offered to the kubelet: sick: xid 79"
    assert of_device(facts, state=state, healthy=False, why="sick: xid 79") == [(Level.WARNING, said)]
    assert [level for level, _ in of_device(facts, state=state)] == [Level.OK]


def test_a_gpu_granted_without_a_proof_is_a_warning(facts):
    said = "GPU 3 (GPU-1) was handed out without a proof"
    assert of_device(facts, state="granted", receipt=None) == [(Level.WARNING, said)]
    assert [level for level, _ in of_device(facts, state="in_use", receipt=None)] == [Level.OK]


def test_a_proof_of_too_little_memory_is_a_warning(facts):
    assert [level for level, _ in of_device(facts, receipt=replace(RECEIPT, covered_bytes=995))] == [Level.OK]
    said = "the proof of GPU 3 (GPU-1) covers 99.40% of its memory, less than 99.50%"
    assert of_device(facts, receipt=replace(RECEIPT, covered_bytes=994)) == [(Level.WARNING, said)]


def test_an_unsupported_setting_is_a_warning(facts):
    results = of_device(facts, receipt=replace(RECEIPT, unsupported=("a lock is not supported by this GPU",)))
    assert results == [(Level.WARNING, "GPU 3 (GPU-1): a lock is not supported by this GPU; its scrubs leave it out")]


def test_a_quarantine_is_a_warning_that_leads_to_its_explanation(facts):
    out = views.QuarantineStatus("gremlins", "they bite", 0.0, "autoclave", 0, sticky=True, next_probe_seconds=None)
    assert of_device(facts, state="scrubbing", healthy=False, quarantine=out) == [
        (Level.WARNING, "GPU 3 (GPU-1) is quarantined: gremlins: they bite")
    ]
    device = replace(STATUS.devices[0], quarantine=replace(out, reason="xid"))
    [found] = [
        it for it in roster.judge(replace(facts, answer=replace(STATUS, devices=(device,)))) if it.name == "device"
    ]
    assert found.remedy == "`autoclave explain 3` says what happened and what to do"


def test_a_node_without_a_gpu_is_a_warning(facts):
    found = roster.judge(replace(facts, answer=replace(STATUS, devices=())))
    assert [it.level for it in found if it.name == "device"] == [Level.WARNING]


@pytest.mark.parametrize("name", ["run_dir", "kubelet_dir", "kubelet", "checkpoint", "plugin"])
def test_denied_access_is_broken_and_asks_for_another_user(facts, name):
    fact = DENIED if name == "checkpoint" else replace(getattr(facts, name), fault=DENIED)
    found = roster.judge(replace(facts, **{name: fact}))
    assert {it.remedy for it in found if it.level is Level.BROKEN} == {base.OTHER_USER}


def test_a_report_without_findings_is_broken():
    assert roster.worst([]) is Level.BROKEN


@pytest.mark.parametrize(
    ("error", "results"),
    [
        (NotReady(Reason.TIMED_OUT, "the scrub service did not answer in time"), "did not answer in time"),
        (Refused(Reason.INTERNAL, "the scrub service failed: x; y"), "the scrub service failed: x; y"),
    ],
)
def test_a_service_that_answers_with_an_error_is_broken(facts, error, results):
    found = roster.judge(replace(facts, answer=error))
    [broken] = [it for it in found if it.level is not Level.OK]
    assert (broken.name, results in broken.text) == ("service", True)
    assert not {it.name for it in found} & {
        "scrubber-socket",
        "ledger",
        "ledger-set-aside",
        "policy",
        "concession",
        "device",
    }
