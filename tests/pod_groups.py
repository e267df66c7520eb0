"""A pod with its own control group, for tests of what finds the pod by it. Making the group takes root."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


def roots() -> dict[str, Path]:
    """A hierarchy of each version, as far as this machine has them."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    first = [Path(it[1]) for it in mounts if it[2] == "cgroup" and "pids" in it[3].split(",")]
    second = [Path(it[1]) for it in mounts if it[2] == "cgroup2"]
    return {name: found[0] for name, found in (("first", first), ("second", second)) if found}


@pytest.fixture
def running_pod() -> Iterator[tuple[str, int]]:
    """The UID of a pod with its own control group, and the pid of a process in it, such as a sandbox."""
    uid = str(uuid.uuid4())
    groups = [root / f"kubepods/pod{uid}" for root in roots().values()]
    try:
        for group in groups:
            group.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"takes root, to make a control group: {error.strerror}")
    with subprocess.Popen(["sleep", "60"]) as sandbox:
        for group in groups:
            (group / "cgroup.procs").write_text(str(sandbox.pid))
        yield uid, sandbox.pid
        sandbox.kill()
    for group in groups:
        with suppress(FileNotFoundError):  # the test has removed it
            group.rmdir()
        with suppress(OSError):  # a kubelet or another test uses it
            group.parent.rmdir()
