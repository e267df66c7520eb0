"""A node with a GPU of NVIDIA on which all is well, to be spoilt in one place by each test."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from autoclave.doctor.facts import (
    container_toolkit,
    kubelet_facts,
    posture,
    process_facts,
    service_facts,
)
from autoclave.doctor.finding import Level
from autoclave.doctor.findings import all_checks
from autoclave.doctor.node_facts import (
    PROC,
    Capability,
    CdiSpec,
    CheckFault,
    Directory,
    Node,
    Process,
    Python,
    Room,
    Socket,
    Sockets,
    Toolkit,
    ToolkitConfig,
)
from scrub_api import views

NOW = 1_800_000_000.0
DENIED = CheckFault("permission denied", denied=True)
ABSENT = CheckFault("no such file or directory", absent=True)
CONFIG = ToolkitConfig("/etc/config.toml", by_environment=False)

RECEIPT = views.ReceiptView(
    id="r", path="fast", finished=0.0, covered_bytes=1000, allocatable_bytes=1000, residue_bytes=0, processes_found=0,
    processes_terminated=0, policy="default/defaults", policy_digest="", digest="", previous="", driver="", boot_id="",
    steps=(),
)  # fmt: skip
GPU = views.DeviceStatus(
    device="GPU-1", index=3, model="H200", state="clean", since=NOW, healthy=True, why="clean",
    memory_bytes=1000, numa_node=None, pci_address="", mig=False, receipt=RECEIPT, owner="", job=None, quarantine=None,
    policy_rule="default/defaults", setback="", compute="9.0",
)  # fmt: skip
SERVICE = views.ServiceStatus("0.1.0", "nvidia", "default", "/g", "/s", 7, "ab", "", "", 0.0, cupy="14.0.1")
STATUS = views.Status((GPU,), SERVICE)
OPTIONS = {"RegistryDwords": "", "RegistryDwordsPerDevice": "", "InitializeSystemMemoryAllocations": "1"}
_PLACE = Directory("/d", private=True, ours=True)
_DOOR = Socket("/d/a.sock")
ANSWERS: dict[Any, Any] = {
    service_facts.answer: STATUS,
    service_facts.now: NOW,
    service_facts.last_error: None,
    service_facts.scrubber_socket: _DOOR,
    service_facts.run_dir: _PLACE,
    service_facts.cupy: Python("/opt/python"),
    service_facts.kernels: True,
    service_facts.on_kubernetes: True,
    service_facts.receipt_key: "0123456789abcdef",
    kubelet_facts.kubelet_dir: _PLACE,
    kubelet_facts.kubelet_dir_writable: True,
    kubelet_facts.kubelet: _DOOR,
    kubelet_facts.plugin: Sockets("/d", (_DOOR,)),
    kubelet_facts.rivals: Sockets("/d"),
    kubelet_facts.in_front: "",
    kubelet_facts.checkpoint: {},
    kubelet_facts.registered: {"nvidia.com/gpu": frozenset({"GPU-1"})},
    kubelet_facts.missing_gates: frozenset(),
    kubelet_facts.unprepared_slices: (),
    posture.driver: "580.142",
    posture.libraries: ("580.142",),
    posture.options: OPTIONS,
    posture.on_bus: (),
    posture.shared_with_guests: (),
    posture.numa_gpus: (),
    posture.persistenced: True,
    posture.persistence_kept: False,
    posture.on_ec2: False,
    posture.cgroups: "version 2",
    posture.room: Room(free_bytes=2**40, free_files=10**6),
    posture.file_watches: None,
    posture.kernel_log: None,
    container_toolkit.toolkit: Toolkit(installed=True, configs=(CONFIG,)),
    container_toolkit.cdi: (CdiSpec("/etc/cdi/nvidia.yaml", "nvidia.com/gpu", frozenset({"GPU-1"})),),
    process_facts.mps: (),
    process_facts.unreadable: None,
    process_facts.sees_all: True,
    process_facts.process: Process(sees_all=True, capabilities=sum(1 << it.value for it in Capability)),
    process_facts.openers: {"GPU-1": ()},
    process_facts.service_pids: (),
}
"""What a check may ask of the node, and its answers."""

NAMED = {it.__name__: it for it in ANSWERS}


class _Answers(dict[Any, Any]):
    """The answers of a node that is not there: no check looks at this machine instead."""

    def __contains__(self, fact: object) -> bool:
        return True


def stands(cdi_kind="", **changes):
    """The node, with these facts changed."""
    answers = _Answers({**ANSWERS, **{NAMED[name]: answer for name, answer in changes.items()}})
    return replace(at(Path("/nowhere")), cdi_kind=cdi_kind, answers=answers)


def at(root, proc=PROC, **facts):
    """A node whose directories are all this one, and which has answered these facts already."""
    return Node(
        root,
        root,
        root,
        lambda _run_dir: STATUS,
        proc=proc,
        answers={NAMED[name]: answer for name, answer in facts.items()},
    )


FACTS = stands()
NVIDIA = {
    "driver", "cupy", "kernels", "scrub-on-free", "coherent-memory", "vgpu-host", "mps", "persistence",
    "container-toolkit", "cdi", "mig-driver", "reset", "ecc", "pid-namespace", "processes", "privileges", "cgroups",
    "kernel-log",
}  # fmt: skip
"""The findings that only a node with GPUs of NVIDIA has."""


def finding_of(node, name):
    """The findings of one check. Each finding that is not OK names a remedy."""
    found = [it for it in all_checks.judge(node) if it.name == name]
    assert [it for it in found if bool(it.remedy) is (it.level is Level.OK)] == []
    return found
