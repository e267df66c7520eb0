"""A bystander is known by its program and by where it runs; an impostor counts as a holder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.policy_model import OPERATOR_PROGRAMS, Evict
from scrubber.core.model import Holder
from scrubber.node import proc
from scrubber.node.bystanders import Bystander, Bystanders, obstacle, why_not
from scrubber.node.pods import PodNames
from scrubber.node.sandboxes import Sandboxes
from tests.node.conftest import NodeProc

U = "0aa1e0d4-11aa-4b3c-9d3e-5f6a7b8c9d0e"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a file of root's takes root")


class Node:
    """A process of the host that every mark of a bystander is true of, until one is changed."""

    def __init__(self, node_proc: NodeProc, root: Path) -> None:
        self.proc, self.root = node_proc, root
        self.exe = root / "usr/bin/daemon"
        self.exe.parent.mkdir(parents=True)
        self.exe.touch(mode=0o755)
        for name in ("host", "other"):
            (root / name).touch()
        init = node_proc.add(1, "0::/init.scope\n")
        (init / "ns/mnt").symlink_to(root / "host")
        self.process = node_proc.add(7, "0::/somewhere\n")
        (self.process / "exe").symlink_to(self.exe)
        (self.process / "ns/mnt").symlink_to(root / "host")
        self.be(0)
        self.logs = root / "elsewhere/pods"
        self.logs.mkdir(parents=True)
        self.names = PodNames(Sandboxes(root), self.logs)
        self.elsewhere: list[Bystander] = []
        self.holder = Holder(7, proc.status(str(self.process)).started, "any name", None)

    def be(self, user: int) -> None:
        (self.process / "status").write_text(f"Name:\tx\nUid:\t{user}\t0\t0\t0\nGid:\t0\t0\t0\t0\n")

    def start_from(self, user: int, program: Path) -> None:
        """Its parent is this user's process, and runs this program."""
        parent = self.proc.path / "1"
        (parent / "exe").symlink_to(program)
        (parent / "status").write_text(f"Uid:\t{user}\t0\t0\t0\n")

    def be_started(self, user: int) -> None:
        """This user runs it, and its parent."""
        self.be(user)
        self.start_from(user, self.exe)

    def log(self, directory: str) -> Path:
        path = self.logs / directory
        path.mkdir()
        return path

    def relink(self, name: str, target: Path) -> None:
        (self.process / name).unlink()
        (self.process / name).symlink_to(target)

    def knows(self, namespace: str | None = None, holder: Holder | None = None) -> bool:
        known = [Bystander("/usr/bin/another"), Bystander(str(self.exe), namespace)]
        return Bystanders(known, self.proc.path, self.names, self.elsewhere.append).knows(holder or self.holder)


@pytest.fixture
def node(node_proc: NodeProc, tmp_path: Path) -> Node:
    return Node(node_proc, tmp_path / "root")


def test_a_daemon_of_root_on_the_host_is_a_bystander(node: Node) -> None:
    assert node.knows()


IMPOSTORS: dict[str, tuple[Callable[[Node], object], str]] = {
    "another program": (lambda node: node.relink("exe", node.root / "host"), ""),
    "a program that its group may write": (lambda node: node.exe.chmod(0o775), "others than root can write"),
    "a program that all may write": (lambda node: node.exe.chmod(0o757), "others than root can write"),
    "a program of a user": (lambda node: os.chown(node.exe, 1000, 0), "others than root can write"),
    "among other mounts": (lambda node: node.relink("ns/mnt", node.root / "other"), "it has mounts of its own"),
    "mounts that cannot be compared": (lambda node: (node.proc.path / "1/ns/mnt").unlink(), "1/ns/mnt: No such file"),
    "run by a user": (lambda node: node.be_started(1000), "root did not start it"),
}
OTHERS: dict[str, dict[str, Any]] = {
    "in a pod": {"container": U},
    "in a container": {"container": "container:0123456789ab"},
    "a reused pid": {"started": 0.0},
    "an ended process": {"pid": 8},
}


@pytest.mark.parametrize(("change", "why"), IMPOSTORS.values(), ids=IMPOSTORS)
def test_an_impostor_is_no_bystander(node: Node, change: Callable[[Node], object], why: str) -> None:
    (node.process / "comm").write_text("daemon\n")
    assert obstacle(node.proc.path, str(node.process)) == ""
    change(node)
    assert not node.knows(holder=replace(node.holder, command="daemon"))
    found = obstacle(node.proc.path, str(node.process))
    assert (why in found, bool(found)) == (True, bool(why))
    assert why_not([str(node.exe)], node.holder, "", node.proc.path) == found
    assert why_not([], node.holder, "", node.proc.path) == ""


