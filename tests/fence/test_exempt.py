"""Who is exempt from the fence: by the unit, or by the namespace of the pod."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scrubber.fence.exempt import Exempt
from scrubber.node.cgroup_tree import Tree
from scrubber.node.pods import PodNames
from scrubber.node.sandboxes import Sandboxes
from tests.control_groups import group, identity
from tests.node.control_groups import Process, enter

__all__ = ["enter", "group"]  # fixtures

DCGM, TENANT = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "1f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


def names(logs: Path) -> PodNames:
    """Of a node whose runtime does not tell them."""
    return PodNames(Sandboxes(logs), logs)


def test_the_pods_of_a_namespace_are_exempt(group: Path, tmp_path: Path) -> None:
    groups = {DCGM: frozenset({7}), TENANT: frozenset({8})}
    exempt = Exempt(Tree(group), lambda pod: groups[pod], names(tmp_path))
    for name in (f"gpu-operator_dcgm-1_{DCGM}", f"team_gpu-operator_{TENANT}"):
        (tmp_path / name).mkdir()
    exempt.read()
    assert exempt.groups((), ("gpu-operator",)) == {7}
    assert exempt.groups((), ()) == frozenset()


def test_a_unit_that_starts_again_is_exempt_again(group: Path, tmp_path: Path) -> None:
    exempt, unit = Exempt(Tree(group), lambda _pod: frozenset(), names(tmp_path)), group / "system.slice/dcgm.service"
    for _ in range(2):
        unit.mkdir(parents=True)
        exempt.read()
        assert exempt.groups(("dcgm.service",), ()) == {identity(unit)}
        unit.rmdir()


def test_a_false_unit_and_a_renamed_pod_are_reported_once(
    group: Path, tmp_path: Path, enter: Callable[[Path], Process], capsys: pytest.CaptureFixture[str]
) -> None:
    (group / "kubepods").mkdir()
    exempt, unit = Exempt(Tree(group, tmp_path), lambda _pod: frozenset(), names(tmp_path)), group / "x.slice/x.service"
    (tmp_path / f"team_train_{DCGM}").mkdir()
    unit.mkdir(parents=True)
    exempt.read()
    assert exempt.groups(("x.service",), ()) == frozenset()
    assert capsys.readouterr().out == "", "systemd makes the group before it says so"
    enter(unit)
    (tmp_path / f"team_train_{DCGM}").rename(tmp_path / f"gpu-operator_x_{DCGM}")
    for _ in range(2):
        exempt.read()
        assert exempt.groups(("x.service",), ("gpu-operator",)) == frozenset()
    lines = capsys.readouterr().out.splitlines()
    assert [DCGM in line for line in lines] == [True, False]
    assert "x.service" in lines[1]


def test_pods_that_cannot_be_read_stay_exempt(group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exempt = Exempt(Tree(group), lambda _pod: frozenset({7}), names(tmp_path))
    (tmp_path / f"gpu-operator_dcgm-1_{DCGM}").mkdir()
    exempt.read()

    def too_many_files(_self: PodNames) -> dict[str, str]:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(PodNames, "read", too_many_files)
    exempt.read()
    assert exempt.groups((), ("gpu-operator",)) == {7}


def test_a_pod_without_groups_is_looked_for_again(group: Path, tmp_path: Path) -> None:
    groups = {DCGM: frozenset[int]()}
    exempt = Exempt(Tree(group), lambda pod: groups[pod], names(tmp_path))
    (tmp_path / f"gpu-operator_dcgm-1_{DCGM}").mkdir()
    exempt.read()
    assert exempt.groups((), ("gpu-operator",)) == frozenset()
    groups[DCGM] = frozenset({7})
    exempt.read()
    assert exempt.groups((), ("gpu-operator",)) == {7}
