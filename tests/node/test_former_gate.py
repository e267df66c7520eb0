"""What a version with a create gate has left: it does nothing at once, and goes with the last pod that needs it."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path

import pytest

from scrubber.core.model import Grant
from scrubber.core.record import Record
from scrubber.node import assignments
from scrubber.node.former_gate import KIND, FormerGate
from tests.core import lives

GPU, CLAIM = "GPU-5a1f", "8d2f4b9e-0d3c-4a57-9f0a-6c1f6a0b7c11"
OFF = {"env": ["AUTOCLAVE_GATE=off"]}
HOOK = {"hooks": [{"hookName": "createRuntime", "path": "/var/lib/autoclave/gate/autoclave-gate-1", "args": []}]}


class Node:
    """A node that a version with a create gate ran on."""

    def __init__(self, root: Path) -> None:
        self.file = root / "etc/cdi/autoclave-gate.json"
        self.programs = root / "state/gate"
        for folder in (self.file.parent, self.programs, root / "kubelet"):
            folder.mkdir(parents=True)
        (self.programs / "autoclave-gate-1").write_bytes(b"")
        self.checkpoint = root / "kubelet" / assignments.NAME
        self.gate = FormerGate(root, root / "state", root / "kubelet")

    def has(self, *names: str) -> None:
        devices = [{"name": name, "containerEdits": HOOK} for name in names]
        self.file.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": KIND, "devices": devices}))

    def answered(self, *cdi_devices: str) -> None:
        """The kubelet keeps these answers of plugins, each for a pod."""
        answers = [base64.b64encode(b"*\x1b\n\x19" + name.encode()).decode() for name in cdi_devices]
        entries = [
            {"PodUID": "a", "ContainerName": "main", "DeviceIDs": {"-1": [GPU]}, "AllocResp": it} for it in answers
        ]
        self.checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": entries or None}, "Checksum": 1}))

    def left(self, *records: Record) -> dict[str, object] | None:
        """What the devices in the specification do after a look; None if it is gone, and the program with it."""
        assert self.gate.is_left({record.device.uuid: record for record in records}) is self.file.exists()
        assert self.programs.exists() is self.file.exists()
        if not self.file.exists():
            return None
        return {it["name"]: it["containerEdits"] for it in json.loads(self.file.read_text())["devices"]}


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def acquired(by: str) -> Record:
    at = lives.GRANTED.since
    grant = Grant("g", at, "", announced=False, receipt=None, until_release=True, owner=by)
    record = lives.GRANTED
    return replace(
        record, device=replace(record.device, uuid=GPU), tenancy=replace(record.tenancy, grant=grant, owner=None)
    )


def test_an_answer_that_the_kubelet_keeps_keeps_its_device(node):
    node.has(GPU, "GPU-other")
    node.answered(f"{KIND}={GPU}")
    assert node.left() == {GPU: OFF}
    node.answered(f"nvidia.com/gpu={GPU}")
    assert node.left() is None


def test_without_a_pod_of_before_nothing_is_left(node):
    node.has(GPU)
    node.answered()
    assert node.left() is None


@pytest.mark.parametrize("checkpoint", [None, "{", '{"Data": {"PodDeviceEntries": [{"AllocResp": "?"}]}}'])
def test_a_checkpoint_that_cannot_be_read_keeps_all(node, checkpoint):
    node.has(GPU)
    if checkpoint is not None:
        node.checkpoint.write_text(checkpoint)
    assert node.left() == {GPU: OFF}


def test_a_claims_device_stays_until_somebody_else_has_it(node):
    """After a reboot the claim may have it again, and nothing else says that it will not."""
    name = f"{GPU}.{CLAIM}"
    node.has(name)
    node.answered()
    free = replace(acquired(""), tenancy=replace(lives.GRANTED.tenancy, grant=None))
    for records in ([], [free], [acquired(CLAIM)]):
        assert node.left(*records) == {name: OFF}
    assert node.left(acquired("another")) is None


def test_an_unreadable_specification_is_left_alone(node):
    node.file.write_text("no specification")
    assert node.gate.is_left({})
    assert node.file.read_text() == "no specification"


def test_a_node_without_a_former_gate_keeps_its_files(node):
    assert not node.gate.is_left({})
    assert node.programs.exists()
