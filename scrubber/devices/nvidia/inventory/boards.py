"""The properties of a whole GPU that do not change while NVML stays open."""

from __future__ import annotations

from dataclasses import dataclass

import pynvml

from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.inventory import pci
from scrubber.devices.nvidia.nvml import Handle, Session

_OLDEST = 0  # for an unknown architecture: the rules of the oldest are the strictest


@dataclass(frozen=True, slots=True)
class Board:
    """A whole GPU, sliced or not."""

    uuid: str
    model: str
    memory_bytes: int
    pci_address: str
    minor: int
    compute: str | None
    architecture: int
    numa_node: int | None
    ecc: bool

    @property
    def node(self) -> str:
        """The name of the device node, in containers and on the host; its number is not the index."""
        return f"nvidia{self.minor}"


def read(nvml: Session, host: Host, handle: Handle, uuid: str) -> Board:
    """Read all properties; DeviceError if one that a proof or a container needs is missing."""
    place = pci.address(nvml.ask(pynvml.nvmlDeviceGetPciInfo_v3, handle))
    compute = nvml.ask_optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    architecture = nvml.ask_optional(pynvml.nvmlDeviceGetArchitecture, handle)
    return Board(
        uuid=uuid,
        model=nvml.ask(pynvml.nvmlDeviceGetName, handle),
        memory_bytes=memory(nvml, handle).total,
        pci_address=place,
        minor=nvml.ask(pynvml.nvmlDeviceGetMinorNumber, handle),
        compute=None if compute is None else ".".join(map(str, compute)),
        architecture=_OLDEST if architecture in (None, pynvml.NVML_DEVICE_ARCH_UNKNOWN) else architecture,
        numa_node=pci.numa_node(host, place),
        ecc=_corrects_errors(nvml, handle),
    )


def _corrects_errors(nvml: Session, handle: Handle) -> bool:
    """Whether ECC is in force. A GPU that does not support ECC has none."""
    modes = nvml.ask_optional(pynvml.nvmlDeviceGetEccMode, handle)
    return modes is not None and modes[0] == pynvml.NVML_FEATURE_ENABLED


def memory(nvml: Session, handle: Handle) -> pynvml.c_nvmlMemory_v2_t:
    """Total, reserved, free and used bytes. Version 1 would count memory of the driver as used."""
    return nvml.ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)


def sliced(nvml: Session, handle: Handle) -> bool:
    """Whether MIG mode is on, so that the GPU is offered in slices only."""
    mode = nvml.ask_optional(pynvml.nvmlDeviceGetMigMode, handle)
    return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
