"""The backend for NVML: GPUs and slices, their health, memory, numbers and listed holders, and the alarm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pynvml

from ground.documents import strict_json
from scrubber.core.model import DeviceInfo, DeviceNumber, NodeKind, Sign, Vitals
from scrubber.core.use_counter import NoUseCounter, UseReading
from scrubber.cuda import cupy_loading
from scrubber.cuda.images import image_for
from scrubber.devices.base import Address, Counts, DeviceError, DeviceHandling, DriverOpeningError, OpenFiles, Readings
from scrubber.devices.nvidia import boards, holders, locks, pending_restore
from scrubber.devices.nvidia.address import WorkerTarget
from scrubber.devices.nvidia.health import vitals, xid_messages
from scrubber.devices.nvidia.health.listener import Listener
from scrubber.devices.nvidia.health.watch import BestSeenFile, SignWatch
from scrubber.devices.nvidia.holders import Idle, Usage
from scrubber.devices.nvidia.host import MAJOR, NAME, Host
from scrubber.devices.nvidia.inventory import Inventory
from scrubber.devices.nvidia.nvml import SLICE, Handle, Library, Session
from scrubber.node.kernellog import KernelLog
from scrubber.node.node_containers import Containers


class Nvidia:
    """The backend of NVIDIA GPUs, which asks NVML."""

    name: str = NAME
    pace: float = 2.0

    def __init__(
        self,
        host: Host,
        containers: Containers,
        settings: Path,
        library: Library,
        kernel: KernelLog | None = None,
        whole: Callable[[int], bool] = xid_messages.always,
    ) -> None:
        """Open nothing yet. The caller provides the lookup of containers and the kernel log.

        ``settings`` is the folder where workers store the settings that each GPU was first seen with. The folder of
        reset locks is next to it. ``whole`` says which XIDs concern every slice of a GPU, even if they name one slice.
        """
        self._missing = cupy_loading.missing()
        self._host = host
        self._containers = containers
        self._settings = settings
        self._resets = settings.parent / locks.FOLDER
        self._library = library
        self._inventory = Inventory(host, library)
        self._idle_memory = holders.IdleMemory()
        self._watch = SignWatch(BestSeenFile(settings.parent / "seen", host.boot_id))
        self._listener = Listener(library, kernel, whole)

    @staticmethod
    def probe(host: Host, library: Library) -> str | None:
        """None if there are GPUs to serve; otherwise one sentence that says why not.

        The library stays open: without persistence mode, setting up its GPUs takes seconds for each, and a service
        should do that once. The probe does not wait until the GPUs are set up.
        """
        try:
            host.driver()
            with library.session() as nvml:
                count = nvml.ask(pynvml.nvmlDeviceGetCount)
        except DriverOpeningError:
            return None
        except DeviceError as error:
            return str(error)
        return None if count else "the NVIDIA driver is loaded and lists no GPU"

    def lacks(self, device: DeviceInfo) -> str | None:
        """CuPy, checked without loading it, or kernels for this GPU. A GPU of unknown compute capability may try."""
        if self._missing is not None or device.compute is None:
            return self._missing
        major, minor = map(int, device.compute.split("."))
        try:
            image_for((major, minor))
        except ValueError as error:
            return str(error)
        return None

    def inventory(self) -> tuple[DeviceInfo, ...]:
        """Every GPU, or the slices of a sliced GPU, that is present or was seen before."""
        return self._inventory.read()

    def driver(self) -> str:
        """Version and instance of the driver, from the kernel. Works while NVML is closed."""
        return self._host.driver()

    def has_holders(self, uuid: str) -> bool | None:
        """By the driver's process lists and by the memory in use; never False while either is not reliable."""
        with self._library.session() as nvml:
            handle = nvml.handle(uuid)
            if not uuid.startswith(SLICE) and boards.sliced(nvml, handle):
                return None  # NVML lists the holders of slices with the slices only
            usage = holders.read_usage(nvml, handle, self._host.runs)
        return self._used(usage, self._idle_memory.learn(uuid, self.driver(), usage, self._most_idle(uuid)))

    def _most_idle(self, uuid: str) -> int:
        with suppress(DeviceError):
            return holders.idle_at_most(self._inventory.seen(uuid).info.model)
        return holders.IDLE_AT_MOST

    def _used(self, usage: Usage, idle: Idle) -> bool | None:
        if usage.listed is not True and not self._host.names_every_process():
            return None
        return holders.in_use(usage, idle)

    def listed_holders(self, uuid: str) -> frozenset[int]:
        """All processes that NVML lists for the device."""
        with self._library.session() as nvml:
            return holders.pids(nvml, nvml.handle(uuid))

    def read_uses(self, uuid: str) -> UseReading:  # noqa: ARG002 - the port's
        """None: only the fence counts who opens a GPU."""
        return NoUseCounter("no fence guards it")

    def open_files(self, uuid: str) -> OpenFiles:  # noqa: ARG002 - the port's
        """Not known: the kernel counts them for all GPUs together, and with much else (docs/noticed-late.md)."""
        return OpenFiles(None, frozenset())

    def numbers(self, uuid: str) -> frozenset[DeviceNumber]:
        """Those of the GPU, or of the nodes that give access to a slice. Works while NVML is closed."""
        seen = self._inventory.seen(uuid)
        if uuid.startswith(SLICE):
            return self._host.numbers_of(seen.files)
        assert seen.info.minor is not None  # noqa: S101 -- the inventory has read it
        graphics = self._host.graphics_numbers(seen.info.pci_address or "")
        return graphics | {DeviceNumber(NodeKind.CHARACTER, MAJOR, seen.info.minor)}

    def memory(self, uuid: str) -> Counts:
        """The counts of NVML, which the service has open: so a worker need not open it before it uses CUDA."""
        with self._library.session() as nvml:
            counts = boards.memory(nvml, nvml.handle(uuid))
        return counts.total, counts.reserved, counts.used

    def vitals(self, uuid: str) -> Vitals:
        """Health as the driver reports it now, with the logged signs."""
        return self.quick_observation(uuid)[0]

    def quick_observation(self, uuid: str) -> tuple[Vitals, bool | None]:
        """Vitals and holders from one reading of NVML. Holders of a sliced or silent GPU are unknown."""
        loaded, most_idle, in_use = self.driver(), self._most_idle(uuid), None
        with self._library.session() as nvml:
            health, usage = vitals.read(nvml, uuid, self._host.runs, lambda gpu: self._signs(nvml, uuid, gpu))
        if usage is not None:
            idle = self._idle_memory.learn(uuid, loaded, usage, most_idle)
            health, in_use = replace(health, leaked_bytes=holders.leaked(usage, idle.bytes)), self._used(usage, idle)
        return self._with_logged(uuid, health), in_use

    def reported(self, uuid: str) -> Vitals:
        """XIDs and fatal errors of NVSwitches. Works while NVML is closed or hangs."""
        return self._with_logged(uuid, Vitals(partial=True))

    def _signs(self, nvml: Session, uuid: str, handle: Handle) -> tuple[Sign, ...]:
        gpu = self._inventory.gpu_of(uuid)
        return () if gpu is None else self._watch.signs(nvml, gpu, handle, whole=gpu == uuid)

    def _with_logged(self, uuid: str, health: Vitals) -> Vitals:
        place = self._inventory.place_of(uuid)
        if place is None:
            return health
        # A slice has no links. All GPUs of a node share one switch fabric, also a GPU whose links that error took down.
        switches = () if uuid.startswith(SLICE) else self._listener.switches()
        return replace(health, xids=self._listener.xids(*place), signs=(*health.signs, *switches))

    def alarm(self) -> int:
        """Start to follow the kernel log and NVML events; return the alarm file."""
        return self._listener.open()

    def clear_alarm(self) -> None:
        """Make the alarm file unreadable until the next message."""
        self._listener.clear_alarm()

    def close(self) -> None:
        """Stop following the kernel log and NVML events."""
        self._listener.close()

    def readings(self) -> dict[str, Readings]:
        """Temperature and power of every GPU that can be read; DriverClosedError while NVML is closed."""
        with self._library.session() as nvml:
            return boards.readings(nvml, self.in_reset)

    def files(self, uuid: str) -> tuple[str, ...]:
        """Device nodes, and for a slice also the driver's access files. Works while NVML is closed."""
        return self._inventory.seen(uuid).files

    def reach(self, uuid: str) -> tuple[str, ...]:
        """Device nodes of all GPUs that the reset takes down. A holder of a slice has its GPU's node open as well."""
        return self._inventory.domain_nodes(uuid)

    def address(self, uuid: str, handling: DeviceHandling) -> Address:
        """The target of a worker child, with the idle memory, which a worker has no time to learn."""
        seen = self._inventory.seen(uuid)
        info, gpu = seen.info, seen.info.parent or uuid
        # For mypy: the inventory has read both.
        assert info.pci_address is not None  # noqa: S101 -- see above
        assert info.minor is not None  # noqa: S101 -- see above
        target = replace(
            self._target(gpu, info.pci_address, info.minor),
            uuid=uuid,
            parent=info.parent,
            virtual=seen.virtual,
            left=handling.left,
            reset_seconds=handling.reset_seconds,
            locks=tuple(sorted(self._inventory.neighbours.down_with(gpu))),
            links=tuple(sorted(self._watch.links(gpu))),
            idle_bytes=self._idle_memory.of(uuid, self.driver(), holders.idle_at_most(info.model)).bytes,
        )
        return Address(self.name, strict_json.encode(target).decode())

    def _target(self, gpu: str, pci_address: str, minor: int) -> WorkerTarget:
        """A whole GPU."""
        return WorkerTarget(
            gpu,
            str(self._host.root),
            pci_address,
            minor,
            parent=None,
            first_seen=str(self._settings / f"{gpu}.json"),
            resets=str(self._resets),
            pid_namespace=self._host.pid_namespace,
        )

    def in_reset(self, uuid: str) -> bool:
        """Whether any process runs a reset that takes the device down. Answers while NVML is closed.

        For a slice that this service never saw: whether any reset is under way, because its GPU is unknown.
        """
        gpu = self._inventory.gpu_of(uuid)
        if gpu is None:
            return locks.any_held(self._resets)
        return any(locks.held(locks.file_of(self._resets, name)) for name in self._inventory.neighbours.of(gpu))

    def pending_restores(self) -> dict[str, Address]:
        """From the stored files: no inventory lists a GPU whose slices are gone. Answers while NVML is closed."""
        addresses = {}
        for gpu in pending_restore.gpus(self._settings):
            board = self._inventory.board(gpu)
            if board is not None and not self.in_reset(gpu):
                target = replace(self._target(gpu, board.pci_address, board.minor), restore_only=True)
                addresses[gpu] = Address(self.name, strict_json.encode(target).decode())
        return addresses

    def container_of(self, pid: int) -> str | None:
        """The container that a process belongs to."""
        return self._containers.of(pid)

    def living(self, wanted: Collection[str] = ()) -> Mapping[str, int]:
        """All containers that still have a process, each with one of its processes, or at least the ``wanted`` ones."""
        return self._containers.living(wanted)

    def member(self, container: str) -> int | None:
        """A process of the pod, by the pod's control group."""
        return self._containers.member(container)

    def has_ended(self, container: str) -> bool:
        """Whether no process is left in the pod's control group."""
        return self._containers.has_ended(container)

    def release_driver(self) -> None:
        """Close NVML until ``reacquire_driver``."""
        self._library.release_driver()

    def reacquire_driver(self) -> None:
        """Open NVML again."""
        self._library.reacquire_driver(opened=True)