def test_a_listed_program_that_cannot_be_examined_is_no_bystander(node: Node) -> None:
    def why(holder: Holder, pod: str = "") -> str:
        return why_not([str(node.exe), f"ops:{node.exe}"], holder, pod, node.proc.path)

    in_pod, cannot_tell = replace(node.holder, container=U), "this node cannot tell that the process is in a pod"
    assert cannot_tell in why(in_pod, "ops/monitor")
    assert [why(in_pod, "team/a"), why(in_pod)] == ["", ""]
    (node.process / "ns/mnt").unlink()
    (node.process / "ns/mnt").symlink_to(node.process / "ns/mnt")
    assert why(node.holder) == f"{node.process}/ns/mnt: Too many levels of symbolic links"
    assert [why(replace(node.holder, started=0.0)), why(replace(node.holder, pid=8))] == ["", ""]


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_process_on_the_host_is_no_bystander(node: Node, other: dict[str, Any]) -> None:
    assert not node.knows(holder=replace(node.holder, **other))


@pytest.mark.parametrize("way_up", ["", "/..", "/../../.."])
def test_an_unprivileged_daemon_is_known_by_its_service(node: Node, way_up: str) -> None:
    node.be(1000)
    (node.process / "cgroup").write_text(f"0::{way_up}/system.slice/daemon.service\n")
    assert node.knows()


@pytest.mark.parametrize("group", ["/system.slice/other.service", "/user.slice/system.slice/daemon.service"])
def test_a_service_of_another_name_makes_no_bystander(node: Node, group: str) -> None:
    node.be(1000)
    (node.process / "cgroup").write_text(f"0::{group}\n")
    assert not node.knows()


def test_a_child_without_rights_is_known_by_its_parent(node: Node) -> None:
    """As nvidia-container-cli opens the devices."""
    node.be(65534)
    node.start_from(0, node.exe)
    assert node.knows()


@pytest.mark.parametrize(("user", "program"), [(0, "host"), (1000, "usr/bin/daemon")])
def test_a_child_of_another_program_or_user_is_no_bystander(node: Node, user: int, program: str) -> None:
    """A program with the setuid bit, such as nvidia-modprobe, has as its real user the one who started it."""
    node.be(65534)
    node.start_from(user, node.root / program)
    assert not node.knows()


@pytest.mark.parametrize(
    ("by_link", "wrapper", "is_known"),
    [(False, "exec {}", True), (True, "exec {}", True), (False, "{}; :", True), (False, "unshare --mount {}", False)],
    ids=["alone", "through a link", "of a script", "among other mounts"],
)
def test_a_program_that_runs_is_known_by_its_file(
    tmp_path: Path, launch_shell: Callable[[str], int], wrapper: str, *, by_link: bool, is_known: bool
) -> None:
    dd, link = os.path.realpath(str(shutil.which("dd"))), tmp_path / "dd"
    link.symlink_to(dd)
    pid = launch_shell(wrapper.format(f"{link if by_link else dd} if=/dev/zero"))
    (tmp_path / str(pid)).symlink_to(f"/proc/{pid}")
    (tmp_path / "1").symlink_to(f"/proc/{os.getpid()}")  # the real one may show its mounts to nobody
    known = Bystanders([Bystander(dd)], tmp_path, PodNames(Sandboxes(tmp_path), tmp_path))
    assert known.knows(Holder(pid, proc.status(f"/proc/{pid}").started, "any name", None)) is is_known


@pytest.fixture
def launch_shell() -> Iterator[Callable[[str], int]]:
    """Run a shell with a program that writes until its end, and return the pid of that program, once it writes."""
    with ExitStack() as ending:

        def launch(script: str) -> int:
            shell = ending.enter_context(
                subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
            )
            ending.callback(os.killpg, shell.pid, signal.SIGKILL)
            assert shell.stdout is not None
            assert shell.stdout.read(1)
            below = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
            return int(below[0]) if below else shell.pid

        yield launch


def test_in_a_pod_it_is_known_by_the_namespace(node: Node) -> None:
    node.log(f"gpu-tools_dcgm-exporter-x_{U}")
    node.relink("ns/mnt", node.root / "other")
    in_pod = replace(node.holder, container=U)
    assert node.knows("gpu-tools", in_pod)
    assert not node.knows("gpu-tools")
    assert node.elsewhere == []
    assert not node.knows("tools", in_pod)
    assert node.elsewhere == [Bystander(str(node.exe), "gpu-tools")]


