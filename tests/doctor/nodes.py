"""A node with a GPU of NVIDIA on which all is well, to be spoilt in one place by each test."""

from autoclave.doctor.finding import Level
from autoclave.doctor.findings import all_checks
from autoclave.doctor.node_facts import (
    Capability,
    CdiSpec,
    CheckFault,
    Directory,
    NodeFacts,
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
FACTS = NodeFacts(
    now=NOW,
    answer=STATUS,
    scrubber_socket=_DOOR,
    run_dir=_PLACE,
    process=Process(sees_all=True, capabilities=sum(1 << it.value for it in Capability)),
    receipt_key="0123456789abcdef",
    room=Room(free_bytes=2**40, free_files=10**6),
    driver="580.142",
    libraries=("580.142",),
    options=OPTIONS,
    shared_with_guests=(),
    cupy=Python("/opt/python"),
    mps=(),
    persistenced=True,
    toolkit=Toolkit(installed=True, configs=(CONFIG,)),
    cdi=(CdiSpec("/etc/cdi/nvidia.yaml", "nvidia.com/gpu", frozenset({"GPU-1"})),),
    openers={"GPU-1": ()},
    cgroups="version 2",
    sees_all=True,
    kubelet_dir=_PLACE,
    kubelet_dir_writable=True,
    kubelet=_DOOR,
    plugin=Sockets("/d", (_DOOR,)),
    rivals=Sockets("/d"),
    checkpoint={},
    registered={"nvidia.com/gpu": frozenset({"GPU-1"})},
    missing_gates=frozenset(),
)


def finding_of(facts, name):
    """The findings of one check. Each finding that is not OK names a remedy."""
    found = [it for it in all_checks.judge(facts) if it.name == name]
    assert [it for it in found if bool(it.remedy) is (it.level is Level.OK)] == []
    return found
