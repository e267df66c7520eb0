"""What is said of a node: each check in each of its states, on facts that no test needs a node for."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from autoclave.cli.output import fence_plan
from autoclave.doctor.finding import OTHER_USER, Level
from autoclave.doctor.findings import all_checks, node_checks
from autoclave.doctor.node_facts import (
    Capability,
    CdiSpec,
    CheckFault,
    LastError,
    Process,
    Python,
    Room,
    Socket,
    Sockets,
    Toolkit,
)
from ground.errors import LedgerUnavailable, Reason, Refused, Unreachable
from policies import load
from policies.policy_model import FencePolicy, Policy, concessions
from policies.values import FenceMode
from scrub_api import views
from scrubber.core.model import NO_CONTAINER, NOWHERE, Holder
from tests.doctor import nodes
from tests.doctor.nodes import ABSENT, CONFIG, DENIED, FACTS, GPU, NOW, OPTIONS, RECEIPT, SERVICE, STATUS, finding_of

stands = nodes.stands
OK, WARNING, BROKEN = Level.OK, Level.WARNING, Level.BROKEN
SILENT = Unreachable("cannot reach the scrub service at /d; start it")
ALL = sum(1 << it.value for it in Capability)
OUT = views.QuarantineStatus("gremlins", "they bite", 0.0, "autoclave", 0, sticky=True, next_probe_seconds=None)
HIDDEN = CheckFault("process 1 cannot be read: permission denied", denied=True, to_root=True)
DCGM = Holder(7, 1.0, "dcgm-exporter", "pod-1")
TENANT = Holder(7, 1.0, "train", "pod-2")
DAEMON = Holder(9, 1.0, "nvidia-persiste", None)
OPENER = views.OpenerView("nvtop", 9, "/system.slice/telegraf.service", "", 0.0, NOW, times=4, refused=0)
BEFORE = " by an earlier mode; the mode "
PLUGIN, RIVAL = "/d/a.sock", "/d/nvidia-gpu.sock"


def alone(**changes):
    """A node on which no service answers."""
    return stands(answer=SILENT, process=ABSENT, **changes)


def of_others(**changes):
    """A node without a driver of NVIDIA, its GPUs simulated."""
    return stands(driver=ABSENT, options=ABSENT, answer=said(backend="simulated"), **changes)


def said(**changes):
    return replace(STATUS, service=replace(SERVICE, **changes))


def service(**changes):
    """A node whose service says this."""
    return stands(answer=said(**changes))


def gpu(later=0.0, facts=None, **changes):
    """A node whose GPU is like this, some seconds after it came into its state."""
    return stands(now=NOW + later, answer=replace(STATUS, devices=(replace(GPU, **changes),)), **(facts or {}))


def two_gpus(openers=(), **changes):
    status = replace(STATUS, devices=(replace(GPU, **changes), replace(GPU, device="GPU-2", index=4)))
    return stands(openers={"GPU-1": openers, "GPU-2": openers}, answer=status)


HELD_BELOW = stands(
    answer=views.Status((replace(GPU, fence="hold"),), replace(SERVICE, fence_below="/sys/fs/cgroup/trial"))
)
BELOW = stands(
    answer=views.Status((replace(GPU, fence="watch"),), replace(SERVICE, fence_below="/sys/fs/cgroup/trial"))
)
SHARED = stands(
    answer=views.Status((replace(GPU, fence="watch"),), replace(SERVICE, pods_share_groups=True))
)  # control groups of version 1


def loaded_with(**options):
    return stands(options={**OPTIONS, **options})


def plugin(*found, writable=False):
    return stands(kubelet_dir_writable=writable, plugin=Sockets("/d", found))


AHEAD = stands(plugin=Sockets("/d"), in_front="/d/v/kubelet.sock")


def rival(fault=None, **changes):
    return stands(rivals=Sockets("/d", (Socket(RIVAL, fault),)), **changes)


def room(megabytes, files, missing=0):
    return stands(room=Room(megabytes * 2**20 - missing, files))


def clock(now, started=NOW):
    return stands(now=now, answer=said(started=started))


def registered(answer=STATUS, **devices):
    """A node on which the kubelet knows these devices, by resource."""
    return stands(registered={f"a.b/{name}": frozenset(ids) for name, ids in devices.items()}, answer=answer)


def toolkit(*configs, installed=True):
    return stands(toolkit=Toolkit(installed, configs))


def spec(*names, kind="nvidia.com/gpu", at="/etc/cdi/a.yaml", **changes):
    return CdiSpec(at, kind, frozenset(names), **changes)


def cdi(*specs, **changes):
    return stands(cdi=specs, **changes)


def plugin_with_cdi(*specs, kind="nvidia.com/gpu", **changes):
    """Also where nothing else tells of a driver: the plugin's init container sees no part of one."""
    return stands(cdi=specs, cdi_kind=kind, **changes)


def pods(device, *names, answer=STATUS):
    return stands(checkpoint={device: frozenset(names)}, answer=answer)


