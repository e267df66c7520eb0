"""Which simulated GPUs there are, and how they are."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from scrubber.core.model import DeviceInfo, Vitals
from scrubber.devices.base import Address, Care, DeviceError, Readings
from scrubber.devices.simulated import condition, containers, documents, layout, lease
from scrubber.devices.simulated.alarm import Alarm
from scrubber.devices.simulated.documents import Driver
from scrubber.devices.simulated.layout import GpuFiles
from scrubber.ground import log

logger = log.get("simulated")


class Simulated:
    """The backend of GPUs made of files under one root."""

    name: str = layout.NAME
    lists_holders: bool = False
    one_driver: bool = False
    pace: float = 1.0

    def __init__(self, root: Path) -> None:
        """Look at what is there on the first question."""
        self._root = root
        self._known: dict[str, tuple[GpuFiles, DeviceInfo]] = {}
        self._bell: Alarm | None = None

    def lacks(self, device: DeviceInfo) -> str | None:  # noqa: ARG002 - the port's
        """Nothing: a file needs none."""
        return None

    def inventory(self) -> tuple[DeviceInfo, ...]:
        """Every device that is there, or was once: a known one that cannot be read any more is still named."""
        known = dict(self._known)
        trusted = {place for place, _ in known.values()}
        for place in layout.places(self._root):
            try:
                info = place.info()
            except DeviceError:
                if place not in trusted:
                    raise
                continue
            known[info.uuid] = (place, info)
        self._known = known  # replaced whole: calls come from several threads
        return tuple(sorted((info for _, info in known.values()), key=lambda info: info.index))

    def driver(self) -> str:
        """Version and instance of the pretended driver."""
        driver = documents.read(layout.driver_file(self._root), Driver)
        return f"{self.name} {driver.version} {driver.instance}"

    def has_holders(self, uuid: str) -> bool | None:
        """Exact while the device answers: the kernel knows who has its memory open."""
        place = self._present(uuid)
        return _in_use(place, lost=condition.faults(place).lost)

    def listed_holders(self, uuid: str) -> frozenset[int]:  # noqa: ARG002 - the port's
        """None: every holder has the memory file open."""
        return frozenset()

    def vitals(self, uuid: str) -> Vitals:
        """Health as the device's files say it now."""
        return condition.vitals(self._present(uuid))

    def quick_observation(self, uuid: str) -> tuple[Vitals, bool | None]:
        """Each of its files is read once."""
        place = self._present(uuid)
        found = condition.vitals(place)
        return found, _in_use(place, lost=found.lost)

    def reported(self, uuid: str) -> Vitals | None:
        """Its event log, also while it hangs."""
        return Vitals(xids=condition.xids(self._present(uuid)), partial=True)

    def readings(self) -> dict[str, Readings]:
        """As the GPUs' documents say."""
        found: dict[str, Readings] = {}
        for place in layout.places(self._root):
            with suppress(DeviceError):
                found[place.info().uuid] = condition.readings(place)
        return found

    def files(self, uuid: str) -> tuple[str, ...]:
        """The memory file."""
        return (str(self._place(uuid).memory),)

    def reach(self, uuid: str, care: Care) -> tuple[str, ...]:  # noqa: ARG002 - the port's
        """Its own: each is reset alone."""
        return self.files(uuid)

    def address(self, uuid: str, care: Care) -> Address:  # noqa: ARG002 - the port's
        """The device's directory."""
        return Address(self.name, str(self._place(uuid).directory))

    def container_of(self, pid: int) -> str | None:
        """The simulated container that a process belongs to."""
        return containers.of(pid)

    def living(self) -> dict[str, int]:
        """The simulated containers of which any process still runs, each with one of them."""
        return containers.living()

    def pending_restores(self) -> dict[str, Address]:
        """A reset takes nothing away."""
        return {}

    def in_reset(self, uuid: str) -> bool:  # noqa: ARG002 - the port's
        """A reset ends with the worker that does it."""
        return False

    def alarm(self) -> int | None:
        """The GPUs' documents and event logs are watched; not where this user has too many such watches."""
        try:
            self._bell = self._bell or Alarm(layout.places(self._root))
        except (OSError, DeviceError) as error:
            logger.warning("cannot watch the simulated GPUs: they are looked at once in a while", error=str(error))
            return None
        return self._bell.fileno()

    def clear_alarm(self) -> None:
        """Until the next change."""
        if self._bell is not None:
            self._bell.clear_alarm()

    def close(self) -> None:
        """Watch no more."""
        if self._bell is not None:
            self._bell.close()
        self._bell = None

    def release_driver(self) -> None:
        """Files need no driver."""

    def reacquire_driver(self) -> None:
        """Files need no driver."""

    def _place(self, uuid: str) -> GpuFiles:
        if uuid not in self._known:
            self.inventory()
        if uuid not in self._known:
            raise DeviceError(f"cannot find {uuid}: no simulated gpu of that name under {self._root}")
        return self._known[uuid][0]

    def _present(self, uuid: str) -> GpuFiles:
        place = self._place(uuid)
        if place.info().uuid != uuid:
            raise DeviceError(f"cannot ask {uuid}: another gpu has taken its place")
        return place


def _in_use(place: GpuFiles, *, lost: bool) -> bool | None:
    return None if lost else lease.held(place.memory)
