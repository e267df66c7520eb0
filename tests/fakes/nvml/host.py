"""A host's files as the NVIDIA driver makes them, under a root of a test's own: devices, capabilities, /proc, /sys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.fakes.nvml import capabilities
from tests.fakes.nvml.machine import Gpu, Machine

SHARED_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")

_PARAMS = """\
EnableMSI: 1
EnableUserNUMAManagement: 1
InitializeSystemMemoryAllocations: 1
CoherentGPUMemoryMode: ""
RegistryDwords: ""
RegistryDwordsPerDevice: ""
"""


@dataclass(frozen=True)
class Root:
    """The folder that stands for ``/``. Device nodes are plain files, so that anybody may make and open them."""

    machine: Machine
    path: Path

    @classmethod
    def of(cls, machine: Machine, path: Path) -> Root:
        """All that the driver makes for this machine."""
        root = cls(machine, path)
        root._driver()
        root._gpus()
        for minor, gi, ci in capabilities.opened(machine.read()):
            capabilities.show(path, minor, gi, ci)
        machine.set(root=path)  # from now on they follow
        return root

    def node(self, gpu: Gpu) -> Path:
        """The file that each user of the GPU has open."""
        return self.path / f"dev/nvidia{gpu.minor}"

    def pci(self, gpu: Gpu) -> Path:
        """Where the kernel tells of it."""
        return self.path / "sys/bus/pci/devices" / gpu.pci

    def manage_memory(self, gpu: Gpu, params: str, *, numa: bool) -> None:
        """What a driver shows that was loaded with these parameters. ``numa``: the GPU's memory is a NUMA node."""
        _write(self.path / "proc/driver/nvidia/params", f"{_PARAMS}{params}")
        if numa:
            _write(self.path / f"proc/driver/nvidia/gpus/{gpu.pci}/numa_status", "Node:      1\nStatus:    online\n")

    def capability(self, gpu: Gpu, gi: int, ci: int | None = None) -> Path:
        """The file under /proc that tells which node opens an instance."""
        return capabilities.access(self.path, gpu.minor, gi, ci)

    def _driver(self) -> None:
        version = self.machine.get("driver_version")
        for name in SHARED_NODES:
            _write(self.path / "dev" / name, "")
        what = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (builder@example)\n"
        _write(self.path / "proc/driver/nvidia/version", what + "GCC version:  gcc version 12.2.0\n")
        _write(self.path / "proc/driver/nvidia/params", _PARAMS)
        _write(self.path / "sys/module/nvidia/version", f"{version}\n")
        _write(self.path / "sys/module/nvidia/refcnt", "1\n")
        _write(self.path / "sys/module/nvidia/holders/nvidia_uvm", "")
        _write(self.path / "sys/module/nvidia_uvm/refcnt", "0\n")

    def _gpus(self) -> None:
        with self.machine.edit() as state:
            for gpu in self.machine.gpus:
                node = self.node(gpu)
                self._gpu(node, self.pci(gpu), state[gpu.prefix + "numa_node"], state[gpu.prefix + "pci_device_id"])
                state[gpu.prefix + "device_file"] = str(node)  # where nvidia-smi looks for who has it open

    def _gpu(self, node: Path, pci: Path, numa_node: str, device_id: str) -> None:
        minor, number = node.name.removeprefix("nvidia"), int(device_id)
        _write(node, "")
        _write(pci / "numa_node", f"{numa_node}\n")
        _write(pci / "vendor", f"0x{number & 0xFFFF:04x}\n")
        _write(pci / "device", f"0x{number >> 16:04x}\n")
        _write(pci / "class", "0x030200\n")
        _write(self.path / f"proc/driver/nvidia/gpus/{pci.name}/information", f"Device Minor: \t {minor}\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
