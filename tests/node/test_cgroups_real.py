"""A pod is there while a process of it runs and gone when the last has ended, told by real groups of every layout.

The groups are made below the root of each hierarchy that this machine lets us write to, as kubelets and runtimes name
them; ``test_group_names`` has the names alone. What is asked looks through the real /proc.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scrubber.core.model import CONTAINER as CONTAINER_OF_NO_POD
from scrubber.node import group_places
from scrubber.node.node_containers import Containers
from tests.node.conftest import DEAD_LEADER
from tests.node.control_groups import CONTAINER, ID, INNER, POD, UID, pod
from tests.pod_groups import roots

NEIGHBOUR = f"ffffffff{UID[8:]}"
GUARANTEED = "cgroupfs, guaranteed"
WATCHER = f"crio-conmon-{ID}.scope"  # of the pod, and in no container


@pytest.fixture
def observer() -> Containers:
    """Of this node."""
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return Containers(Path("/proc"), namespace)


@pytest.mark.parametrize("driver", POD)
def test_a_pod_lives_while_any_of_its_processes_runs(driver, group, enter, observer) -> None:
    members = [enter(group(f"{pod(driver)}/{name}")) for name in (*CONTAINER.values(), WATCHER)]
    assert {observer.of(process.pid) for process in members} == {UID}
    for process in members:
        assert UID in observer.living(), "one is left at least"
        process.collect()
    assert UID not in observer.living(), "its groups are all there still, and empty"


@pytest.mark.parametrize("driver", [it for it in POD if "kind" not in it])
def test_a_process_in_the_pods_group_counts(driver, group, enter) -> None:
    observer = Containers(Path("/proc"), groups=group(""))
    sandbox, process = (enter(group(f"{pod(driver)}/{name}")) for name in ("c3" * 32, f"crio-{ID}.scope/container"))
    assert observer.member(UID) == sandbox.pid, "the oldest one ends last"
    assert observer.member(NEIGHBOUR) is None
    sandbox.collect()
    assert observer.member(UID) == process.pid
    process.collect()
    assert observer.member(UID) is None


@pytest.mark.parametrize("group", ["second"], indirect=True)
@pytest.mark.parametrize(
    ("driver", "above"), [*((it, "") for it in POD), *((it, "/..") for it in POD if "kind" not in it)]
)
def test_the_kernel_tells_the_end_of_a_pod(driver, above, group, enter, node_proc) -> None:
    """In a container, the service sees paths that begin above its own group."""
    observer, inside = Containers(node_proc.path, groups=group("")), f"{pod(driver)}/{ID}/inner"
    process = enter(group(inside))
    assert not observer.has_ended(UID), "no process of it was found so far: it may be elsewhere"
    node_proc.add(7, f"0::{above}/{inside}\n")
    assert (observer.of(7), observer.has_ended(UID)) == (UID, False)
    process.collect()
    assert observer.has_ended(UID)
    again = enter(group(inside))
    assert not observer.has_ended(UID)
    again.collect()
    for part in (inside, f"{pod(driver)}/{ID}", pod(driver)):
        group(part).rmdir()
    assert observer.has_ended(UID), "its groups were removed"


@pytest.mark.parametrize("group", ["second"], indirect=True)
@pytest.mark.parametrize("above", ["/system.slice", "/..", "/../.."])
def test_the_empty_group_of_a_kubelet_tells_no_end(above, group, node_proc) -> None:
    """Where its driver is systemd, and that of the container runtime is not, each container is in a group elsewhere."""
    observer, of_kubelet = Containers(node_proc.path, groups=group("")), group(pod("systemd, burstable"))
    node_proc.add(7, f"0::{above}/{of_kubelet.name}:cri-containerd:{ID}\n")
    assert (observer.of(7), observer.has_ended(UID)) == (UID, False)
    assert group_places.unified_group(group(""), UID, f"{node_proc.path}/7") is None


@pytest.mark.parametrize("group", ["second"], indirect=True)
def test_an_empty_group_at_a_usual_place_tells_no_end(group, node_proc) -> None:
    observer = Containers(node_proc.path, groups=group(""))
    group(pod(GUARANTEED))
    node_proc.add(7, f"0::/../{pod('systemd, in kind')}\n")
    assert (observer.of(7), observer.has_ended(UID)) == (UID, False)


@pytest.mark.parametrize("group", ["second"], indirect=True)
def test_a_pod_in_two_groups_ends_with_both(group, enter, node_proc) -> None:
    """After a change of the kubelet's driver, containers that begin are in another group than those before."""
    observer = Containers(node_proc.path, groups=group(""))
    before, after = pod("systemd, guaranteed"), pod(GUARANTEED)
    node_proc.add(7, f"0::/{before}\n")
    first = enter(group(before))
    assert observer.of(7) == UID
    process = enter(group(after))
    first.collect()
    assert not observer.has_ended(UID)
    process.collect()
    assert observer.has_ended(UID)


