"""A whole GPU by NVML: properties that stay (architecture, NUMA node), and its sensors.

For Ada and later, NVIDIA recommends the fields 193 to 196 instead of temperature thresholds. Those fields are distances
from a limit, not temperatures. So without a threshold from the driver, no threshold is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pynvml

from scrubber.devices.base import DeviceError, Readings
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import DriverGoneError, Handle, Session, pci_address

_OLDEST = 0  # for an unknown architecture: the rules of the oldest are the strictest
_MILLI = 1000


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
    serial: str | None
    virtual: bool | None  # a vGPU, of which the GPU serves several virtual machines; None: not known

    @property
    def node(self) -> str:
        """The name of the device node, in containers and on the host; its number is not the index."""
        return f"nvidia{self.minor}"


def read(nvml: Session, host: Host, handle: Handle, uuid: str) -> Board:
    """Read all properties; DeviceError if one that a proof or a container needs is missing."""
    place = pci_address(nvml.ask(pynvml.nvmlDeviceGetPciInfo_v3, handle))
    compute = nvml.ask_optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    architecture = nvml.ask_optional(pynvml.nvmlDeviceGetArchitecture, handle)
    ecc = nvml.ask_optional(pynvml.nvmlDeviceGetEccMode, handle)  # the present mode first; None: the GPU has no ECC
    return Board(
        uuid=uuid,
        model=nvml.ask(pynvml.nvmlDeviceGetName, handle),
        memory_bytes=memory(nvml, handle).total,
        pci_address=place,
        minor=nvml.ask(pynvml.nvmlDeviceGetMinorNumber, handle),
        compute=None if compute is None else ".".join(map(str, compute)),
        architecture=_OLDEST if architecture in (None, pynvml.NVML_DEVICE_ARCH_UNKNOWN) else architecture,
        numa_node=_numa_node(host, place),
        ecc=ecc is not None and ecc[0] == pynvml.NVML_FEATURE_ENABLED,
        serial=nvml.ask_optional(pynvml.nvmlDeviceGetSerial, handle),
        virtual=_is_virtual(nvml, handle),
    )


def _is_virtual(nvml: Session, handle: Handle) -> bool | None:
    try:
        mode = nvml.ask_optional(pynvml.nvmlDeviceGetVirtualizationMode, handle)
    except DriverGoneError:
        raise
    except DeviceError:  # the GPU is listed all the same
        return None
    return bool(mode == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)


def _numa_node(host: Host, place: str) -> int | None:
    """The NUMA node of a PCI address; None if the kernel reports none (-1)."""
    try:
        node = int((host.sys_pci / place / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def memory(nvml: Session, handle: Handle) -> pynvml.c_nvmlMemory_v2_t:
    """Total, reserved, free and used bytes. Version 1 would count memory of the driver as used."""
    return nvml.ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)


def sliced(nvml: Session, handle: Handle) -> bool:
    """Whether MIG mode is on, so that the GPU is offered in slices only."""
    mode = nvml.ask_optional(pynvml.nvmlDeviceGetMigMode, handle)
    return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def readings(nvml: Session, in_reset: Callable[[str], bool]) -> dict[str, Readings]:
    """The sensors of all GPUs by UUID. A GPU that is ``in_reset`` is not asked; one that cannot be read is left out."""
    by_uuid: dict[str, Readings] = {}
    for index in range(nvml.ask(pynvml.nvmlDeviceGetCount)):
        with suppress(DeviceError):
            gpu = nvml.gpu(index)
            uuid: str = nvml.ask(pynvml.nvmlDeviceGetUUID, gpu)
            if in_reset(uuid):
                continue
            slowdown = nvml.ask_optional(
                pynvml.nvmlDeviceGetTemperatureThreshold, gpu, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            )
            milliwatts = nvml.ask_optional(pynvml.nvmlDeviceGetPowerUsage, gpu)
            by_uuid[uuid] = Readings(
                index=index,
                celsius=_celsius(nvml, gpu),
                slowdown_celsius=slowdown,
                watts=None if milliwatts is None else milliwatts / _MILLI,
            )
    return by_uuid


def _celsius(nvml: Session, gpu: Handle) -> int | None:
    """The temperature, by the older call if the driver has no newer one: NVIDIA will remove the older call."""
    for function in (pynvml.nvmlDeviceGetTemperatureV, pynvml.nvmlDeviceGetTemperature):
        celsius: int | None = nvml.ask_optional(function, gpu, pynvml.NVML_TEMPERATURE_GPU)
        if celsius is not None:
            return celsius
    return None
