"""What can be seen of a device just now, gathered into facts. Looks through backend and /proc; decides nothing.

Two looks: the quick one asks the driver alone and is good enough when it says that nobody is there; the full one goes
through all processes, and is the only one that a deed may rest on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from scrubber.core.model import DeviceInfo, Facts, Holder, Incarnation, Record, State, Vitals
from scrubber.devices.base import Backend, DeviceError, DeviceLostError
from scrubber.devices.calls import Caller
from scrubber.node import checkpoint
from scrubber.node.identity import kubelet_epoch
from scrubber.node.processes import Processes

Holders = dict[str, tuple[Holder, ...] | None]
BUSY_STATES = frozenset({State.GRANTED, State.EXPOSED, State.SCRUBBING})


class Sight:
    """The eyes of the service. ``patience`` is how long a driver may take to answer."""

    def __init__(
        self,
        backend: Backend,
        processes: Processes,
        boot_id: str,
        kubelet_dir: Path,
        watched_since: float,
        patience: float = 2.0,
    ) -> None:
        """Nothing is looked at yet. ``watched_since``: the uptime at which this service began."""
        self.backend = backend
        self.patience = patience
        self._processes = processes
        self._boot_id = boot_id
        self._kubelet_dir = kubelet_dir
        self._since = watched_since
        self._late: set[str] = set()
        self._caller = Caller()
        self._ours: set[int] = set()
        self._walking = asyncio.Lock()
        self._asked: set[str] = set()
        self._scan: asyncio.Task[Holders] | None = None

    def own(self, pid: int) -> None:
        """A worker of ours: not a user of the device."""
        self._ours.add(pid)

    def disown(self, pid: int) -> None:
        """The worker has been reaped; its pid may be anybody's now."""
        self._ours.discard(pid)

    async def inventory(self) -> tuple[DeviceInfo, ...]:
        """All devices; raises DeviceError when they cannot be listed."""
        return await self._caller.ask("inventory", self.backend.inventory, self.patience)

    async def quick(self, record: Record) -> Facts:
        """Facts at the price of one question to the driver; a full look where that is not a clear no."""
        try:
            incarnation, in_use = await self._caller.ask(
                record.device.uuid,
                lambda: (self._incarnation(), self.backend.in_use(record.device.uuid)),
                self.patience,
            )
        except DeviceError as error:
            # Whoever asks must hear that the device does not answer; who holds it can be seen all the same.
            return replace(await self.full(record), vitals=_silent(error))
        if in_use is False and record.state is not State.EXPOSED:
            return Facts(incarnation, self.epoch(), (), self._since)
        return await self.full(record)

    async def full(self, record: Record, siblings: Sequence[Record] = (), claimant: str | None = None) -> Facts:
        """Facts that a deed may rest on: everybody who has the device, or one of its siblings, open.

        ``claimant`` is who is about to start on it.
        """
        uuids = [record.device.uuid, *(sibling.device.uuid for sibling in siblings)]
        try:
            incarnation = await self._caller.ask("driver", self._incarnation, self.patience)
            holders = await self._look(uuids)
            alive = await self._alive(record.owner.container if record.owner else None)
            claimant_alive = await self._alive(claimant)
        except DeviceError:
            return Facts(record.incarnation, self.epoch(), None, self._since)
        busy = _siblings_busy(siblings, holders)
        return Facts(
            incarnation, self.epoch(), holders[record.device.uuid], self._since, alive, claimant_alive, busy
        )  # fmt: skip

    async def vitals(self, uuid: str) -> Vitals | None:
        """Health as reported; None while a single report is missing.

        One late answer is no illness: drivers hold their locks while another device is reset. Two in a row are.
        """
        try:
            vitals = await self._caller.ask(uuid, lambda: self.backend.vitals(uuid), self.patience)
        except DeviceError as error:
            vitals = _silent(error)
        if vitals.unresponsive and uuid not in self._late:
            self._late.add(uuid)
            return None
        if not vitals.unresponsive:
            self._late.discard(uuid)
        return vitals

    def epoch(self) -> str:
        """Which life of the kubelet this is."""
        return kubelet_epoch(self._kubelet_dir)

    async def incarnation(self) -> Incarnation:
        """This boot and this driver instance; raises DeviceError when the driver cannot be asked."""
        return await self._caller.ask("driver", self._incarnation, self.patience)

    def _incarnation(self) -> Incarnation:
        return Incarnation(self._boot_id, self.backend.driver())

    async def _look(self, uuids: Sequence[str]) -> Holders:
        """One walk through /proc for all who ask before it begins: a walk that has begun is too old for them."""
        self._asked.update(uuids)
        if self._scan is None:
            self._scan = asyncio.create_task(self._walk())
        return await asyncio.shield(self._scan)

    async def _walk(self) -> Holders:
        async with self._walking:
            asked, self._asked, self._scan = self._asked, set(), None
            return await self._caller.ask("processes", lambda: self._holders(asked), 5 * self.patience)

    def _holders(self, uuids: Collection[str]) -> Holders:
        files = {uuid: self._files(uuid) for uuid in uuids}
        return self._processes.holders(files, exclude=tuple(self._ours))

    def _files(self, uuid: str) -> tuple[str, ...]:
        """None of a device that is gone: who uses it cannot be told, and that is no news of the others."""
        try:
            return self.backend.files(uuid)
        except DeviceError:
            return ()

    async def owners(self, uuids: Sequence[str]) -> dict[str, frozenset[str]]:
        """The pods that the kubelet has written the devices down for; raises CheckpointError when it cannot be read."""
        found = await self._caller.ask("checkpoint", lambda: checkpoint.owners(self._kubelet_dir), self.patience)
        return {uuid: found.get(uuid, frozenset()) for uuid in uuids}

    async def _alive(self, container: str | None) -> bool | None:
        if container is None:
            return None
        return await self._caller.ask("containers", _asking(self.backend, container), self.patience)


def _silent(error: DeviceError) -> Vitals:
    """What is to be thought of a device that gave no answer."""
    return Vitals(lost=True) if isinstance(error, DeviceLostError) else Vitals(unresponsive=True)


def _asking(backend: Backend, container: str) -> Callable[[], bool]:
    return lambda: backend.container_alive(container)


def _siblings_busy(
    siblings: Sequence[Record], holders: Holders
) -> bool | None:  # fmt: skip
    """True, False, or None where one of them could not be looked at."""
    if any(sibling.state in BUSY_STATES for sibling in siblings):
        return True
    seen = [holders[sibling.device.uuid] for sibling in siblings]
    if any(seen):
        return True
    return None if any(one is None for one in seen) else False
