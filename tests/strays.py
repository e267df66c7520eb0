"""What tests may leave on the machine: loop devices, control groups, a fence in the kernel.

Who runs tests is in a control group of its own meanwhile, and so are all programs that it starts. So what others do at
the same time does not count, such as another run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo import groups
from scrubber.fence.kernel import fence
from scrubber.node import own_cgroup

LOOPS = Path("/sys/block")


@dataclass(frozen=True)
class Run:
    """This process, while it runs tests."""

    group: Path  # of this process, and of what it starts
    folders: list[Path]  # below which all of its files are

    def left(self) -> list[str]:
        """What is there that was not there before."""
        below = [Path(at, name) for at, names, _ in os.walk(self.group) for name in names]
        return [*self._loops(), *(f"the control group {group}" for group in below), *self._fence([self.group, *below])]

    def _loops(self) -> Iterator[str]:
        for said in LOOPS.glob("loop*/loop/backing_file"):
            file = Path(said.read_text().rstrip("\n").removesuffix(" (deleted)"))
            if any(file.is_relative_to(folder) for folder in self.folders):
                yield f"/dev/{said.parts[-3]} over {file}"

    def _fence(self, ours: list[Path]) -> Iterator[str]:
        standing, ids = fence.inspect(fence.root()), {group.stat().st_ino for group in ours}
        if standing is not None and any(ids & (rule.open_to or frozenset()) for rule in standing.rules):
            yield "the fence of the whole node: take it away with `autoclave fence off`"


@contextmanager
def watched(*folders: Path) -> Iterator[Run | None]:
    """Be in a group of its own, and know the temporary directories from now on. None: nothing can be left here.

    What is left in the group is removed.
    """
    group, makes = groups.make(), tempfile.mkdtemp
    if group is None:
        yield None
        return
    run, before = Run(group, list(folders)), own_cgroup.find(fence.root()) or fence.root()

    def made(*arguments: str | None, **named: str | None) -> str:
        folder: str = makes(*arguments, **named)
        run.folders.append(Path(folder))
        return folder

    _move_to(group)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "mkdtemp", made)
            yield run
    finally:
        _move_to(before)
        groups.remove(group)


def _move_to(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
