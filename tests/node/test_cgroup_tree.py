"""Control groups of version 2 of this machine's kernel, by their numbers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scrubber.node.cgroup_tree import Tree, is_named
from tests.control_groups import group, identity

__all__ = ["group"]  # a fixture

POD = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


def made(place: Path) -> int:
    """The number of a new control group."""
    place.mkdir(parents=True)
    return identity(place)


def test_a_unit_is_found_in_its_slice(group: Path) -> None:
    tree = Tree(group)
    tree.read()
    assert tree.units(["dcgm.service"]) == frozenset()
    dcgm = made(group / "system.slice/dcgm.service")
    user = identity(group / "system.slice")
    deep = made(group / "a.slice/a-b.slice/telegraf.service")
    tree.read()
    assert tree.units(["dcgm.service", "telegraf.service"]) == {dcgm, deep}
    assert tree.units(["system.slice"]) == {user}


@pytest.mark.parametrize(
    "place",
    [
        "user.slice/user-1000.slice/user@1000.service/app.slice/dcgm.service",
        "kubepods.slice/kubepods-pod1.slice/dcgm.service",
        "kubepods/pod1/dcgm.service",
        "system.slice/docker-1.scope/dcgm.service",
    ],
)
def test_a_group_of_a_user_or_container_is_no_unit(group: Path, place: str) -> None:
    made(group / place)
    tree = Tree(group)
    tree.read()
    assert tree.units(["dcgm.service"]) == frozenset()


def test_a_runtime_that_keeps_pods_below_itself_is_left_out(group: Path) -> None:
    made(group / "system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:1")
    tree = Tree(group)
    tree.read()
    assert tree.units(["containerd.service"]) == frozenset()


def started(host_root: Path, unit: str) -> None:
    """What systemd makes before it starts the processes of a unit."""
    (link := host_root / f"run/systemd/units/invocation:{unit}").parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("9f0a6c1f6a0b7c118d2f4b9e0d3c4a57")


@pytest.mark.parametrize(
    "pods", ["kubepods", "kubepods.slice", "kubelet/kubepods", "kubelet.slice/kubelet-kubepods.slice"]
)
def test_a_unit_is_one_that_systemd_started(group: Path, tmp_path: Path, pods: str) -> None:
    tree, early = Tree(group, tmp_path), made(group / "system.slice/sshd.service")
    made(group / pods)
    late = made(group / "system.slice/dcgm.service")
    tree.read()
    assert tree.units(["sshd.service", "dcgm.service"]) == {early}, "no pod can have made the first"
    assert tree.doubtful == {"dcgm.service": {str(group / "system.slice/dcgm.service")}}
    started(tmp_path, "dcgm.service")
    assert tree.units(["dcgm.service"]) == {late}
    assert tree.doubtful == {}


def test_a_second_group_with_its_name_is_no_unit(group: Path, tmp_path: Path) -> None:
    made(group / "kubepods")
    started(tmp_path, "dcgm.service")
    tree, real = Tree(group, tmp_path), made(group / "system.slice/dcgm.service")
    tree.read()
    assert tree.units(["dcgm.service"]) == {real}
    made(group / "other.slice/dcgm.service")
    tree.read()
    assert tree.units(["dcgm.service"]) == {real}
    later = Tree(group, tmp_path)
    later.read()
    assert later.units(["dcgm.service"]) == frozenset(), "it cannot tell them apart"
    assert len(later.doubtful["dcgm.service"]) == 2


def test_a_pattern_names_units_and_a_path_a_group(group: Path, tmp_path: Path) -> None:
    runtime = made(group / "podruntime/runtime")
    made(group / "kubepods")
    scopes = {made(group / f"system.slice/crio-conmon-{number}.scope") for number in range(2)}
    for number in range(2):
        started(tmp_path, f"crio-conmon-{number}.scope")
    made(group / "system.slice/crio-conmon-2.scope")
    made(group / "podruntime/late")
    tree = Tree(group, tmp_path)
    tree.read()
    assert tree.units(["crio-conmon-*.scope"]) == scopes
    assert tree.units(["conmon-*.scope", "crio-*.slice", "/podruntime/none", "/podruntime/late"]) == frozenset()
    assert tree.units(["/podruntime/runtime"]) == {runtime}


@pytest.mark.parametrize(
    ("names", "place", "is_named_so"),
    [
        (["dcgm.service"], "/system.slice/dcgm.service", True),
        (["dcgm.service"], "/system.slice/not-dcgm.service", False),
        (["crio-conmon-*.scope"], "/machine.slice/crio-conmon-4.scope", True),
        (["user.slice"], "/user.slice/user-0.slice/session-3.scope", True),
        (["/podruntime/runtime"], "/podruntime/runtime/below", True),
        (["/podruntime/runtime"], "/podruntime/runtime-2", False),
        (["/podruntime/runtime"], "/x/podruntime/runtime", False),
        ([], "/user.slice", False),
    ],
)
def test_a_place_has_the_name_of_a_unit(names: list[str], place: str, *, is_named_so: bool) -> None:
    assert is_named(names, place) is is_named_so


@pytest.mark.parametrize(
    ("place", "name", "container"),
    [
        ("system.slice/telegraf.service", "/system.slice/telegraf.service", None),
        ("user.slice/session-1.scope/own/group", "/user.slice/session-1.scope", None),
        ("user.slice", "/user.slice", None),
        ("mine", "/mine", None),
        (
            f"kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice",
            f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice",
            POD,
        ),
        (f"kubepods/burstable/pod{POD}/{'a' * 64}", f"/kubepods/burstable/pod{POD}/{'a' * 64}", POD),
    ],
)
def test_a_group_without_processes_has_a_name(group: Path, place: str, name: str, container: str | None) -> None:
    number = made(group / place)
    found = Tree(group).place(number)
    assert found is not None
    assert (found.name, found.container) == (name, container)
    assert {number, identity(group / Path(place).parts[0])} <= found.groups


def test_a_group_that_is_gone_has_no_name(group: Path) -> None:
    number = made(group / "brief.service")
    (group / "brief.service").rmdir()
    assert Tree(group).place(number) is None


def test_a_group_runs_while_a_process_is_below_it(group: Path) -> None:
    tree, outer, inner = Tree(group), made(group / "outer"), group / "outer/inner"
    made(inner)
    assert not tree.runs(outer)
    with subprocess.Popen(["sleep", "60"]) as process:
        (inner / "cgroup.procs").write_text(str(process.pid))
        assert tree.runs(outer)
        process.kill()
    assert not tree.runs(outer)
    inner.rmdir()
    (group / "outer").rmdir()
    assert not tree.runs(outer)
    assert Tree(group / "missing").runs(outer), "it cannot be told"