SLICE = f"kubepods-burstable-pod{U.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("made_for", "group", "known"),
    [
        (f"/kubepods/pod{U}/1", f"kubepods/pod{U}/1", True),
        (f"/kubepods/pod{U}/1", f"kubepods/burstable/pod{U}/1", False),
        (f"{SLICE}:cri-containerd:1", f"kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-1.scope", True),
        (f"{SLICE}:cri-containerd:1", f"kubepods/burstable/pod{U}/1", False),
    ],
)
def test_a_bystander_is_in_the_group_of_its_pod(node: Node, made_for: str, group: str, *, known: bool) -> None:
    """Others may make a group with the UID of a monitor's pod, and start its program there."""
    sandbox = node.root / "run/containerd/io.containerd.runtime.v2.task/k8s.io/1"
    sandbox.mkdir(parents=True)
    annotations = {"container-type": "sandbox", "sandbox-namespace": "gpu-tools", "sandbox-name": "dcgm-exporter-x"}
    of_cri = {f"io.kubernetes.cri.{name}": value for name, value in annotations.items()}
    written = {"annotations": of_cri, "linux": {"cgroupsPath": made_for}}
    (sandbox / "config.json").write_text(json.dumps(written))
    (place := node.root / "sys/fs/cgroup" / group).mkdir(parents=True)
    (place / "cgroup.procs").write_text("7\n")
    node.log(f"gpu-tools_dcgm-exporter-x_{U}")
    assert node.knows("gpu-tools", replace(node.holder, container=U)) is known


@pytest.mark.parametrize(
    "names",
    [
        [f"tenant_gpu-tools_{U}"],
        [f"tenant_x_{U}_{U}"],
        [f"gpu-tools_{U}"],
        [f"gpu-tools_a_{U}", f"tenant_a_{U}"],
        [],
    ],
    ids=["its name", "its uid", "no name", "two namespaces", "no logs"],
)
def test_a_tenants_pod_is_not_in_the_named_namespace(node: Node, names: list[str]) -> None:
    for name in names:
        node.log(name)
    if not names:
        node.logs.rmdir()
    assert not node.knows("gpu-tools", replace(node.holder, container=U))


@pytest.mark.parametrize(
    ("text", "known"),
    [("/usr/bin/a", Bystander("/usr/bin/a")), ("gpu-operator:/usr/bin/a", Bystander("/usr/bin/a", "gpu-operator"))],
)
def test_a_program_matches_the_name_in_the_policy(text: str, known: Bystander) -> None:
    assert Bystander.parse(text) == known


@pytest.mark.parametrize("namespace", Evict().operator_namespaces)
def test_operator_dra_and_gke_programs_are_known_in_their_namespaces(namespace: str) -> None:
    known = set(map(Bystander.parse, Evict().all_bystanders()))
    for program in ("dcgm-exporter", "gpu-kubelet-plugin", "compute-domain-kubelet-plugin", "nvidia-gpu-device-plugin"):
        assert Bystander(f"/usr/bin/{program}", namespace) in known
        assert Bystander(f"/usr/bin/{program}") not in known


def test_the_default_policy_names_the_namespaces_of_todays_releases() -> None:
    operator = {"nvidia-gpu-operator", "gpu-operator-resources", "gpu-operator"}
    plugin = {"nvidia-device-plugin", "gpu-feature-discovery"}
    assert {*operator, "dra-driver-nvidia-gpu", "nvidia", *plugin} <= set(Evict().operator_namespaces)


@pytest.mark.parametrize(
    "tool", ["nvidia-smi", "nvidia-container-cli", "nvidia-container-cli.real", "nvidia-ctk", "nvidia-modprobe"]
)
def test_the_default_policy_knows_the_hosts_tools_in_no_pod(tool: str) -> None:
    """Every container with a GPU has an nvidia-smi."""
    found = [it for it in Evict().all_bystanders() if it.endswith(f"/{tool}")]
    assert f"/usr/bin/{tool}" in found
    assert [it for it in found if ":" in it] == []


def test_a_further_namespace_is_added_to_those_of_the_policy() -> None:
    extra = set(Evict().all_bystanders(["mine"])) - set(Evict().all_bystanders())
    assert extra == {f"mine:{program}" for program in OPERATOR_PROGRAMS}


def test_a_daemon_runs_only_where_it_is_the_nodes_own(node) -> None:
    known = Bystanders([Bystander(str(node.exe))], node.proc.path, node.names)
    assert known.runs(node.exe.name, lambda _pid: None)
    assert not known.runs(node.exe.name, lambda _pid: "pod-a")
    assert not known.runs("another", lambda _pid: None)
    assert not Bystanders([], node.proc.path, node.names).runs(node.exe.name, lambda _pid: None)