BLIND = {"answer": Unreachable("no service"), "driver": ABSENT}
ONLY_12, BOTH = "install autoclave[cuda12] where", "install autoclave[cuda12] or autoclave[cuda13], not both, where"
ERROR = stands(answer=Refused(Reason.INTERNAL, "the scrub service failed: x; y"))
SERVICES = [
    ("ledger", service(ledger_fault="disk is full"), BROKEN, "nothing is handed out: disk is full"),
    (
        "ledger",
        stands(answer=LedgerUnavailable("cannot open x")),
        BROKEN,
        "cannot use its ledger, so nothing is handed out: cannot",
    ),
    ("service", stands(answer=LedgerUnavailable("cannot open x")), OK, "cannot use its ledger"),
    ("service", alone(), BROKEN, "cannot reach the scrub service at /d"),
    ("service", ERROR, BROKEN, "the scrub service failed: x; y"),
    ("service", alone(last_error=LastError("no driver", 0.0, "load it")), BROKEN, "does not run. It ended at 19"),
    ("policy", service(policy_fault="a:1: x\na:2: y"), BROKEN, "the old one is: a:1: x; a:2: y"),
    ("ledger-set-aside", service(set_aside=("ledger.db.corrupt-1",)), WARNING, "set aside as ledger.db.corrupt-1"),
    ("receipts", FACTS, OK, "receipts are signed by the key 0123456789abcdef"),
    ("receipts", stands(receipt_key=None), WARNING, "receipts are not signed: /opt/python has no package"),
    ("receipts", stands(receipt_key=CheckFault("cannot use k: denied")), WARNING, "is not safe: cannot use k: denied"),
    (
        "bystanders",
        service(unlisted=(views.UnlistedProgram("/x", "site", "add it"),)),
        WARNING,
        "/x opened a GPU, or asked to, in",
    ),
    ("fence", gpu(), OK, "the policy does not ask for it"),
    ("fence", gpu(fence="watch"), OK, "keeps watch over 1 GPU (watch); no program asked"),
    (
        "fence",
        gpu(fence="watch", openers=(OPENER,)),
        WARNING,
        '"nvtop" (pid 9, /system.slice/telegraf.service) asked for GPU 3',
    ),
    ("fence", BELOW, WARNING, "the fence counts processes below /sys/fs/cgroup/trial only, and nobody else"),
    ("fence", HELD_BELOW, WARNING, "the fence counts and refuses processes below /sys/fs/cgroup/trial only"),
    ("fence", SHARED, WARNING, "the kernel can only watch who opens a GPU, whatever the policy says"),
    ("fence", SHARED, WARNING, "So a pod waits for its GPU in Allocate there"),
    (
        "fence",
        gpu(fence="refuse", openers=(replace(OPENER, refused=4),)),
        WARNING,
        "was refused; at least 4 open attempts",
    ),
    ("fence", gpu(fence="watch", openers=(replace(OPENER, exempt=True),)), WARNING, "the policy exempts its unit"),
    ("fence", gpu(fence="refuse", openers=(replace(OPENER, ignored=True),)), WARNING, "although it is a bystander"),
    ("fence", gpu(fence=views.OPEN_TO_ALL), WARNING, "every process may open GPU 3 for now"),
    ("fence", service(fence_lacks="cannot fence the GPUs: no bpf"), WARNING, "no bpf. Instead, the service searches"),
    ("fence", service(fence_lacks="no bpf"), WARNING, "So a pod waits for its GPU in Allocate there"),
    ("concession", service(concessions=("mode observe",)), WARNING, "gives up a promise: mode observe"),
    ("device", stands(answer=replace(STATUS, devices=())), WARNING, "sees no GPU"),
    ("device", gpu(state="granted", receipt=None), WARNING, "GPU 3 (GPU-1) was handed out without a proof"),
    ("device", gpu(state="in_use", receipt=None), OK, ""),
    ("device", gpu(receipt=replace(RECEIPT, covered_bytes=995)), OK, ""),
    (
        "device",
        gpu(receipt=replace(RECEIPT, covered_bytes=994)),
        WARNING,
        "covers 99.40% of its memory, less than 99",
    ),
    ("device", gpu(state="scrubbing", healthy=False, quarantine=OUT), WARNING, "is quarantined: gremlins: they bite"),
    *(
        row
        for state in ("unknown", "dirty")
        for row in (
            ("device", gpu(60.0, state=state, healthy=False, receipt=None), OK, ""),
            ("device", gpu(60.1, state=state, healthy=False, receipt=None), WARNING, "for more than 60 seconds"),
            # Each try begins its time in that state anew: no clock would ever show that it has been out for hours.
            ("device", gpu(1.0, state=state, healthy=False, setback="used by x"), WARNING, "not offered: used by x"),
            ("device", gpu(1.0, state=state, setback="used by x"), WARNING, f"GPU 3 (GPU-1) is {state}: used by x"),
        )
    ),
    *(
        row
        for state in ("clean", "granted", "in_use")
        for row in (
            ("device", gpu(state=state, healthy=False, why="sick: xid 79"), WARNING, "and not offered: sick: xid 79"),
            ("device", gpu(state=state), OK, ""),
        )
    ),
]
DRIVERS = [
    ("driver", FACTS, OK, "the driver is loaded: 580.142"),
    ("driver", stands(libraries=()), OK, "loaded"),
    ("driver", stands(libraries=("570.1", "580.142")), OK, "loaded"),
    ("driver", stands(libraries=("590.10",)), BROKEN, "is 580.142, but the installed driver library is 590.10"),
    ("driver", stands(driver=ABSENT), BROKEN, "the NVIDIA driver is not loaded"),
    ("driver", stands(driver=DENIED), BROKEN, "cannot tell which driver is loaded: permission denied"),
    ("driver", alone(driver=ABSENT, on_bus=("0000:17:00.0",)), BROKEN, "the NVIDIA driver is not loaded: no such file"),
    ("cupy", service(cupy="", lacks="CuPy is installed but cannot be loaded"), BROKEN, "no GPU: CuPy is installed"),
    ("cupy", service(cupy="", lacks=""), BROKEN, "not loaded yet"),
    ("kernels", stands(kernels=False), BROKEN, "the GPU kernels are not compiled in this checkout"),
    ("coherent-memory", stands(numa_gpus=("0009:01:00.0",)), BROKEN, "the memory of GPU 0009:01:00.0 is a NUMA node"),
    ("coherent-memory", FACTS, OK, "the memory of no GPU is a NUMA node"),
    ("coherent-memory", stands(numa_gpus=DENIED), BROKEN, "cannot tell whether the memory of a GPU is a NUMA node"),
    ("scrub-on-free", loaded_with(InitializeSystemMemoryAllocations="0"), BROKEN, "is off"),
    ("scrub-on-free", stands(options=DENIED), BROKEN, "cannot tell"),
    ("scrub-on-free", stands(options=ABSENT), BROKEN, "cannot tell"),
    (
        "scrub-on-free", loaded_with(RegistryDwordsPerDevice="pci=0:3b;Foo=1;pci=0:5e;RMDisableScrubOnFree=1"),
        BROKEN, "is set for 0:5e:",
    ),
    *(
        ("scrub-on-free", loaded_with(**{option: value}), level, "")
        for option in ("RegistryDwords", "RegistryDwordsPerDevice")
        for value, level in (
            ("RMDisableScrubOnFree=1", BROKEN), ("rmdisablescrubonfree=0x1;", BROKEN),
            ("Foo=1; RMDisable ScrubOnFree = 1 ;Bar=2", BROKEN), ("RMDisableScrubOnFree=yes", BROKEN),
            ("RMDisableScrubOnFree=0", OK), ("RMDisableScrubOnFree=0x00", OK), ("RMDisableScrubOnFree=", OK),
            ("RMDisableScrubOnFreely=1", OK), ("RMDisableFastScrubber=1", WARNING), ("RMDisableFastScrubber=0", OK),
        )
    ),
    *(
        ("scrub-on-free", gpu(compute=compute), level, "never handed out" if level is WARNING else "")
        for compute, level in (("7.0", WARNING), ("6.1", WARNING), ("7.5", OK), ("10.0", OK), ("", OK))
    ),
    ("vgpu-host", stands(shared_with_guests=("the module is loaded",)), BROKEN, "the module is loaded"),
    ("vgpu-host", stands(shared_with_guests=DENIED), BROKEN, "cannot tell"),
    ("mps", stands(mps=("process 7",)), BROKEN, "process 7"),
    ("mps", stands(mps=DENIED), BROKEN, "cannot tell"),
    ("persistence", stands(persistenced=False), WARNING, "does not run"),
    ("persistence", stands(persistenced=False, persistence_kept=True), OK, "each scrub keeps the persistence mode on"),
    ("persistence", stands(persistenced=DENIED), WARNING, "cannot tell"),
    ("container-toolkit", toolkit(replace(CONFIG, by_environment=True)), BROKEN, "is not false"),
    ("container-toolkit", toolkit(CONFIG, replace(CONFIG, by_environment=True)), BROKEN, "is not false"),
    ("container-toolkit", toolkit(replace(CONFIG, by_mounts=True)), WARNING, "is true"),
    ("container-toolkit", toolkit(replace(CONFIG, fault=DENIED)), BROKEN, "cannot read"),
    ("container-toolkit", toolkit(), BROKEN, "true by default"),
    ("container-toolkit", toolkit(installed=False), WARNING, "not found"),
    ("reset", two_gpus((DCGM,)), WARNING, 'no reset of GPU 3, 4 is possible: it is open in "dcgm-exporter" (pid 7)'),
    ("reset", two_gpus(model="Tesla T4"), WARNING, "of GPU 3 is possible: a Tesla T4 has no function-level reset"),
    ("reset", two_gpus(model="NVIDIA A40-8Q"), WARNING, "no reset of GPU 3 is possible: it is a vGPU"),
    ("reset", stands(openers={}), WARNING, "the processes that have it open cannot be found"),
    ("reset", gpu(facts={"openers": {"GPU-1": (TENANT,)}}, owner="pod-2"), OK, ""),
    ("reset", two_gpus((TENANT,), owner="pod-2"), WARNING, "no reset of GPU 4 is"),  # the other one has that owner
    ("reset", two_gpus((DAEMON,)), WARNING, 'of GPU 3, 4 is possible: it is open in "nvidia-persiste" (pid 9)'),
    ("reset", stands(on_ec2=True), WARNING, "no reset of GPU 3 is possible: Amazon EC2 refuses each reset"),
    *(
        ("mig-driver", gpu(facts={"driver": driver}, mig=True), level, "CVE-2026-24197")
        for driver, level in (
            ("580.142", WARNING), ("580.159.03", OK), ("580.178.04", OK), ("535.309.01", OK), ("535.288.01", WARNING),
            ("595.58.03", WARNING), ("595.71.05", OK), ("610.43", OK), ("570.211.01", WARNING), ("590.48.01", WARNING),
            ("open", WARNING),
        )
    ),
    ("ecc", gpu(ecc=True), OK, ""),
    ("ecc", gpu(ecc=None), OK, ""),
    ("ecc", gpu(ecc=False), BROKEN, "GPU 3 has no ECC"),
]  # fmt: skip
TWICE = "/etc/cdi/a.yaml and /etc/cdi/b.json both name GPU-1, and container runtimes then refuse it"
SECOND = spec("GPU-1", at="/etc/cdi/b.json")
CDI = [
    ("cdi", cdi(spec("GPU-1")), OK, "name 1 device"),
    ("cdi", cdi(spec("GPU-2"), spec("GPU-1")), OK, "name 2 devices"),
    ("cdi", cdi(spec("0", "all")), WARNING, "names GPU-1"),
    ("cdi", cdi(spec("GPU-1", kind="example.com/gpu")), WARNING, "exists"),
    ("cdi", cdi(), WARNING, "exists"),
    ("cdi", cdi(spec(fault=DENIED)), WARNING, "cannot use /etc/cdi/a.yaml: permission denied"),
    ("cdi", cdi(spec("GPU-1"), spec("GPU-1", at="/run/cdi/a.json")), OK, "name 1 device"),
    ("cdi", cdi(spec("GPU-1", "all"), spec("all", at="/etc/cdi/b.json")), OK, "name 2 devices"),
    ("cdi", cdi(spec("GPU-1"), SECOND), WARNING, TWICE),
    ("cdi", plugin_with_cdi(spec("GPU-1")), OK, "name 1 device"),
    ("cdi", plugin_with_cdi(spec("GPU-7")), BROKEN, "names GPU-1"),
    ("cdi", plugin_with_cdi(spec("GPU-7"), **BLIND), OK, "name 1 device"),
    ("cdi", plugin_with_cdi(spec("0", "MIG-7"), **BLIND), OK, "name 2 devices"),
    ("cdi", plugin_with_cdi(spec("0", "all"), **BLIND), BROKEN, "names a GPU by its UUID"),
    ("cdi", plugin_with_cdi(spec("GPU-7"), kind="a.b/gpu", **BLIND), BROKEN, "of the kind a.b/gpu exists"),
    ("cdi", plugin_with_cdi(**BLIND), BROKEN, "exists"),
    ("cdi", plugin_with_cdi(spec(fault=DENIED), spec("GPU-1")), WARNING, "denied"),
    ("cdi", plugin_with_cdi(spec("GPU-1"), SECOND), BROKEN, "both name GPU-1"),
]
LACKS = {it: stands(process=Process(True, ALL & ~(1 << it.value))) for it in Capability}
NODES = [
    ("pid-namespace", FACTS, OK, "the scrub service sees every process"),
    ("pid-namespace", stands(process=Process(False, ALL)), BROKEN, "of its own"),
    ("pid-namespace", stands(process=DENIED), BROKEN, "cannot tell"),
    ("pid-namespace", stands(process=DENIED, sees_all=False), BROKEN, "cannot tell"),
    ("pid-namespace", alone(sees_all=True), OK, "this check sees every process"),
    ("pid-namespace", alone(sees_all=False), BROKEN, "this check runs in a PID namespace of its own"),
    ("pid-namespace", alone(sees_all=DENIED), BROKEN, "cannot tell"),
    *(
        ("privileges", facts, WARNING if lacks is Capability.KILL else BROKEN, f"lacks CAP_{lacks.name}:")
        for lacks, facts in LACKS.items()
    ),
    ("processes", FACTS, OK, "every process of this node can be read"),
    ("processes", stands(unreadable=HIDDEN), BROKEN, "so nothing is handed out: process 1 cannot be read"),
    ("cgroups", stands(cgroups="version 1"), OK, "version 1"),
    ("cgroups", stands(cgroups=ABSENT), BROKEN, "cannot tell"),
    ("clock", clock(node_checks.YEAR_2024 - 0.1, 0.0), WARNING, "was never set"),
    ("clock", clock(NOW - 0.1), WARNING, "was set back"),
    ("clock", clock(NOW), OK, "is set"),
    ("clock", alone(now=node_checks.YEAR_2024 - 0.1), WARNING, "was never set"),
    ("clock", alone(now=node_checks.YEAR_2024), OK, "is set"),
    ("disk", room(100, 1000), OK, "100 MiB and 1000 files"),
    ("disk", room(100, None), OK, "100 MiB"),
    ("disk", room(100, None, 1), WARNING, "only"),
    ("disk", room(100, 999), WARNING, "only"),
    ("disk", room(10, 16), WARNING, "only"),
    ("disk", room(10, 1000, 1), BROKEN, "if the next write fails"),
    ("disk", room(100, 15), BROKEN, "if the next write fails"),
    ("disk", stands(room=ABSENT), WARNING, "cannot tell"),
    ("kernel-log", stands(kernel_log=ABSENT), WARNING, "cannot be read"),
    ("file-watches", stands(file_watches=CheckFault("too many open files")), WARNING, "seen 5 seconds late: too many"),
    ("plugin-dir", plugin(writable=True), OK, ""),
    ("plugin-dir", plugin(), WARNING, "cannot write"),
    ("plugin-dir", plugin(Socket(PLUGIN, DENIED)), WARNING, "cannot write"),
    ("plugin-dir", plugin(Socket(PLUGIN)), OK, ""),
    ("plugin", plugin(), BROKEN, "no device plugin serves in /d: no pod gets a GPU"),
    ("plugin", AHEAD, BROKEN, "has registered at /d/v/kubelet.sock"),
    ("rival-plugin", FACTS, OK, "no other plugin"),
    ("rival-plugin", rival(CheckFault("", dead=True)), OK, "no other plugin"),
    ("rival-plugin", rival(DENIED), BROKEN, "cannot tell"),
    ("rival-plugin", rival(), BROKEN, f"serves at {RIVAL}"),
    ("rival-plugin", stands(rivals=Sockets("/d", fault=DENIED)), BROKEN, "cannot tell"),
    ("rival-plugin", rival(in_front="/d/vendor/kubelet.sock"), OK, "registers at /d/vendor/kubelet.sock"),
    ("rival-plugin", registered(), OK, ""),
    ("rival-plugin", registered(ours=["GPU-1"], port=["0", "1"]), OK, ""),
    ("rival-plugin", registered(c=["GPU-2"], d=["GPU-2"]), OK, ""),  # devices of others
    ("rival-plugin", registered(SILENT, c=["GPU-2"], d=["GPU-2"], e=["0"], f=["0"]), BROKEN, "knows GPU-2 under"),
    ("rival-plugin", registered(ours=["GPU-1"], shared=["GPU-1"]), BROKEN, "knows GPU-1 under"),
    ("rival-plugin", registered(ours=["GPU-1::0", "GPU-1::1"]), BROKEN, "GPU-1::1"),
    ("rival-plugin", registered(ours=["GPU-1::0"]), BROKEN, "GPU-1::0"),
    ("rival-plugin", stands(registered=ABSENT), OK, ""),  # ``checkpoint`` says why
    ("double-allocation", pods("GPU-1", "pod-1"), OK, ""),
    ("double-allocation", pods("GPU-1", "pod-1", "pod-2"), BROKEN, "gave GPU-1 to several pods"),
    ("double-allocation", pods("0", "pod-1", "pod-2"), OK, ""),  # of another resource
    ("double-allocation", pods("0", "pod-1", "pod-2", answer=SILENT), BROKEN, "gave 0"),  # any device may be ours
]
ROWS = [*SERVICES, *DRIVERS, *CDI, *NODES]


