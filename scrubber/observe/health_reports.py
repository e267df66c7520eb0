"""The vitals and readings that devices report. Late and missing answers also count as vitals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from scrubber.core.model import Vitals
from scrubber.devices.base import Counts, DeviceError, DeviceLostError, Readings
from scrubber.observe.driver_calls import DriverCalls


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
