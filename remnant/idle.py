"""Finds the GPU of the trial, and whether a process uses it: the trial works only on an idle GPU.

It asks only the driver's library and /proc, so that it also works where the files of the kernel are hidden.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ground.quantities import quantity
from policies.policy_model import Policy
from remnant.gpu_identity import listed, whole
from scrubber.core.model import Holder
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import holders as users
from scrubber.devices.nvidia.boards import Board
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library
from scrubber.node.bystanders import Bystander, Bystanders
from scrubber.node.pods import PodNames
from scrubber.node.processes import Processes
from scrubber.node.sandboxes import Sandboxes

PROC = Path("/proc")
_AGAIN = 0.05  # seconds between two observations

_GO_ON = "end it, or, if it is a daemon that only watches, go on with --beside PATH"

Look = tuple[tuple[Holder, ...] | None, bool]  # the holders, and whether every process was searched


class InUse(Exception):
    """A process uses the GPU, or that is unknown."""


@dataclass(frozen=True)
class IdleObserver:
    """Observes the GPUs of this machine: the driver's lists, the memory in use, the open files."""

    host: Host
    library: Library
    beside: tuple[str, ...] = ()  # programs that may have the GPU open, beside those that the usual policy names
    holder: int = 0  # the process of the trial, which may as well

    def board(self, name: str | None) -> Board:
        """The GPU with this UUID or index; without one, the only GPU."""
        with self.library.session() as nvml:
            gpus = listed(nvml)
            if name is None and len(gpus) != 1:
                raise DeviceError(f"this machine has {quantity(len(gpus), 'GPU')}: name one with --gpu")
            for index, (uuid, gpu) in enumerate(gpus.items()):
                if name in (None, uuid, str(index)):
                    return whole(nvml, self.host, gpu, uuid)
        raise DeviceError(f"there is no GPU {name}: the driver lists {len(gpus)}")

    def expect_no_holder(self, board: Board) -> None:
        """InUse if a process uses the GPU, or if that is unknown.

        Where the driver lists no processes, those that can be found are all, if every process can be searched.
        """
        with self.library.session() as nvml:
            gpu = nvml.handle(board.uuid)
            listed, usage = users.pids(nvml, gpu), users.read_usage(nvml, gpu, self.host.runs)
        if listed:
            named = quantity(len(listed), "process", "processes")
            raise InUse(f"the driver lists {named} on it: {', '.join(map(str, sorted(listed)))}")
        holders, everybody = self._look(board)
        if holders is None:
            raise InUse("its holders are unknown")
        if holders:
            raise InUse(f"it is open in {', '.join(map(_named, holders))}; {_GO_ON}")
        if usage.listed:
            raise InUse("the driver lists a process that has just begun to use it")
        if usage.listed is None and not everybody:
            raise InUse("the driver does not list its processes, and not every process can be searched")
        if usage.most > users.IDLE_AT_MOST:
            raise InUse(f"{usage.most} bytes of its memory are in use, and there is no process for them")

    def sees_everybody(self, board: Board) -> bool:
        """Whether every process of this namespace can be searched."""
        return self._look(board)[1]

    def bystanders(self, board: Board) -> list[str]:
        """The programs that have the GPU open and may."""
        seen: list[Holder] = []
        self._look(board, seen)
        return sorted({*map(_named, seen)})

    def wait_until_free(self, board: Board, seconds: float) -> None:
        """Wait until no process uses the GPU; InUse after the time limit."""
        ends = time.monotonic() + seconds
        while True:
            try:
                self.expect_no_holder(board)
            except InUse:
                if time.monotonic() > ends:
                    raise
                time.sleep(_AGAIN)  # the driver has no event for this
            else:
                return

    def _look(self, board: Board, passed: list[Holder] | None = None) -> Look:
        """The holders. Where root may not read some processes, as in a sandbox, only the others are searched.

        ``passed``: gets the bystanders.
        """
        names = PodNames(Sandboxes(self.host.root), self.host.root)  # of nobody here: no process has a pod
        bystanders = Bystanders(tuple(map(Bystander.parse, Policy().evict.all_bystanders())), PROC, names)

        def knows(holder: Holder) -> bool:
            is_bystander = bystanders.knows(holder) or _path(holder) in self.beside
            if is_bystander and passed is not None:
                passed.append(holder)
            return is_bystander

        files = {"device": (str(self.host.dev / board.node),)}
        for whole_node in (True, False):
            look = Processes(PROC, lambda _pid: None, whole_node=whole_node, namespace=self.host.pid_namespace)
            holders = look.holders(files, (self.holder,), is_bystander=knows)["device"]
            if holders is not None:
                return holders, whole_node
        return None, False


def _named(holder: Holder) -> str:
    return f"{_path(holder)} ({holder.pid})"


def _path(holder: Holder) -> str:
    """The program of a process; its name where the path cannot be read."""
    try:
        return os.readlink(PROC / str(holder.pid) / "exe")  # noqa: PTH115 - the text
    except OSError:
        return holder.command