@pytest.mark.parametrize(
    ("pod", "would", "where"),
    [
        (None, "`fence: {mode: hold}` would refuse it", "add its namespace to evict.operator_namespaces"),
        ("", "`fence: {mode: refuse}` would refuse it", "already, its control group is younger than those"),
        ("site/dcgm", "`fence: {mode: hold}` would refuse it", "add site to evict.operator_namespaces"),
    ],
    ids=["of a pod that has no name", "of the host", "of a pod"],
)
def test_an_opener_is_named_with_what_lets_it_in(pod, would, where):
    opener = replace(OPENER, place="0a-uid") if pod is None else replace(OPENER, pod=pod)
    [found] = finding_of(gpu(fence="watch", openers=(opener,)), "fence")
    assert (f"was let through (mode watch); {would}" in found.text, where in found.remedy) == (True, True), found


@pytest.mark.parametrize(
    ("asked", "mode", "did"),
    [
        ({}, "refuse", "was let through at that time; the mode refuse refuses it now"),
        ({"pod": "site/x"}, "hold", "was let through at that time; the mode hold refuses it now"),
        ({"pod": "site/x", "refused": 3, "opened": NOW - 31}, "hold",
         "were let through at that time; the mode hold refuses them now (3 times so far); at least 4 open attempts"),
        ({"pod": "site/x", "refused": 3, "opened": NOW - 30}, "hold", "were refused 3 times, but not each time"),
        ({"pod": "site/x", "refused": 3}, "watch",
         f"were refused 3 times{BEFORE}watch lets them through now, and `fence: {{mode: hold}}` would refuse them; at"),
        ({"refused": 4}, "watch",
         f"was refused{BEFORE}watch lets it through now, and `fence: {{mode: refuse}}` would refuse it; at least 4"),
        ({"place": "container:0a", "refused": 4}, "hold", f"was refused{BEFORE}hold lets it through now, and `fence: "),
        ({"place": "", "last": NOW - 60, "refused": 4}, "hold", "and was refused; at least 4"),
        ({"refused": 4}, views.OPEN_TO_ALL, "and was refused; at least 4"),
    ],
    ids=[
        "of the host", "of a pod", "and refused since", "let through since", "let through again", "refused each time",
        "let in by hold", "perhaps a pod", "open to all",
    ],
)  # fmt: skip
def test_a_finding_is_about_the_mode_in_force(asked, mode, did):
    devices = (replace(GPU, fence=mode, openers=(replace(OPENER, **asked),)),)
    facts = stands(answer=views.Status(devices, replace(SERVICE, started=NOW - 90, policy_since=NOW - 30)))
    found, *_ = finding_of(facts, "fence")
    assert did in found.text, found


