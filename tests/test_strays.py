"""What a test leaves on the machine is named at the end of the run (``conftest._nothing_is_left``)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scrubber.devices.simulated import loops
from scrubber.fence.kernel import fence
from scrubber.fence.kernel.fence import Fence
from tests import strays
from tests.control_groups import FULL, group, identity, made_group, standing

__all__ = ["group", "standing"]  # fixtures


@pytest.mark.skipif(not loops.can_attach(4096), reason="takes root, and loop devices")
def test_each_stray_of_a_run_is_named(group: Path, standing: Fence, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(fence, "root", lambda: group)  # the fence of the test stands there, and not at the real one
    of_others, ours, cells, node = group / "others", group / "ours", tmp_path / "cells", tmp_path / "node"
    run = strays.Run(made_group(ours), [tmp_path])
    standing.set(FULL, {identity(made_group(of_others))}, refuse=False)
    cells.touch()
    os.truncate(cells, 4096)
    assert run.left() == []
    loops.attach(cells, node)
    cells.unlink()
    try:
        [device] = run.left()
        assert device.startswith("/dev/loop")
        assert device.endswith(f" over {cells}")
    finally:
        loops.detach(node)
    service = made_group(ours / "autoclave")
    standing.set(FULL, {identity(service)}, refuse=False)
    assert run.left() == [
        f"the control group {service}",
        "the fence of the whole node: take it away with `autoclave fence off`",
    ]


def test_a_run_is_in_a_group_of_its_own(group: Path) -> None:
    del group  # skips where no group can be made
    text = Path("/proc/self/cgroup").read_text()
    with strays.watched() as run:
        assert run is not None
        assert str(os.getpid()) in (run.group / "cgroup.procs").read_text().split()
        made_group(run.group / "left")
        [left] = run.left()
    assert left.endswith("/left")
    assert (run.group.exists(), Path("/proc/self/cgroup").read_text()) == (False, text)
