"""A process is told to its pod by its control groups, and what a tenant writes there changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubber.node import cgroups, proc
from scrubber.node.cgroups import Containers, place
from tests.node.conftest import NodeProc

U = "0aa1e0d4-11aa-4b3c-9d3e-5f6a7b8c9d0e"
V = "ffffffff-11aa-4b3c-9d3e-5f6a7b8c9d0e"
U_, V_ = U.replace("-", "_"), V.replace("-", "_")
DIGEST = "0123456789abcdef" * 2  # the UID of a static pod
H, INNER = "a1" * 32, "b2" * 32
OUTSIDE = f"container:{H[:12]}"
SLICES = "/kubepods.slice/kubepods-burstable.slice"
OURS = f"{SLICES}/kubepods-burstable-pod{U_}.slice"

LAYOUTS = {
    f"11:memory:/kubepods/burstable/pod{U}/{H}": U,
    f"12:devices:/kubepods/pod{U}/{H}": U,
    f"0::{OURS}/cri-containerd-{H}.scope": U,
    f"0::/kubepods.slice/kubepods-pod{U_}.slice/crio-{H}.scope/container": U,
    f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{U_}.slice/docker-{H}.scope": U,
    f"0::/../../../kubepods-burstable-pod{U_}.slice/cri-containerd-{H}.scope": U,
    f"1:name=systemd:/system.slice/containerd.service/kubepods-burstable-pod{U_}.slice:cri-containerd:{H}": U,
    f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
    f"kubelet-kubepods-burstable-pod{U_}.slice/cri-containerd-{H}.scope": U,
    f"1:name=systemd:/system.slice/k3s.service/kubepods-pod{U_}.slice:cri-containerd:{H}": U,
    f"0::/kubelet/kubepods/burstable/pod{U}/{H}": U,  # kind with the driver cgroupfs
    f"0::/k3s/kubepods/pod{U}/{H}": U,
    f"0::/../../kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{U_}.slice/cri-containerd-{H}.scope": U,
    f"0::/kubepods/burstable/pod{DIGEST}/{H}": DIGEST,
    f"0::{OURS}/crio-conmon-{H}.scope": U,  # watches a container, and is in none
    f"0::{OURS}/cri-containerd-{H}.scope/docker/{INNER}": U,
    f"0::{OURS}/cri-containerd-{H}.scope/init/nested": U,
    f"0::{OURS}": U,
    f"0::{OURS}/cri-containerd-{H}.scope (deleted)": U,
    f"0::/../../pod{U}/{H}": U,
    f"0::/../../../besteffort/pod{U}/{H}": U,
    f"0::/../cri-containerd-{H}.scope": OUTSIDE,  # of our own pod, seen from within our container
    f"0::/machine.slice/libpod-{H}.scope/container": OUTSIDE,
    f"0::/machine.slice/libpod-conmon-{H}.scope": None,
    f"0::/system.slice/docker-{H}.scope": OUTSIDE,
    f"4:cpu:/docker/{H}": OUTSIDE,
    f"0::/system.slice/some-new-runtime-{H}.scope": OUTSIDE,
    "0::/system.slice/kubelet.service": None,
    "0::/init.scope": None,
    "0::/": None,
}
FORGED = {
    "a pod below one's own container": (f"0::{OURS}/cri-containerd-{H}.scope/kubepods-pod{V_}.slice/{INNER}", U),
    "a pod as the kubelet would make it": (f"4:cpu:/kubepods/pod{U}/{H}/kubepods/burstable/pod{V}/{INNER}", U),
    "a pod below a container of no pod": (f"0::/docker/{H}/kubepods/pod{V}/{INNER}", OUTSIDE),
    "a container of no pod as another": (f"0::/docker/{H}/docker/{INNER}", OUTSIDE),
    "a pod from a second container of our own pod": (f"0::/../{H}/../../pod{V}", OUTSIDE),
    "a pod below a user's session": (f"0::/user.slice/user-1.slice/user@1.service/kubepods/pod{V}", None),
    "a slice below a delegated service": (f"0::/system.slice/runner.service/kubepods-pod{V_}.slice", None),
    "a slice below a delegated scope": (f"0::/system.slice/a.scope/x.slice/kubepods-pod{V_}.slice/{H}", OUTSIDE),
    "a slice as a runtime would make it": (
        f"0::/system.slice/run-u7.service/kubepods-pod{V_}.slice:cri-containerd:{H}",
        OUTSIDE,
    ),
    "a slice below a runtime's service": (f"0::/system.slice/containerd.service/kubepods-pod{V_}.slice", None),
    "a group below a delegated service": (f"0::/system.slice/runner.service/kubepods/burstable/pod{V}", None),
    "a slice below another group": (f"0::/app/kubepods-pod{V_}.slice", None),
    "a pod of LXC": (f"0::/lxc.payload.a/kubepods/pod{V}", None),
    "a pod of LXC, before": (f"4:cpu:/lxc/a/kubepods/pod{V}", None),
    "a pod of systemd-nspawn": (f"0::/machine.slice/machine-a.scope/payload/kubepods/pod{V}", None),
    "a pod outside the kubelet's groups": (f"0::/app/pod{V}", None),
    "a longer name": (f"0::/kubepods/pod{V}0/x", None),
    "a name that ends a line for some": (f"0::/x\u20280::/kubepods/pod{V}\x0b0::/docker/{H}/", OUTSIDE),
}


@pytest.mark.parametrize("line", LAYOUTS)
def test_every_layout_is_read(line: str) -> None:
    assert place(f"{line}\n") == LAYOUTS[line]


@pytest.mark.parametrize("case", FORGED)
def test_a_tenant_cannot_change_the_owner_by_naming_cgroups(case: str) -> None:
    line, name = FORGED[case]
    assert place(line) == name


def test_on_the_first_version_any_hierarchy_tells() -> None:
    assert place(f"12:devices:/\n4:cpu:/kubepods/pod{U}\n2:memory:/kubepods/pod{U}/{H}\n0::/\n") == U


WORDS = st.sampled_from(
    ["/", ":", "kubepods", "-", "pod", U, V_, DIGEST, H, ".slice", ".scope", "..", "\n", "user.slice"]
)
PIECES = st.lists(WORDS | st.text(max_size=4), max_size=12).map("".join)


@given(PIECES)
def test_no_line_makes_the_parser_fail(text: str) -> None:
    name = place(text)
    assert name is None or name.startswith("container:") or name in text.replace("_", "-")


@given(
    st.sampled_from([(f"{OURS}/cri-containerd-{H}.scope", U), (f"/docker/{H}", OUTSIDE)]),
    PIECES.map(lambda text: text.replace("\n", "")),
)
def test_groups_below_a_container_belong_to_it(outer, text: str) -> None:
    group, name = outer
    assert place(f"0::{group}/{text}") == name


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


def test_a_group_that_cannot_be_read_may_hold_a_process(tmp_path: Path) -> None:
    (tmp_path / "cgroup.events").mkdir()
    assert cgroups.is_populated(tmp_path)


def test_another_pid_namespace_cannot_list_the_pods(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").touch()
    with pytest.raises(proc.BlindError, match="cannot list the running pods: run the service in the host's pid"):
        Containers(tmp_path).living()
