"""A bystander is known by its program and by where it runs; an impostor counts as a holder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from policies.model import Evict
from scrubber.core.model import Holder
from scrubber.node import proc
from scrubber.node.bystanders import Bystander, Bystanders
from scrubber.node.processes import Processes
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
        self.elsewhere: list[Bystander] = []
        self.holder = Holder(7, proc.status(str(self.process)).started, "any name", None)

    def be(self, user: int) -> None:
        (self.process / "status").write_text(f"Name:\tx\nUid:\t{user}\t0\t0\t0\nGid:\t0\t0\t0\t0\n")

    def start_from(self, user: int, program: Path) -> None:
        """Its parent is this user's process, and runs this program."""
        parent = self.proc.path / "1"
        (parent / "exe").symlink_to(program)
        (parent / "status").write_text(f"Uid:\t{user}\t0\t0\t0\n")

    def log(self, directory: str) -> Path:
        path = self.logs / directory
        path.mkdir()
        return path

    def relink(self, name: str, target: Path) -> None:
        (self.process / name).unlink()
        (self.process / name).symlink_to(target)

    def knows(self, namespace: str | None = None, holder: Holder | None = None) -> bool:
        known = [Bystander("/usr/bin/another"), Bystander(str(self.exe), namespace)]
        return Bystanders(known, self.proc.path, self.logs, self.elsewhere.append).knows(holder or self.holder)


@pytest.fixture
def node(node_proc: NodeProc, tmp_path: Path) -> Node:
    return Node(node_proc, tmp_path / "root")


def test_a_daemon_of_root_on_the_host_is_a_bystander(node: Node) -> None:
    assert node.knows()


def test_a_bystander_is_known_by_its_program_not_its_name(node: Node) -> None:
    (node.process / "comm").write_text("daemon\n")
    node.relink("exe", node.root / "host")
    assert not node.knows(holder=replace(node.holder, command="daemon"))


def test_the_hosts_daemon_is_no_bystander_in_a_container(node: Node) -> None:
    assert not node.knows(holder=replace(node.holder, container=U))
    assert not node.knows(holder=replace(node.holder, container="container:0123456789ab"))


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_program_writable_by_others_is_no_bystander(node: Node, mode: int) -> None:
    node.exe.chmod(mode)
    assert not node.knows()


def test_a_program_not_owned_by_root_is_no_bystander(node: Node) -> None:
    os.chown(node.exe, 1000, 0)
    assert not node.knows()


def test_a_program_among_other_mounts_is_another_program(node: Node) -> None:
    node.relink("ns/mnt", node.root / "other")
    assert not node.knows()


def test_unreadable_mounts_leave_no_bystander(node: Node) -> None:
    (node.proc.path / "1/ns/mnt").unlink()
    assert not node.knows()


def test_a_daemon_run_by_a_user_is_no_bystander(node: Node) -> None:
    node.be(1000)
    assert not node.knows()


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


def test_a_reused_pid_is_no_bystander(node: Node) -> None:
    assert not node.knows(holder=replace(node.holder, started=node.holder.started - 1))


def test_an_ended_process_is_no_bystander(node: Node) -> None:
    assert not node.knows(holder=replace(node.holder, pid=8))


def test_in_a_pod_it_is_known_by_the_namespace(node: Node) -> None:
    node.log(f"gpu-tools_dcgm-exporter-x_{U}")
    node.relink("ns/mnt", node.root / "other")
    in_pod = replace(node.holder, container=U)
    assert node.knows("gpu-tools", in_pod)
    assert not node.knows("gpu-tools")
    assert node.elsewhere == []
    assert not node.knows("tools", in_pod)
    assert node.elsewhere == [Bystander(str(node.exe), "gpu-tools")]


@pytest.mark.parametrize(
    "name", [f"tenant_gpu-tools_{U}", f"tenant_x_{U}_{U}", f"tenant_gpu-tools_x_{U}", f"gpu-tools_{U}"]
)
def test_a_tenants_pod_keeps_its_namespace_whatever_its_name(node: Node, name: str) -> None:
    node.log(name)
    assert not node.knows("gpu-tools", replace(node.holder, container=U))


def test_a_pod_in_two_namespaces_is_given_no_namespace(node: Node) -> None:
    node.log(f"gpu-tools_a_{U}")
    node.log(f"tenant_a_{U}")
    assert not node.knows("gpu-tools", replace(node.holder, container=U))


def test_a_link_in_the_pod_logs_is_no_pod(node: Node) -> None:
    (node.logs / f"gpu-tools_a_{U}").symlink_to(node.root)
    assert not node.knows("gpu-tools", replace(node.holder, container=U))


def test_without_the_kubelet_s_logs_no_pod_is_known(node: Node) -> None:
    node.logs.rmdir()
    assert not node.knows("gpu-tools", replace(node.holder, container=U))


def test_holders_exclude_bystanders_unless_all_are_requested(node: Node, tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.touch()
    (node.process / "fd/3").symlink_to(device)
    observer = Processes(node.proc.path, lambda _pid: None, whole_node=True, is_open=lambda _files, _beside: None)
    known = Bystanders([Bystander(str(node.exe))], node.proc.path, node.logs)
    assert observer.holders({"gpu": [str(device)]}, is_bystander=known.knows) == {"gpu": ()}
    assert [holder.pid for holder in observer.holders({"gpu": [str(device)]})["gpu"] or ()] == [7]


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
    names = {"dra-driver-nvidia-gpu", "nvidia", "nvidia-gpu-operator", "gpu-operator-resources", "gpu-operator"}
    assert names <= set(Evict().operator_namespaces)


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
    assert extra == {f"mine:{program}" for program in Evict().operator_programs}


def test_a_daemon_runs_only_where_it_is_the_nodes_own(node) -> None:
    known = Bystanders([Bystander(str(node.exe))], node.proc.path, node.logs)
    assert known.runs(node.exe.name, lambda _pid: None)
    assert not known.runs(node.exe.name, lambda _pid: "pod-a")
    assert not known.runs("another", lambda _pid: None)
    assert not Bystanders([], node.proc.path, node.logs).runs(node.exe.name, lambda _pid: None)
