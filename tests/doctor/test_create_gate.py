"""What the doctor finds out about the create gate, with the real service and program, and what it says."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from autoclave.doctor.facts import create_gate
from autoclave.doctor.finding import Level
from autoclave.doctor.node_facts import CheckFault, CreateGateFacts
from ground.errors import Unreachable
from scrubber.create_gate.installation import SPECIFICATION
from tests.create_gate.programs import SOURCE, compiled
from tests.doctor.nodes import GPU, STATUS, at, finding_of, stands
from tests.live import Service


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program of the create gate."""
    return compiled(tmp_path_factory.mktemp("gate") / "autoclave-gate", SOURCE)


@pytest.fixture
def service(short_tmp, program):
    """The service with the gate."""
    it = Service(short_tmp, 1, "--create-gate", program, "--gate-cdi-dir", short_tmp)
    it.hear("create gate covers")
    yield it
    it.kill()


def looked(service):
    return create_gate.gate(at(service.root), str(service.root / SPECIFICATION))


def test_a_gate_is_tried_without_a_container(service):
    gpu = service.settled(0, "clean").device
    found = looked(service)
    assert (found.covered, set(found.programs.values()), set(found.sockets.values())) == ({gpu}, {None}, {None})
    said = service.popen("status", "-o", "json", stdout=subprocess.PIPE).communicate()[0]
    assert json.loads(said)["service"]["gate_in_force"] == [], "the doctor is no container runtime"

    [installed] = map(Path, found.programs)
    installed.write_bytes(b"#!/bin/sh\nexit 0\n")
    assert looked(service).programs == {str(installed): CheckFault("it does not run: exit code 0")}
    installed.unlink()
    assert looked(service).programs[str(installed)].absent
    service.kill()
    assert looked(service).sockets == {str(service.run_dir / "gate.sock"): CheckFault("connection refused")}


@pytest.mark.parametrize("said", ["", "[]", '{"devices": [{"name": "GPU-1", "containerEdits": {"hooks": [{}]}}]}'])
def test_a_damaged_specification_is_a_fault(tmp_path, said):
    (tmp_path / SPECIFICATION).write_text(said)
    found = create_gate.gate(at(tmp_path), str(tmp_path / SPECIFICATION))
    assert found.covered == CheckFault("it is not the specification of a create gate")


CRI = '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = {}\n'


@pytest.mark.parametrize(
    ("said", "off"), [(None, False), (CRI.format("true"), False), (CRI.format("false"), True), ("version = ", False)]
)
def test_only_a_plain_word_switches_cdi_off(tmp_path, said, off):
    if said is not None:
        (tmp_path / "etc/containerd").mkdir(parents=True)
        (tmp_path / "etc/containerd/config.toml").write_text(said)
    found = create_gate.gate(at(tmp_path), str(tmp_path / SPECIFICATION)).without_cdi
    assert found == (str(tmp_path / "etc/containerd/config.toml") if off else "")


GATE = CreateGateFacts(frozenset({"GPU-1"}), {"/p": None}, {"/s": None})
SERVICE = replace(
    STATUS.service, gate_specification="/etc/cdi/autoclave-gate.json", started=GPU.since - 1, gate_in_force=("GPU-1",)
)
IN_USE = (replace(GPU, state="in_use"),)


def node(gate=GATE, devices=(GPU,), **service):
    """A node with a create gate."""
    status = replace(STATUS, devices=devices, service=replace(SERVICE, **service))
    return stands(answer=status, gate=gate)


FINDINGS = [
    (node(), Level.OK, "in force on 1 of 1 GPU"),
    (node(devices=IN_USE), Level.OK, "in force on 1 of 1 GPU"),
    (node(None, gate_specification=""), Level.OK, "is off"),
    (node(gate_in_force=()), Level.OK, "comes into force with the first container"),
    (node(GATE, IN_USE, gate_in_force=()), Level.WARNING, "GPU 3 is in use, and the create gate is not in force on it"),
    (
        node(GATE, IN_USE, gate_in_force=("GPU-2",)),
        Level.WARNING,
        "GPU 3 is in use, and the create gate is not in force on it",
    ),
    (node(GATE, (replace(GPU, state="in_use", since=0.0),), gate_in_force=()), Level.OK, "comes into force"),
    (node(replace(GATE, covered=CheckFault("gone"))), Level.BROKEN, "/etc/cdi/autoclave-gate.json: gone"),
    (node(replace(GATE, covered=frozenset())), Level.BROKEN, "does not name GPU-1"),
    (node(replace(GATE, programs={"/p": CheckFault("gone")})), Level.BROKEN, "/p does not run: gone"),
    (node(replace(GATE, sockets={"/s": CheckFault("dead")})), Level.BROKEN, "no answer at /s: dead"),
]


def test_cdi_that_is_off_is_the_first_finding():
    first, second = finding_of(node(replace(GATE, without_cdi="/c.toml")), "create-gate")
    assert (first.level, "/c.toml has enable_cdi = false" in first.text) == (Level.WARNING, True)
    assert "in force" in second.text, "the container runtime reads it at its next start"


@pytest.mark.parametrize(("facts", "level", "words"), FINDINGS, ids=[words for *_, words in FINDINGS])
def test_each_state_of_the_gate_is_a_finding(facts, level, words):
    [found] = finding_of(facts, "create-gate")
    assert (found.level, words in found.text) == (level, True), found


def test_without_a_status_nothing_is_said_of_the_gate():
    assert finding_of(stands(answer=Unreachable("no; start it")), "create-gate") == []