def test_no_finding_exempts_the_namespace_of_a_tenant():
    """Its pods could then open all GPUs."""
    pod = replace(OPENER, place="0a-uid", pod="site/x")
    [found] = finding_of(gpu(fence="watch", openers=(pod,), pod="site/train/main"), "fence")
    assert found.remedy.startswith("site is a namespace of tenants, so do not exempt it")
    on_it = views.HolderView(9, "", "nvtop", pod.place, pod.pod, foreign=True)
    idle = gpu(fence="watch", openers=(pod,), owner=pod.place, pod="site/x", holders=(on_it,))
    [found] = finding_of(idle, "fence")
    assert "add site to evict.operator_namespaces" in found.remedy, "a monitor on an idle GPU is no tenant"
    assert found.remedy.endswith("But if pods there get GPUs, it is a namespace of tenants, so do not exempt it")


@pytest.mark.parametrize(
    ("openers", "mode", "names"),
    [
        ((replace(OPENER, ignored=True, exempt=True),), "refuse", f"{OPENER}"),
        ((replace(OPENER, ignored=True),), "hold", f"{OPENER} (`refuse` would refuse it)"),
        (
            tuple(replace(OPENER, ignored=True, exempt=True, place=f"/{n}.service") for n in range(5)),
            "hold",
            " (pid 9, /2.service) and 2 more (`autoclave fence plan` shows all)",
        ),
    ],
    ids=["exempt", "of the host under hold", "many"],
)  # fmt: skip
def test_bystanders_that_are_let_in_are_named(openers, mode, names):
    """Nothing is to be done, but the reader sees who may have a GPU open."""
    found = finding_of(gpu(fence=mode, openers=openers), "fence")
    assert [it.level for it in found] == [OK, OK]
    assert found[0].text.startswith("these bystanders opened GPUs, and may keep them open: ")
    assert (names in found[0].text, "; no other program asked" in found[1].text) == (True, True), found


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, OK),
        ({"place": NO_CONTAINER}, OK),
        ({"place": ""}, OK),
        ({"place": "", "last": NOW - 60}, WARNING),  # before the policy in force: perhaps a pod
        ({"place": "container:0a"}, WARNING),
        ({"place": "0a-uid"}, WARNING),
        ({"exempt": True}, WARNING),
    ],
)
def test_hold_gives_no_warning_of_a_program_of_the_host(changes, level):
    """The policy wants it so, and the warning would never go away."""
    devices = (replace(GPU, fence="hold", openers=(replace(OPENER, **changes),)),)
    facts = stands(answer=views.Status(devices, replace(SERVICE, started=NOW - 90, policy_since=NOW - 30)))
    first, *_ = finding_of(facts, "fence")
    assert (first.level, "the mode hold lets these programs of the host open" in first.text) == (level, level is OK)


