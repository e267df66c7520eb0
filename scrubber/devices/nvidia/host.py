"""Where the driver of a node shows itself beside NVML: device nodes, and files of the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NAME = "nvidia"  # of the backend

_INITIAL_PID_NAMESPACE = 4026531836  # PROC_PID_INIT_INO: the same on every Linux


@dataclass(frozen=True, slots=True)
class Host:
    """A node, as seen from here."""

    root: Path = Path("/")  # where the host's file system is
    proc: Path = Path("/proc")  # of this process, wherever the host's may be
    pid_namespace: int = _INITIAL_PID_NAMESPACE  # the one that shows every process of the node

    @property
    def dev(self) -> Path:
        """Device nodes."""
        return self.root / "dev"

    @property
    def proc_driver(self) -> Path:
        """What the driver says of itself."""
        return self.root / "proc/driver/nvidia"

    @property
    def sys_module(self) -> Path:
        """The loaded driver."""
        return self.root / "sys/module/nvidia"

    @property
    def sys_pci(self) -> Path:
        """Devices by their PCI address."""
        return self.root / "sys/bus/pci/devices"

    def boot_id(self) -> str:
        """Names this start of the node. OSError."""
        return (self.proc / "sys/kernel/random/boot_id").read_text().strip()

    def runs(self, pid: int) -> bool:
        """Whether there is such a process; what this namespace does not show may be."""
        return not self.names_every_process() or (self.proc / str(pid)).exists()

    def names_every_process(self) -> bool:
        """Whether NVML's lists are whole: of processes that this one's namespace does not show they say nothing."""
        try:
            return str((self.proc / "self/ns/pid").readlink()) == f"pid:[{self.pid_namespace}]"
        except OSError:
            return False
