"""Where the driver shows its state outside of NVML: device nodes, and files of the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NAME = "nvidia"  # the name of the backend

_INITIAL_PID_NAMESPACE = 4026531836  # PROC_PID_INIT_INO: the same on every Linux


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
    def sys_pci(self) -> Path:
        """The folder of devices by PCI address."""
        return self.root / "sys/bus/pci/devices"

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