HELD = views.HolderView(9, "", "agent", "", exempt=True, place="/system.slice/agent.service")


@pytest.mark.parametrize("asked", [(), (replace(OPENER, command="agent", place=HELD.place, exempt=True),)])
def test_an_exempt_program_that_holds_a_gpu_is_named_once(asked):
    """It may have opened the GPU before the kernel counted, or before the policy in force."""
    [found] = finding_of(gpu(fence="hold", openers=asked, holders=(HELD,)), "fence")
    assert (found.level, "agent" in found.text, "evict.bystanders" in found.remedy) == (WARNING, True, True)


def test_a_program_of_a_session_needs_a_unit():
    """To exempt all sessions lets in everybody who can log in. The plan says the same."""
    opener = replace(OPENER, command="dd", place="/user.slice/user-0.slice/session-3.scope")
    [found] = finding_of(gpu(fence="watch", openers=(opener,)), "fence")
    status = views.Status((replace(GPU, openers=(opener,)),), SERVICE)
    [advised] = fence_plan.advice(fence_plan.planned(status, lambda _opener: fence_plan.Program()))
    assert [it for it in (found.remedy, advised) if views.UNIT_OF_ITS_OWN not in it or "is exempt" in it] == []


OBSERVE = concessions(load.load("observe").defaults)
OPENS = concessions(Policy(fence=FencePolicy(mode=FenceMode.WATCH)))


