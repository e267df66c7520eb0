"""The machine on which a node runs has control groups of its own, with all controllers that a kubelet needs."""

from pathlib import Path

from tests.cluster.isolated import second_version
from tests.pod_groups import roots

NEEDED = {"cpu", "cpuset", "memory", "pids"}


def test_a_group_of_this_machine_has_what_a_kubelet_needs():
    if not second_version():
        assert all((roots()["first"].parent / name).is_dir() for name in NEEDED)
        return
    root = roots()["second"]
    assert set((root / "cgroup.subtree_control").read_text().split()) >= NEEDED
    (group := root / "kubepods-test").mkdir()
    try:
        assert set((group / "cgroup.controllers").read_text().split()) >= NEEDED
    finally:
        group.rmdir()


def test_this_machine_sees_no_control_group_of_another():
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        assert line.rpartition(":")[2] in ("/", "/programs"), line
