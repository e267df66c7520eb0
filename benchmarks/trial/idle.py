"""Which GPU is meant, and whether anybody is on it: only an idle one is worked on.

Asked of the driver's library and of /proc alone, so that it can be told also where the kernel's files are hidden.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pynvml

from policies.model import Policy
from scrubber.core.model import Holder
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import holders as users
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.inventory import boards
from scrubber.devices.nvidia.inventory.boards import Board
from scrubber.devices.nvidia.nvml import Library
from scrubber.node.bystanders import Bystander, Bystanders
from scrubber.node.processes import Processes

PROC = Path("/proc")
_AGAIN = 0.05  # seconds between two looks

Look = tuple[tuple[Holder, ...] | None, bool]  # who has it open, and whether nobody could hide


class InUse(Exception):
    """Somebody is on it, or it cannot be told."""


@dataclass(frozen=True)
class Idle:
    """Looks at the GPUs of this machine: the driver's lists, the memory in use, the files that are open."""

    host: Host
    library: Library

    def board(self, name: str) -> Board:
        """By its UUID or its index."""
        with self.library.session() as nvml:
            count = nvml.ask(pynvml.nvmlDeviceGetCount)
            handles = [nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
            for index, gpu in enumerate(handles):
                uuid = nvml.ask(pynvml.nvmlDeviceGetUUID, gpu)
                if name not in (uuid, str(index)):
                    continue
                if boards.sliced(nvml, gpu):
                    raise DeviceError(f"GPU {name} is cut into slices, which are not measured")
                return boards.read(nvml, self.host, gpu, uuid)
        raise DeviceError(f"there is no GPU {name}: the driver lists {count}")

    def expect_nobody(self, board: Board) -> None:
        """Raise where anybody uses it."""
        with self.library.session() as nvml:
            gpu = nvml.handle(board.uuid)
            listed, usage = users.pids(nvml, gpu), users.read_usage(nvml, gpu, self.host.runs)
        if listed:
            raise InUse(f"the driver lists {len(listed)} process(es) on it: {', '.join(map(str, sorted(listed)))}")
        holders, _ = self._look(board)
        if holders is None:
            raise InUse("it cannot be told who has it open")
        if holders:
            raise InUse(f"it is open in {', '.join(f'{it.command} ({it.pid})' for it in holders)}")
        if usage.listed is None:
            raise InUse("the driver does not tell who uses it")
        if users.in_use(usage, users.IDLE_AT_MOST) is not False:
            raise InUse(f"{usage.most} bytes of its memory are in use, and the driver names nobody for them")

    def sees_everybody(self, board: Board) -> bool:
        """Whether no process of this namespace is hidden from us."""
        return self._look(board)[1]

    def wait_for_nobody(self, board: Board, seconds: float) -> None:
        """Until nobody uses it any more."""
        ends = time.monotonic() + seconds
        while True:
            try:
                self.expect_nobody(board)
            except InUse:
                if time.monotonic() > ends:
                    raise
                time.sleep(_AGAIN)  # the driver tells nobody when it has let go
            else:
                return

    def _look(self, board: Board) -> Look:
        """Where some processes hide even from root, as in a sandbox, those that may be looked into have to do."""
        bystanders = Bystanders(tuple(map(Bystander.parse, Policy().evict.bystanders)), PROC, self.host.root)
        files = {"device": (str(self.host.dev / board.node),)}
        for whole_node in (True, False):
            look = Processes(PROC, lambda _pid: None, whole_node=whole_node, namespace=self.host.pid_namespace)
            holders = look.holders(files, is_bystander=bystanders.knows)["device"]
            if holders is not None:
                return holders, whole_node
        return None, False