@pytest.mark.parametrize(
    ("source", "sentences", "remedy", "names_the_flag"),
    [
        ("observe", OBSERVE, "choose another policy: --policy", False),
        ("default", OPENS, "start the service without --fence", True),
        ("/etc/ours.yaml", OPENS, "remove it from the policy /etc/ours.yaml", True),
        ("/etc/ours.yaml", OBSERVE[:1], "remove it from the policy /etc/ours.yaml", False),
    ],
)
def test_a_concession_has_a_remedy_that_works(source, sentences, remedy, *, names_the_flag):
    """Nobody can change a shipped file, and a flag that was not given is not to blame."""
    for found in finding_of(service(concessions=sentences, policy_source=source), "concession"):
        assert (remedy in found.remedy, "--fence" in found.remedy) == (True, names_the_flag), found


@pytest.mark.parametrize(
    ("asked", "is_said"),
    [({}, True), ({"last": NOW - 60}, False), ({"ignored": True}, False), ({"last": NOW - 60, "exempt": False}, True)],
    ids=["since", "before", "it is a bystander", "before, and not exempt"],
)
def test_an_opener_that_the_policy_settles_is_no_warning(asked, *, is_said):
    """Or else nobody sees for 7 days whether the last change was enough."""
    opener = replace(OPENER, **{"exempt": True, **asked})
    devices = (replace(GPU, fence="watch", openers=(opener,)),)
    facts = stands(answer=views.Status(devices, replace(SERVICE, started=NOW - 90, policy_since=NOW - 30)))
    *_, found = finding_of(facts, "fence")
    assert found.level is (WARNING if is_said else OK)
    since = datetime.fromtimestamp(NOW - 30, UTC).astimezone().isoformat(" ", "minutes")
    assert is_said or found.text.endswith(f"program asked for one that was not given to it since {since}")


def two_gpus_of(*openers):
    """A GPU for each of these openers."""
    devices = [replace(GPU, device=f"GPU-{n}", index=n, fence="watch", openers=(it,)) for n, it in enumerate(openers)]
    return stands(answer=views.Status(tuple(devices), SERVICE))


