"""Where the driver shows its state outside of NVML: device nodes, and files of the kernel.

This state can be read while the driver is released for a reset.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scrubber.core.model import DeviceNumber, MemoryManager, NodeKind
from scrubber.devices.base import DeviceError
from scrubber.fence.numbers import number_of

NAME = "nvidia"  # the name of the backend
MAJOR = 195  # of /dev/nvidiaN, whose minor number is N: fixed in the driver (NV_MAJOR_DEVICE_NUMBER)
PERSISTENCE_SOCKET = "run/nvidia-persistenced/socket"  # NVML and nvidia-smi look for it here only

_INITIAL_PID_NAMESPACE = 4026531836  # PROC_PID_INIT_INO: the same on every Linux
_VERSION = re.compile(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)\s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Host:
    """Paths of a node, as this process sees them."""

    root: Path = Path("/")  # where the host's file system is mounted
    proc: Path = Path("/proc")  # of this process, also if the host's is elsewhere
    pid_namespace: int = _INITIAL_PID_NAMESPACE  # the one that shows every process of the node

    @property
    def dev(self) -> Path:
        """Device nodes."""
        return self.root / "dev"

    @property
    def proc_driver(self) -> Path:
        """The folder in which the driver describes itself."""
        return self.root / "proc/driver/nvidia"

    @property
    def sys_module(self) -> Path:
        """The folder of the loaded driver module."""
        return self.root / "sys/module/nvidia"

    @property
    def persistence_sockets(self) -> tuple[Path, ...]:
        """Where nvidia-persistenced listens: on the node, or in the driver container of NVIDIA's operator."""
        return (self.root / PERSISTENCE_SOCKET, self.root / "run/nvidia/driver" / PERSISTENCE_SOCKET)

    @property
    def sys_pci(self) -> Path:
        """The folder of devices by PCI address."""
        return self.root / "sys/bus/pci/devices"

    def graphics_numbers(self, pci_address: str) -> frozenset[DeviceNumber]:
        """The numbers of the GPU's nodes below /dev/dri. None where the module nvidia-drm is not loaded."""
        numbers = set()
        for file in (self.sys_pci / pci_address / "drm").glob("*/dev"):
            with suppress(OSError, ValueError):  # the module is being unloaded
                major, minor = file.read_text().split(":")
                numbers.add(DeviceNumber(NodeKind.CHARACTER, int(major), int(minor)))
        return frozenset(numbers)

    def numbers_of(self, files: Iterable[str]) -> frozenset[DeviceNumber]:
        """The numbers of those that are device nodes."""
        numbers = set()
        for file in files:
            with suppress(OSError):  # it is made when it is first needed
                numbers.add(number_of(Path(file)))
        return frozenset(number for number in numbers if number is not None)

    def driver(self) -> str:
        """Version and instance of the loaded driver; DeviceError if no driver is loaded."""
        return f"nvidia {self.driver_version()} {self.driver_instance()}"

    def driver_version(self) -> str:
        """The version, such as 580.95.05."""
        found = _VERSION.search(self._says_of_itself())
        if found is None:
            raise DeviceError(f"cannot tell the driver's version: {self.proc_driver / 'version'} does not name it")
        return found[1]

    def has_open_modules(self) -> bool:
        """Whether the kernel modules are the open ones; DeviceError if no driver is loaded."""
        return "Open Kernel Module" in self._says_of_itself()

    def _says_of_itself(self) -> str:
        try:
            return (self.proc_driver / "version").read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise _not_loaded(error) from error

    def driver_instance(self) -> str:
        """Identifies this load of the driver: a different value means that the driver was loaded again.

        A proof is valid for one instance of the driver. The version does not identify an instance, because the same
        version can be loaded again. The inode number of the module's directory in sysfs does: the kernel counts these
        numbers up, keeps the number while the directory exists, and repeats one only after two thousand million others.
        Its times do not help: they change when the kernel drops the inode from its cache and creates it
        again.
        """
        try:
            return f"{self.sys_module.stat().st_ino:x}"
        except OSError as error:
            raise _not_loaded(error) from error

    def memory_manager(self, pci_address: str) -> MemoryManager:
        """Who manages the memory of a GPU. It matters for GPUs that share it coherently with the host (GH200, GB200).

        The driver's open modules say so (nv-procfs.c, nv-reg.h): only a GPU whose memory the driver gives to Linux has
        the file ``numa_status``, and the option EnableUserNUMAManagement is 0 if the driver keeps the memory of all.
        That follows from CoherentGPUMemoryMode=driver, and from R615 on it is the default. Older drivers than R580 do
        not list CoherentGPUMemoryMode, and do not have this mode.
        """
        try:
            if "numa_status" in os.listdir(self.proc_driver / "gpus" / pci_address):  # noqa: PTH208 - names
                return MemoryManager.LINUX
            params = (self.proc_driver / "params").read_text()
        except (OSError, UnicodeDecodeError):
            return MemoryManager.UNKNOWN
        options = dict(line.split(": ", 1) for line in params.splitlines() if ": " in line)
        kept = options.get("EnableUserNUMAManagement") == "0" and "CoherentGPUMemoryMode" in options
        return MemoryManager.DRIVER if kept else MemoryManager.UNKNOWN

    def boot_id(self) -> str:
        """The ID of this boot of the node. Raises OSError."""
        return (self.proc / "sys/kernel/random/boot_id").read_text().strip()

    def runs(self, pid: int) -> bool:
        """Whether the process runs. True also if this pid namespace does not show all processes."""
        return not self.names_every_process() or (self.proc / str(pid)).exists()

    def names_every_process(self) -> bool:
        """Whether NVML's lists are complete: NVML omits processes that this pid namespace does not show."""
        try:
            return str((self.proc / "self/ns/pid").readlink()) == f"pid:[{self.pid_namespace}]"
        except OSError:
            return False


def _not_loaded(error: OSError | UnicodeDecodeError) -> DeviceError:
    why = f"{error.filename}: {str(error.strerror).lower()}" if isinstance(error, OSError) else error
    return DeviceError(f"cannot find the NVIDIA driver: {why}; load it, or read in the kernel log why it is not loaded")
