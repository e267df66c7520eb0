"""With the rights that the chart gives the scrubber, and no others, the fence stands and names who asks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from scrubber.fence.kernel import fence
from tests import few_rights
from tests.control_groups import OPENS, foreign, group, identity, owner, run
from tests.deploy import manifests

__all__ = ["foreign", "group", "owner"]  # fixtures

SEALED = ["unshare", "--mount", "sh", "-c", 'mount -o remount,bind,ro / && mount -o remount,bind,ro "$0" && exec "$@"']
FENCES = """
import sys
from pathlib import Path
from scrubber.core.model import DeviceNumber, NodeKind
from scrubber.fence.kernel import fence
from scrubber.node.cgroup_tree import Tree
group, full = Path(sys.argv[1]), DeviceNumber(NodeKind.CHARACTER, 1, 7)
try:
    standing = fence.Fence(group)
except fence.FenceError as error:
    sys.exit(print(error))
for attempt in standing.attempts.new():
    place = Tree(group).place(attempt.group)
    print("refused" if attempt.refused else "opened", place and place.name)
if full in standing.numbers():
    print(standing.counts(full).refused > 0, fence.inspect(group).lease > 0, fence.take_down(group))
else:
    standing.set(full, {int(sys.argv[2])}, refuse=True)
    standing.refuse_for(600)
"""


def fences(group: Path, member: Path, spared: Collection[str] = ()) -> list[str]:
    """What a life of the scrubber says of the fence, with its rights, and the file systems that it cannot write to."""
    scrubber = manifests.container("default", "scrubber")
    assert scrubber["securityContext"]["readOnlyRootFilesystem"] is True
    [groups_of_node] = [it for it in scrubber["volumeMounts"] if it["mountPath"] == "/host/sys"]
    assert groups_of_node["readOnly"] is True
    code = [sys.executable, "-c", FENCES, str(group), str(identity(member))]
    command = [*SEALED, str(fence.root()), *few_rights.reduced(scrubber, spared), *code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def test_the_rights_of_the_scrubber_hold_a_fence(group: Path, owner: Path, foreign: Path) -> None:
    """The first life builds it, the next one finds it, names who asked, and takes it down."""
    assert fences(group, owner) == []
    assert [run(owner, OPENS), run(foreign, OPENS)] == ["opened", "refused"]
    *asked, last = fences(group, owner)
    assert (set(asked), last) == ({"refused /foreign"}, "True True True")
    assert run(foreign, OPENS) == "opened"


def test_without_one_right_the_fence_names_no_opener(group: Path, owner: Path, foreign: Path) -> None:
    assert fences(group, owner, ["KILL", "SYS_PTRACE"]) == []
    run(foreign, OPENS)
    assert "refused None" in fences(group, owner, ["DAC_READ_SEARCH"])


def test_without_another_right_no_fence_is_built(group: Path, owner: Path) -> None:
    [why] = fences(group, owner, ["SYS_ADMIN"])
    assert "takes the capability CAP_SYS_ADMIN" in why