def test_a_program_that_asked_for_many_gpus_is_one_finding():
    before = replace(OPENER, command="python3", pid=8, last=NOW - 86_400, times=3)
    refused = replace(OPENER, last=NOW - 60, refused=2)
    asked = {0: (OPENER,), 1: (before,), 2: (), 5: (replace(OPENER, last=NOW - 5), refused)}
    devices = [
        replace(GPU, device=f"GPU-{index}", index=index, fence="watch", openers=openers)
        for index, openers in asked.items()
    ]
    several, one = finding_of(stands(answer=views.Status(tuple(devices), SERVICE)), "fence")
    last = datetime.fromtimestamp(NOW, UTC).astimezone().isoformat(" ", "minutes")
    assert several.text == (
        '"nvtop" (pid 9, /system.slice/telegraf.service) asked for GPU 0, 1, 5, which were not given to it, and was '
        "let through (mode watch); `fence: {mode: refuse}` would refuse it; "
        f"at least 11 open attempts, the last one at {last}"
    )
    assert one.text.startswith(
        "processes of /system.slice/telegraf.service asked for GPU 5 (GPU-5), which was not given to them, and were "
        f"refused 2 times{BEFORE}watch lets them through now, and `fence: {{mode: refuse}}` would refuse them; "
        "at least 4 open attempts"
    )


def test_refusals_on_several_gpus_are_added():
    [found] = finding_of(two_gpus_of(replace(OPENER, refused=4), replace(OPENER, refused=2, last=NOW - 5)), "fence")
    assert f"were refused 6 times{BEFORE}" in found.text
    assert "; at least 8 open attempts" in found.text


def test_programs_whose_place_tells_nothing_have_findings_of_their_own():
    """All that has ended, or runs outside of any container, is there."""
    openers = tuple(replace(OPENER, command=name, place=place) for name in ("nvtop", "sh") for place in NOWHERE)
    found = finding_of(gpu(fence="watch", openers=openers), "fence")
    assert [it.text.partition('" (')[0] for it in found] == ['"nvtop', '"nvtop', '"sh', '"sh']


def test_doctor_says_what_an_exempt_program_still_does():
    """It costs scrubs, and keeps GPUs out. The plan names its path, or says why that would not help."""
    [found] = finding_of(gpu(fence="watch", openers=(replace(OPENER, exempt=True),)), "fence")
    words = "`autoclave fence plan` says what to do", "nobody else gets a GPU while this program keeps it open"
    assert [it for it in words if it not in found.remedy] == [], found


@pytest.mark.parametrize(("name", "facts", "level", "words"), ROWS, ids=[f"{it[0]}: {it[3]}" for it in ROWS])
def test_each_state_of_the_node_has_its_finding(name, facts, level, words):
    [found] = finding_of(facts, name)
    assert (found.level, words in found.text) == (level, True), found


def test_a_healthy_node_gets_one_ok_finding_of_each_check():
    found = all_checks.judge(FACTS)
    assert sorted(it.name for it in found) == sorted({it.name for it in found})
    assert len(found) == len(all_checks.CHECKS)
    assert all_checks.worst(found) is OK
    assert all_checks.worst([]) is BROKEN


def test_a_node_with_other_gpus_skips_the_nvidia_checks():
    everything = {it.name for it in all_checks.judge(FACTS)}
    assert everything - {it.name for it in all_checks.judge(of_others(kernel_log=ABSENT))} == nodes.NVIDIA


def test_the_daemon_is_asked_through_its_socket_or_stopped():
    [found] = finding_of(two_gpus((DAEMON,)), "reset")
    assert "then mount the directory of its socket as /run/nvidia-persistenced" in found.remedy
    assert found.remedy.endswith("or stop that first (`systemctl stop nvidia-persistenced`)")


def test_unguarded_nvidia_gpus_give_one_warning_and_no_other_finding():
    unguarded = stands(answer=said(backend="simulated"))
    assert {it.name for it in all_checks.judge(unguarded)} - {it.name for it in all_checks.judge(of_others())} == {
        "driver"
    }
    [found] = finding_of(unguarded, "driver")
    assert (found.level, found.text.endswith("(580.142), but the scrub service uses another backend")) == (
        WARNING,
        True,
    )


WITHOUT_DIRECTORY = stands(kubelet_dir=replace(nodes.ANSWERS[nodes.NAMED["kubelet_dir"]], fault=ABSENT))
OF_AN_ANSWER = ("scrubber-socket", "ledger", "ledger-set-aside", "receipts", "policy", "concession", "device")


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        (stands(driver=ABSENT), ("scrub-on-free", "vgpu-host", "persistence", "coherent-memory")),
        (alone(driver=ABSENT), ("driver", "mps")),
        (stands(process=DENIED), ("privileges",)),
        (stands(sees_all=False), ("mps",)),  # of another PID namespace
        (alone(), ("disk",)),
        (WITHOUT_DIRECTORY, ("plugin-dir", "rival-plugin")),
        (stands(answer=LedgerUnavailable("cannot open x")), ("policy", "device", "concession")),
        (ERROR, OF_AN_ANSWER),
    ],
)
def test_what_another_finding_explains_is_not_judged(facts, names):
    assert [it for name in names for it in finding_of(facts, name)] == []


@pytest.mark.parametrize(("driver", "judged"), [("580.142", True), (DENIED, True)])
def test_without_a_service_nvidia_checks_need_a_loaded_driver(driver, judged):
    names = {it.name for it in all_checks.judge(alone(driver=driver))}
    assert ("mps" in names, "driver" in names) == (judged, judged)


