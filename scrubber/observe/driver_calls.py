"""Asks the backend about devices: inventory, incarnation, use counter, lists of holders, vitals.

Callers can share an observation. This module also says when a silent driver is not a fault of the device. Late and
missing answers count as vitals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from scrubber.core.model import DeviceInfo, DeviceNumber, Incarnation, Vitals
from scrubber.core.use_counter import UseReading
from scrubber.devices.base import (
    Address,
    Backend,
    Counts,
    DeviceError,
    DeviceLostError,
    DriverClosedError,
    DriverOpeningError,
    Readings,
    ShortageError,
)
from scrubber.devices.blocking_calls import Caller
from scrubber.fence.guard import Guard

T = TypeVar("T")


class DriverCalls:
    """The service's questions to one driver. ``patience``: the seconds that an answer may take.

    ``jobs.driver_release`` maintains ``resetting`` and ``releases``. During a reset by the service, the driver is
    released, and a missing answer does not show a fault.
    """

    def __init__(
        self,
        backend: Backend,
        boot_id: str,
        *,
        guard: Guard | None = None,
        patience: float = 2.0,
        caller: Caller | None = None,
    ) -> None:
        """``guard``: tells who opens a device, if the kernel can; otherwise None."""
        self.backend = backend
        self.guard = guard
        self.patience = patience
        self.caller = caller or Caller()
        self.resetting: set[str] = set()  # the devices that the service resets itself, and their siblings
        self.releases = 0  # releases of the driver that are in force: the driver is not reacquired yet
        self._boot_id = boot_id
        self._incarnation = Shared(lambda _asked: self.caller.ask("driver", self.read_incarnation, self.patience))

    async def inventory(self) -> tuple[DeviceInfo, ...]:
        """All devices. Raises DeviceError if they cannot be listed."""
        return await self.caller.ask("inventory", self._read_inventory, self.patience)

    async def pending_restores(self) -> Mapping[str, Address]:
        """The GPUs that have a pending restore, with their addresses. Can raise DeviceError."""
        return await self.caller.ask("pending restores", self.backend.pending_restores, self.patience)

    async def renew_fence(self) -> None:
        """Have the fence renew its rules, by the policy and the node, and its lease. Can raise DeviceError."""
        if self.guard is not None:
            await self.caller.ask("fence", self.guard.rules.renew, self.patience)

    async def incarnation(self) -> Incarnation:
        """This boot and this driver instance. Raises DeviceError if the driver cannot be asked."""
        return await self._incarnation.ask()

    # -- in a thread

    def _read_inventory(self) -> tuple[DeviceInfo, ...]:
        devices = self.backend.inventory()
        if self.guard is not None:
            self.guard.rules.learn({device.uuid: self._numbers(device.uuid) for device in devices})
        return devices

    def _numbers(self, uuid: str) -> frozenset[DeviceNumber]:
        try:
            return self.backend.numbers(uuid)
        except DeviceError:  # it is of an earlier driver instance
            return frozenset()

    def read_uses(self, uuid: str) -> UseReading:
        """The fence, if it guards the device; otherwise ``Backend.read_uses``."""
        reading = self.guard.count.read(uuid) if self.guard is not None else None
        return reading if reading is not None else self.backend.read_uses(uuid)

    def read_incarnation(self) -> Incarnation:
        """``incarnation``, asked in the thread of the caller."""
        return Incarnation(self._boot_id, self.backend.driver())

    def answer(self, question: Callable[[str], T], uuid: str) -> T | None:
        """The answer of the backend; None during an orphaned reset."""
        return None if self.in_orphaned_reset(uuid) else question(uuid)

    def in_orphaned_reset(self, uuid: str) -> bool:
        """Whether a reset tool still resets the device after its worker has ended.

        The state and the holders of the device are unknown then.
        """
        return uuid not in self.resetting and self.backend.in_reset(uuid)

    # -- what an error means

    def caused_by_release(self, error: DeviceError) -> bool:
        """Whether the driver did not answer because it is released, or is setting up its GPUs."""
        return isinstance(error, DriverOpeningError) or (isinstance(error, DriverClosedError) and self.releases > 0)

    def says_nothing(self, error: DeviceError) -> bool:
        """Whether the device is not the cause: the driver is away, or the service or its node lacks something."""
        return isinstance(error, ShortageError) or self.caused_by_release(error)


class Shared(Generic[T]):
    """One observation for all callers that ask before it begins.

    A caller that asks after that gets the next observation.
    """

    def __init__(self, observe: Callable[[frozenset[str]], Awaitable[T]]) -> None:
        """``observe`` is given everything that was asked about."""
        self._observe = observe
        self._turn = asyncio.Lock()
        self._asked: set[str] = set()
        self._next: asyncio.Task[T] | None = None

    async def ask(self, *about: str) -> T:
        """The answer of an observation that begins after this call."""
        self._asked.update(about)
        if self._next is None:
            self._next = asyncio.create_task(self._take())
            # Its callers may be gone when it fails.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._next)

    async def _take(self) -> T:
        async with self._turn:
            asked, self._asked, self._next = frozenset(self._asked), set(), None
            return await self._observe(asked)


class HealthReports:
    """What the devices report about themselves."""

    def __init__(self, driver: DriverCalls) -> None:
        self._driver = driver
        self._late: dict[str, float] = {}  # since when a device does not answer, by the clock of ``Caller``

    def is_late(self, uuid: str) -> bool:
        """Whether the last health report of a device was late."""
        return uuid in self._late

    async def vitals(self, uuid: str, parent: str | None = None) -> Vitals | None:
        """Health as the device reports it. Without a report: the logged signs alone (``partial``), or None.

        If a slice is missing, its GPU, the ``parent``, tells whether the GPU was partitioned again. One late answer is
        not a sign, because drivers hold their locks while another device is reset; two late answers in a row are a
        sign. What a device reports during a reset is not a sign either. An answer that was late before the driver was
        released or opened no longer counts after that.
        """
        try:
            vitals = await self._driver.caller.ask(uuid, lambda: self._vitals(uuid, parent), self._driver.patience)
        except DeviceError as error:
            silent, logged = self.unanswered(uuid, error), await self._logged(uuid)
            return replace(silent, xids=logged.xids, signs=logged.signs) if silent and logged else silent or logged
        if vitals is not None:
            self._late.pop(uuid, None)
        return vitals

    async def memory(self, uuid: str) -> Counts | None:
        """The driver's counts of the device's memory now; None if the driver does not give them."""
        try:
            return await self._driver.caller.ask(uuid, lambda: self._driver.backend.memory(uuid), self._driver.patience)
        except DeviceError:
            return None

    def unanswered(self, uuid: str, error: DeviceError) -> Vitals | None:
        """What a failed question says about the health of a device; None if it says nothing, or nothing yet."""
        if self._driver.caused_by_release(error):
            self._late.pop(uuid, None)
        silent = None if self._driver.says_nothing(error) else silence(error)
        if silent is None or silent.lost:
            return silent
        caller = self._driver.caller
        if uuid not in self._late:
            self._late[uuid] = caller.time()
            return None
        # While a late call hangs, further calls fail at once. That is the same late answer, so wait.
        return silent if caller.could_run(self._late[uuid], self._driver.patience) else None

    async def _logged(self, uuid: str) -> Vitals | None:
        """What the log says about a device. The log is read separately from the driver, because the driver may hang."""
        try:
            return await self._driver.caller.ask(f"log {uuid}", lambda: self._read_log(uuid), self._driver.patience)
        except DeviceError:  # the device has no log, or the log cannot be read now: that proves no health either
            return None

    def _read_log(self, uuid: str) -> Vitals | None:
        driver = self._driver
        # What a device logs during a reset of ours is expected.
        return None if uuid in driver.resetting or driver.in_orphaned_reset(uuid) else driver.backend.reported(uuid)

    async def readings(self) -> Mapping[str, Readings]:
        """What whole GPUs measure; empty while the driver is released or does not answer in time."""
        try:
            return await self._driver.caller.ask("readings", self._driver.backend.readings, self._driver.patience)
        except DeviceError:
            return {}

    def _vitals(self, uuid: str, parent: str | None) -> Vitals | None:
        reported = self._driver.answer(self._driver.backend.vitals, uuid)
        return None if reported is None else self.in_layout(reported, parent)

    def in_layout(self, reported: Vitals, parent: str | None) -> Vitals:
        """The vitals of a slice that may be gone because its GPU was partitioned again.

        A GPU that is in a reset, has a pending restore, or does not answer, says nothing about its slices.
        """
        if not reported.lost or parent is None or self._driver.in_orphaned_reset(parent):
            return reported
        try:
            # If a reset by the service removed the slice, the slice counts as lost.
            ours = parent in self._driver.backend.pending_restores()
            return reported if ours else slice_vitals(reported, self._driver.backend.vitals(parent))
        except DeviceError:
            return reported


def silence(error: DeviceError) -> Vitals:
    """The vitals of a device that does not answer."""
    return Vitals(lost=True) if isinstance(error, DeviceLostError) else Vitals(unresponsive=True, why=str(error))


def slice_vitals(vitals: Vitals, parent: Vitals) -> Vitals:
    """The vitals of a slice. If it is lost while its GPU is there and answers, the GPU has another MIG layout."""
    if not vitals.lost or parent.unresponsive or parent.partial or parent.reset_required:
        return vitals
    return replace(vitals, relaid=parent.relaid or not parent.lost)
