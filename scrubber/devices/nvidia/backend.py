"""Sight: which NVIDIA GPUs and MIG slices there are, and how they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pynvml

from scrubber.core.model import DeviceInfo, Vitals
from scrubber.devices.base import Address, Care, DeviceError
from scrubber.devices.nvidia import boards, driver, locks, users, vitals
from scrubber.devices.nvidia.host import NAME, Host
from scrubber.devices.nvidia.inventory import Inventory
from scrubber.devices.nvidia.library import SLICE, Library
from scrubber.devices.nvidia.place import RECREATE


class Nvidia:
    """The backend of GPUs behind NVML."""

    name: str = NAME
    lists_users: bool = True
    one_driver: bool = True
    clears: bool = False
    pace: float = 2.0

    def __init__(
        self,
        host: Host,
        container_of: Callable[[int], str | None],
        living: Callable[[], frozenset[str]],
        settings: Path,
        library: Library | None = None,
    ) -> None:
        """Ask nothing yet. How containers are told apart is not the driver's to know.

        ``settings`` is the folder where a worker keeps the settings that each GPU was first seen with; beside it are
        the locks of resets.
        """
        self._host = host
        self._container_of = container_of
        self._living = living
        self._settings = settings
        self._resets = settings.parent / "resets"
        self._library = library or Library()
        self._inventory = Inventory(host, self._library)
        self._baselines = users.Baselines()

    @staticmethod
    def probe(host: Host, library: Library | None = None) -> str | None:
        """None where there are GPUs to serve; else one sentence that says why not.

        A library that is given stays open: without persistence mode the first opening takes seconds a GPU, and whoever
        goes on to serve need not wait for a second one.
        """
        own = library or Library()
        try:
            driver.name(host)
            with own.session() as nvml:
                count = nvml.ask(pynvml.nvmlDeviceGetCount)
            if library is None:
                own.close()
        except DeviceError as error:
            return str(error)
        return None if count else "the NVIDIA driver is loaded and lists no GPU"

    def inventory(self) -> tuple[DeviceInfo, ...]:
        """Every GPU, or its slices where it is sliced, that is there or was once."""
        return self._inventory.look()

    def driver(self) -> str:
        """Version and instance, from the kernel: answers while NVML is closed."""
        return driver.name(self._host)

    def in_use(self, uuid: str) -> bool | None:
        """By the driver's lists and by the memory in use; never no while either cannot be trusted."""
        with self._library.session() as nvml:
            handle = nvml.handle(uuid)
            if not uuid.startswith(SLICE) and boards.sliced(nvml, handle):
                return None  # its slices' users are not its own
            usage = users.look(nvml, handle, self._host.runs)
        if usage.listed is not True and not self._host.names_every_process():
            return None
        return users.in_use(usage, self._baselines.learn(uuid, self.driver(), usage))

    def listed(self, uuid: str) -> frozenset[int]:
        """Everybody whom its lists name."""
        with self._library.session() as nvml:
            return users.pids(nvml, nvml.handle(uuid))

    def vitals(self, uuid: str) -> Vitals:
        """Health as the driver tells it now."""
        loaded = self.driver()
        with self._library.session() as nvml:
            return vitals.of(
                nvml,
                uuid,
                self._host.runs,
                lambda usage: users.leaked(usage, self._baselines.learn(uuid, loaded, usage)),
            )

    def files(self, uuid: str) -> tuple[str, ...]:
        """Device nodes, and for a slice the driver's files that open it as well. Answers while NVML is closed."""
        return self._inventory.seen(uuid).files

    def reach(self, uuid: str, care: Care) -> tuple[str, ...]:
        """Nodes of all GPUs that go down with it: whoever uses a slice has its GPU's open as well."""
        if uuid.startswith(SLICE) and care.slices == RECREATE:
            return self.files(uuid)
        return self._inventory.domain_nodes(uuid)

    def address(self, uuid: str, care: Care) -> Address:
        """What a worker child must know to handle it, with the idle baseline, which it has no time to learn."""
        info = self._inventory.seen(uuid).info
        place = {
            "uuid": uuid,
            "root": str(self._host.root),
            "pci_address": info.pci_address,
            "minor": info.minor,
            "parent": info.parent,
            "baseline": str(self._settings / f"{info.parent or uuid}.json"),
            "means": care.means,
            "slices": care.slices,
            "wanted": dict(care.settings),
            "pid_namespace": self._host.pid_namespace,
            "reset_seconds": care.reset_seconds,
            "resets": str(self._resets),
            "domain": info.reset_domain or info.parent or uuid,
            "idle_bytes": self._baselines.of(uuid, self.driver()),
        }
        return Address(self.name, json.dumps(place))

    def in_reset(self, uuid: str) -> bool:
        """Whether a reset that takes it down is under way, whoever began it. Answers while NVML is closed."""
        info = self._inventory.seen(uuid).info
        return locks.held(locks.file_of(self._resets, info.reset_domain or info.parent or uuid))

    def container_of(self, pid: int) -> str | None:
        """The pod or container that a process belongs to."""
        return self._container_of(pid)

    def living(self) -> frozenset[str]:
        """All pods and containers of which any process still runs."""
        return self._living()

    def let_go(self) -> None:
        """Close NVML until it is taken up again."""
        self._library.let_go()

    def take_up(self) -> None:
        """Allow NVML again."""
        self._library.take_up(opened=True)
