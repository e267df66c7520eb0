"""A process finds its own control group, and moves into a group of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scrubber.node import own_cgroup
from tests.pod_groups import roots


def test_the_own_group_is_the_one_that_lists_this_process() -> None:
    root = roots().get("second")
    if root is None:
        pytest.skip("no control groups of the second version here")
    mine = own_cgroup.find(root)
    assert mine is not None
    assert str(os.getpid()) in (mine / "cgroup.procs").read_text().split()


MOVES = """
import os, sys
from pathlib import Path
from scrubber.node import group_places, own_cgroup
print(own_cgroup.move_below(Path(sys.argv[1]), "own").name, Path("/proc/self/cgroup").read_text().rpartition("/")[2])
"""


@pytest.mark.parametrize(("read_only", "stays"), [(False, "own own\n"), (True, "started started\n")])
def test_a_process_has_a_group_of_its_own(read_only: bool, stays: str) -> None:  # noqa: FBT001 - a parameter
    root = roots().get("second")
    try:
        assert root is not None
        (started := root / f"test-{os.getpid()}/started").mkdir(parents=True)
    except (AssertionError, OSError) as error:
        pytest.skip(f"takes root, and control groups of the second version: {error}")
    enter = 'echo $$ > "$1/cgroup.procs"; [ -z "$2" ] || mount -o bind,ro "$1" "$1"; exec "$3" -c "$4" "$1"'
    shell = ["unshare", "--mount", "sh", "-ec", enter, "sh"]
    moved = subprocess.run(
        [*shell, str(started), "ro" * read_only, sys.executable, MOVES], capture_output=True, text=True, check=False
    )
    for group in (started / "own", started, started.parent):
        if group.exists():
            group.rmdir()
    assert moved.stdout.strip() == stays.strip(), moved.stderr


def test_a_directory_that_is_no_group_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a control group of version 2"):
        own_cgroup.move_below(tmp_path, "own")
    assert list(tmp_path.iterdir()) == []


def test_a_group_without_this_process_is_not_its_own(tmp_path: Path, monkeypatch) -> None:
    """As in a container, where the path of a process begins at the container's own group."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/inside\n")
    host, container = tmp_path / "host", tmp_path / "container"
    for mount, pid in ((host, 1), (container, os.getpid())):
        (mount / "inside").mkdir(parents=True)
        (mount / "inside/cgroup.procs").write_text(f"{pid}\n")
    monkeypatch.setattr(own_cgroup, "GROUPS", container)
    assert own_cgroup.find(host, tmp_path) == container / "inside"
    (container / "inside/cgroup.procs").write_text("1\n")
    assert own_cgroup.find(host, tmp_path) is None