WORDED = "it is: so; and, then; not so"
REMEDIES = [
    ("ledger", service(ledger_fault=WORDED, ledger_remedies=("close it", "wait")), "close it; wait"),
    (
        "ledger",
        stands(answer=LedgerUnavailable(WORDED, "make room")),
        "make room; the service then tries again by itself",
    ),
    ("service", alone(last_error=LastError(WORDED, 0.0, "load it")), "load it"),
    ("service", stands(answer=Unreachable(WORDED, "start it")), "start it"),
    ("fence", service(fence_lacks="no BPF"), "remove this cause and restart the service"),
    ("receipts", stands(receipt_key=CheckFault(WORDED, remedy="restore it")), "restore it"),
    ("device", gpu(quarantine=OUT), "`autoclave explain 3` says what happened and what to do"),
    ("coherent-memory", stands(numa_gpus=("0009:01:00.0",)), "NVreg_CoherentGPUMemoryMode=driver"),
    ("plugin", plugin(), "start `autoclave plugin`, or read its log"),
    ("plugin", AHEAD, "set KUBELET_SOCKET of NVIDIA's plugin to /d/v/k"),
    ("reset", two_gpus((DCGM,)), "kubectl label node NODE --overwrite nvidia.com/gpu.deploy.dcgm-exporter=false"),
]


@pytest.mark.parametrize(("name", "facts", "remedy"), REMEDIES, ids=[it[0] for it in REMEDIES])
def test_a_remedy_names_what_to_do_here(name, facts, remedy):
    [found] = finding_of(facts, name)
    assert remedy in found.remedy
    assert WORDED not in found.text or remedy == found.remedy, "whatever the words, none of them is the remedy"


@pytest.mark.parametrize("facts", [alone(), alone(last_error=LastError("no driver", 0.0, "load it"))])
def test_without_a_service_the_doctor_says_who_keeps_others_off(facts):
    """The kernel does so until the lease of the fence ends; a person may have to know."""
    [found] = finding_of(facts, "service")
    assert "`autoclave fence status` says whether the kernel still keeps others off the GPUs" in found.text


@pytest.mark.parametrize("name", ["unreadable", "mps"])
def test_root_gets_another_remedy_than_root(name):
    [found] = [it for it in all_checks.judge(stands(**{name: HIDDEN})) if it.level is not OK]
    assert "become" not in found.remedy
    assert "SELinux" in found.remedy


DENIABLE = (
    "driver unreadable shared_with_guests mps persistenced cgroups process room options kernel_log numa_gpus "
    "checkpoint run_dir kubelet_dir kubelet plugin"
)


@pytest.mark.parametrize("name", DENIABLE.split())
def test_if_access_is_denied_the_remedy_is_another_user(name):
    fact = nodes.ANSWERS[nodes.NAMED[name]]
    spoilt = stands(**{name: replace(fact, fault=DENIED) if hasattr(fact, "fault") else DENIED})
    assert {it.remedy for it in all_checks.judge(spoilt) if it.level is not OK} == {OTHER_USER}


@pytest.mark.parametrize(
    ("driver", "cupy", "words", "remedy"),
    [
        ("580.65.06", "14.2.0 (cuda13)", "it works with the driver 580.65.06, as would cuda12", None),
        ("615.10", "14.2.0 (cuda12)", "it works with the driver 615.10, as would cuda13", None),
        ("525.60.13", "14.2.0 (cuda12)", "it works with the driver 525.60.13", None),
        ("575.57.08", "14.2.0 (cuda13)", "but does not work with the driver 575.57.08", ONLY_12),
        ("470.256.02", "14.2.0 (cuda12)", "but does not work with the driver", "update the driver to 525"),
        ("470.256.02", "", "CuPy is not installed", "update the driver to 525"),
        ("575.57.08", "", "CuPy is not installed", ONLY_12),
        ("580.65.06", "", "CuPy is not installed", BOTH),
        (DENIED, "", "CuPy is not installed", BOTH),
        ("no number", "14.2.0 (cuda13)", "CuPy 14.2.0 (cuda13) is", None),
        (DENIED, "14.2.0 (cuda13)", "CuPy 14.2.0 (cuda13) is", None),
        ("575.57.08", "14.2.0", "CuPy 14.2.0 is", None),
    ],
)
@pytest.mark.parametrize("answers", [True, False], ids=["the service answers", "no service answers"])
def test_cupy_must_work_with_the_driver_in_use(answers, driver, cupy, words, remedy):
    """What the service says decides. If it does not answer, the finding names the Python that was checked."""
    right, wrong = ("", cupy), ("CuPy is not installed", "")
    lacks, name = right if cupy else wrong
    here = (wrong if cupy else ("", "14.2.0 (cuda12)")) if answers else (lacks, name)
    answer = said(cupy=name, lacks=lacks) if answers else SILENT
    [found] = finding_of(stands(driver=driver, cupy=Python("/opt/python", *here), answer=answer), "cupy")
    assert (found.level, words in found.text) == (OK if remedy is None else BROKEN, True), found
    assert remedy is None or remedy in found.remedy
    assert ("installed for /opt/python, which runs this check" in found.text) is not answers


def test_each_unknown_driver_option_is_a_broken_finding():
    assert [it.level for it in finding_of(stands(options={}), "scrub-on-free")] == [BROKEN] * 3


def test_an_unreadable_specification_does_not_hide_a_missing_one():
    found = finding_of(plugin_with_cdi(spec(fault=DENIED), **BLIND), "cdi")
    assert [(it.level, "exists" in it.text) for it in found] == [(WARNING, False), (BROKEN, True)]


def test_only_slices_of_a_sliced_gpu_need_cdi_names():
    cut = replace(STATUS, devices=(GPU, replace(GPU, device="MIG-1", mig=True)))
    [found] = finding_of(stands(answer=cut), "cdi")
    assert "names MIG-1" in found.text
    [found] = finding_of(stands(answer=cut, cdi=(spec("MIG-1"),)), "cdi")
    assert found.level is OK
