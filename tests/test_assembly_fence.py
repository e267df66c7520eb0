"""What keeps watch over who opens a GPU, as the service builds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.policy_model import Policy
from scrubber import assembly_fence
from scrubber.config import ScrubberConfig
from scrubber.fence import fence
from scrubber.node.processes import Processes


def test_groups_that_cannot_be_read_are_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "root", lambda: tmp_path)
    processes = Processes(Path("/proc"), lambda _pid: None, whole_node=False)
    lacks = assembly_fence.guard(
        ScrubberConfig(), None, processes, lambda _device: bool, lambda _device: Policy(), fences=True
    )
    missing = tmp_path / "cgroup.controllers"
    assert lacks == f"cannot fence the GPUs: cannot read {missing}: No such file or directory"
