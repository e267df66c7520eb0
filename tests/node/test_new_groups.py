"""Control groups that begin are reported at once. The groups are of this machine's kernel."""

from __future__ import annotations

import resource
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrubber.node.new_groups import NewGroups
from tests.control_groups import group

__all__ = ["group"]  # a fixture

POD = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
POD_SLICE = f"kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice"


@pytest.fixture
def new(group: Path, tmp_path: Path) -> Iterator[NewGroups]:
    """Of a node with a slice of systemd and those above pods."""
    for place in ("system.slice", "kubepods/burstable", "kubelet/kubepods", POD_SLICE):
        (group / place).mkdir(parents=True)
    for place in ("run/systemd/units", "run/containerd/io.containerd.runtime.v2.task/k8s.io"):
        (tmp_path / place).mkdir(parents=True)
    new = NewGroups(group, tmp_path)
    yield new
    new.close()


def tells(new: NewGroups) -> bool:
    """Whether it tells of something new now, and only once."""
    assert new.descriptor is not None
    waiting = select.poll()
    waiting.register(new.descriptor, select.POLLIN)
    is_readable, began = bool(waiting.poll(0)), new.any()
    assert (is_readable, new.any()) == (began, False)
    return began


@pytest.mark.parametrize(
    "place",
    [
        "system.slice/dcgm.service", "monitors.slice", "init.scope", "kubepods.slice/kubepods-besteffort.slice",
        f"kubepods/pod{POD}", f"kubepods/burstable/pod{POD}", f"kubelet/kubepods/pod{POD}",
    ],
)  # fmt: skip
def test_a_new_group_is_reported_when_it_is_there(new: NewGroups, group: Path, place: str) -> None:
    assert not tells(new)
    (group / place).mkdir()
    assert tells(new)


def test_groups_in_a_new_slice_are_reported(new: NewGroups, group: Path) -> None:
    (group / "a.slice/a-b.slice").mkdir(parents=True)
    assert tells(new)
    for place in ("a.slice/x.service", "a.slice/a-b.slice/y.service"):
        (group / place).mkdir()
        assert tells(new), place
    for place in ("a.slice/a-b.slice/y.service", "a.slice/a-b.slice"):
        (group / place).rmdir()
    assert not tells(new), "an end is no beginning"
    (group / "a.slice/a-b.slice/z.service").mkdir(parents=True)
    assert tells(new)


@pytest.mark.parametrize("place", [f"{POD_SLICE}/container", "system.slice/a.service/inner"])
def test_what_begins_in_a_pod_or_unit_is_not_reported(new: NewGroups, group: Path, place: str) -> None:
    (group / place).parent.mkdir(exist_ok=True)
    new.any()
    (group / place).mkdir()
    assert not tells(new)


def test_systemd_and_the_runtime_tell_what_they_start(new: NewGroups, tmp_path: Path) -> None:
    link = tmp_path / "run/systemd/units/.#invocation:dcgm.service"
    link.symlink_to("9f0a6c1f6a0b7c118d2f4b9e0d3c4a57")
    new.any()
    link.rename(link.with_name("invocation:dcgm.service"))
    assert tells(new), "as systemd puts it there"
    (tmp_path / "run/containerd/io.containerd.runtime.v2.task/k8s.io/1").mkdir()
    assert tells(new)


def test_a_runtime_that_is_installed_later_is_watched(new: NewGroups, group: Path, tmp_path: Path) -> None:
    containers = tmp_path / "run/containers/storage/overlay-containers"
    containers.mkdir(parents=True)
    (group / "system.slice/crio.service").mkdir()
    assert tells(new)
    (containers / "1").mkdir()
    assert tells(new)


def test_without_inotify_nothing_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        new = NewGroups(tmp_path, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (new.descriptor, new.any()) == (None, False)
    assert "Too many open files" in capsys.readouterr().out
    new.close()