@pytest.mark.parametrize("group", ["second"], indirect=True)
def test_beside_groups_of_version_1_no_end_is_reported(group, enter, node_proc) -> None:
    """Another process of the pod may be in it by such a group alone."""
    observer, name = Containers(node_proc.path, groups=group("")), pod(GUARANTEED)
    process = enter(group(name))
    node_proc.add(7, f"4:cpu:/{name}\n0::/{name}\n")
    assert observer.of(7) == UID
    process.collect()
    assert not observer.has_ended(UID)


@pytest.mark.parametrize("group", ["second"], indirect=True)
@pytest.mark.parametrize("driver", POD)
def test_the_group_of_a_pod_is_above_its_containers(driver, group, enter) -> None:
    root = roots()["second"]
    for name in CONTAINER.values():
        process = f"/proc/{enter(group(f'{pod(driver)}/{name}')).pid}"
        assert group_places.unified_group(root, UID, process) == group(pod(driver))
        assert group_places.unified_group(root, NEIGHBOUR, process) is None


@pytest.mark.parametrize("group", ["second"], indirect=True)
def test_a_container_outside_any_pod_has_a_group(group, enter) -> None:
    process = enter(group(f"docker-{ID}.scope/{INNER}"))
    place = group_places.unified_group(roots()["second"], f"{CONTAINER_OF_NO_POD}{ID[:12]}", f"/proc/{process.pid}")
    assert place == group(f"docker-{ID}.scope")


@pytest.mark.parametrize("group", ["first"], indirect=True)
def test_groups_of_the_first_version_are_none_of_the_second(group, enter) -> None:
    process = enter(group(f"{pod('cgroupfs, guaranteed')}/{ID}"))
    assert group_places.unified_group(roots().get("second", Path("/")), UID, f"/proc/{process.pid}") is None


@pytest.mark.parametrize("exists", [True, False], ids=["at a usual place", "elsewhere"])
def test_below_our_own_group_a_usual_place_is_looked_at(exists, tmp_path: Path) -> None:
    """As a service in a container sees it that has a cgroup namespace of its own."""
    (tmp_path / "cgroup").write_text(f"0::/../../burstable/pod{UID}/{ID}\n")
    usual = tmp_path / f"kubepods/burstable/pod{UID}"
    if exists:
        usual.mkdir(parents=True)
    assert group_places.unified_group(tmp_path, UID, str(tmp_path)) == (usual if exists else None)


def test_a_name_that_is_no_uid_leads_to_no_group(tmp_path: Path) -> None:
    (tmp_path / "kubepods").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/cgroup.procs").write_text(str(os.getpid()))
    observer = Containers(Path("/proc"), groups=tmp_path)
    assert [observer.member(name) for name in ("/../../outside", "pod-a", f"container:{ID[:12]}")] == [None] * 3


@pytest.mark.parametrize("code", ["import time; print(1, flush=True); time.sleep(60)", DEAD_LEADER])
def test_a_process_counts_until_its_last_thread_ends(code, group, observer, tmp_path, launch) -> None:
    (tmp_path / "file").touch()
    place = group(pod("cgroupfs, guaranteed"))
    process = launch(f"open({str(place / 'cgroup.procs')!r}, 'w').write('0')\n{code}", tmp_path / "file")
    assert (observer.of(process.pid), UID in observer.living()) == (UID, True)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert UID not in observer.living()
    process.wait()
    assert observer.of(process.pid) is None


def test_only_processes_in_a_pods_groups_keep_it_alive(group, enter, observer) -> None:
    """A release of the pod: an escaped process may still hold a device, and is found there without an owner."""
    inside, outside = group(f"{pod('cgroupfs, guaranteed')}/{ID}"), group("elsewhere")
    process = enter(inside)
    (outside / "cgroup.procs").write_text(str(process.pid))
    assert (observer.of(process.pid), UID in observer.living()) == (None, False)
    (inside / "cgroup.procs").write_text(str(process.pid))
    assert (observer.of(process.pid), UID in observer.living()) == (UID, True)


WITHIN_A_POD = """
import ctypes, os, sys
from pathlib import Path
from scrubber.node.node_containers import Containers
own, pid = sys.argv[1:]
Path(own).write_text("0")
if ctypes.CDLL(None).unshare(0x02000000):  # CLONE_NEWCGROUP: as every container has one, on the second version
    sys.exit("cannot have a namespace of control groups here")
path = Path(f"/proc/{pid}/cgroup").read_text()
assert "/../" in path, path
print(Containers(Path("/proc"), os.stat("/proc/self/ns/pid").st_ino).of(int(pid)))
"""


@pytest.mark.parametrize(
    ("own", "driver"), [*((it, it) for it in POD if "kind" in it), ("cgroupfs, guaranteed", "cgroupfs, besteffort")]
)
def test_a_service_in_a_pod_finds_the_other_pods(own, driver, group, enter) -> None:
    """Its own control group is the root of what it is shown, and theirs begin with steps upwards."""
    beside = group(f"{pod(own, NEIGHBOUR)}/{ID}")
    process = enter(group(f"{pod(driver)}/{ID}"))
    asked = subprocess.run(
        [sys.executable, "-c", WITHIN_A_POD, str(beside / "cgroup.procs"), str(process.pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "cannot have a namespace" in asked.stderr:
        pytest.skip(asked.stderr.strip())
    assert (asked.stdout.strip(), asked.stderr) == (UID, "")
