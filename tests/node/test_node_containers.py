"""A process is told to its pod by its control groups, whatever state it is in; what is hidden is not the host's."""

from __future__ import annotations

from pathlib import Path

import pytest

from scrubber.node import group_places, proc
from scrubber.node.node_containers import Containers
from tests.node.conftest import NodeProc

U = "0aa1e0d4-11aa-4b3c-9d3e-5f6a7b8c9d0e"
V = "ffffffff-11aa-4b3c-9d3e-5f6a7b8c9d0e"
H = "a1" * 32
OUTSIDE = f"container:{H[:12]}"
OURS = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{U.replace('-', '_')}.slice"


def test_control_groups_show_the_owner_of_each_living_process(node_proc: NodeProc) -> None:
    node_proc.add(1, "0::/init.scope\n")
    node_proc.add(7, f"0::{OURS}/crio-{H}.scope\n", state="Z")
    node_proc.add(8, f"0::/docker/{H}\n", state="D")
    observer = Containers(node_proc.path)
    assert [observer.of(pid) for pid in (1, 7, 8, 9)] == [None, U, OUTSIDE, None]
    assert observer.living() == {OUTSIDE: 8}
    node_proc.add_thread(7, 9, f"0::{OURS}\n")
    assert observer.living() == {U: 7, OUTSIDE: 8}


def test_a_pod_that_starts_is_found_among_the_newest(node_proc: NodeProc) -> None:
    """Who goes through all processes gets the oldest of each: a sandbox ends last."""
    for pid, group in ((7, f"/docker/{H}"), (8, OURS), (9, OURS)):
        node_proc.add(pid, f"0::{group}\n")
    observer = Containers(node_proc.path)
    assert observer.living([U]) == {U: 9}
    assert observer.living([U, V]) == observer.living() == {OUTSIDE: 7, U: 8}


def test_a_newline_in_a_group_name_adds_no_group(node_proc: NodeProc) -> None:
    (node_proc.add(7, "") / "cgroup").write_bytes(f"0::/docker/{H}/x\r0::/kubepods/pod{V}/\n".encode())
    assert Containers(node_proc.path).of(7) == OUTSIDE


def test_threads_show_the_container_of_an_ending_process_cgroup_v1(node_proc: NodeProc) -> None:
    """The kernel shows an ending process at the root, where no process may be ended."""
    node_proc.add(7, "4:cpu:/\n0::/\n", state="Z", ending=True)
    observer = Containers(node_proc.path)
    assert observer.of(7) is None
    node_proc.add_thread(7, 8, "4:cpu:/\n0::/\n", state="Z", ending=True)
    node_proc.add_thread(7, 9, f"4:cpu:/kubepods/pod{U}/{H}\n0::/\n")
    assert (observer.of(7), observer.living()) == (U, {U: 7})
    node_proc.add(5, "4:cpu:/\n0::/\n", state="D", ending=True)
    with pytest.raises(proc.BlindError, match="cannot find the container of process 5: it is ending"):
        observer.of(5)
    assert observer.living() == {U: 7}


@pytest.mark.parametrize("fault", ["missing", "empty", "unreadable"])
def test_a_process_with_hidden_groups_is_not_the_hosts(node_proc: NodeProc, fault: str) -> None:
    directory = node_proc.add(7, "0::/\n")
    (directory / "cgroup").unlink()
    if fault == "empty":
        (directory / "cgroup").touch()
    if fault == "unreadable":
        (directory / "cgroup").mkdir()
    observer = Containers(node_proc.path)
    with pytest.raises(proc.BlindError, match="cannot find the container of process 7"):
        observer.of(7)
    with pytest.raises(proc.BlindError):
        observer.living()


def test_without_the_mount_of_the_groups_no_end_is_reported(tmp_path: Path, node_proc: NodeProc) -> None:
    root = tmp_path / "groups"
    group = root / f"kubepods/pod{U}"
    group.mkdir(parents=True)
    (root / "cgroup.controllers").touch()
    (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    node_proc.add(7, f"0::/kubepods/pod{U}\n")
    observer = Containers(node_proc.path, groups=root)
    assert observer.of(7) == U
    root.rename(tmp_path / "elsewhere")
    assert not observer.has_ended(U)


def test_another_pid_namespace_cannot_list_the_pods(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").touch()
    with pytest.raises(proc.BlindError, match="cannot list the running pods: run the service in the host's pid"):
        Containers(tmp_path).living()


def test_a_group_that_cannot_be_read_may_hold_a_process(tmp_path: Path) -> None:
    (tmp_path / "cgroup.events").mkdir()
    assert group_places.is_populated(tmp_path)
