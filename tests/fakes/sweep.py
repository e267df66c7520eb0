"""Every function of the stand-in as pynvml calls it: what a sweep over all errors needs."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Structure, byref, c_uint
from dataclasses import dataclass
from typing import Any

import pynvml

WHOLE_GI_1G, WHOLE_CI_1G = 19, 0


@dataclass(frozen=True)
class Held:
    """Handles of everything there is: a GPU that is cut into slices, another one, and what is in the first."""

    gpu: Any
    other: Any
    slice: Any
    gi: Any
    ci: Any
    events: Any

    @classmethod
    def now(cls) -> Held:
        gpu, other = pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlDeviceGetHandleByIndex(1)
        piece = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
        gi = pynvml.nvmlDeviceGetGpuInstanceById(gpu, pynvml.nvmlDeviceGetGpuInstanceId(piece))
        ci = pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, 0)
        return cls(gpu, other, piece, gi, ci, pynvml.nvmlEventSetCreate())


Call = Callable[[Held], object]


def _placement() -> object:
    return byref(pynvml.c_nvmlGpuInstancePlacement_t(6, 1))


def _ci_placement() -> object:
    return byref(pynvml.c_nvmlComputeInstancePlacement_t(0, 1))


def _gi_array() -> object:
    return (pynvml.c_nvmlGpuInstance_t * 8)()


def _sram() -> Structure:
    status: Structure = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    return status


def _raw(symbol: str) -> Call:
    """A function that no wrapper calls any more, and a driver still has."""

    def call(_: Held) -> None:
        code = pynvml._nvmlGetFunctionPointer(symbol)()
        if code:
            raise pynvml.NVMLError(code)

    return call


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Of a GPU, with nothing else to say: the name of the wrapper follows from the function's.
_PLAIN = _words("""
    UUID Name MinorNumber PciInfo_v3 CudaComputeCapability Architecture
    MemoryBusWidth ComputeRunningProcesses_v3 GraphicsRunningProcesses_v3
    MPSComputeRunningProcesses_v3 EccMode RemappedRows RetiredPagesPendingStatus
    PersistenceMode ComputeMode AccountingMode PowerManagementLimit PowerManagementDefaultLimit
    PowerUsage CurrentClocksEventReasons
    SupportedEventTypes CurrPcieLinkGeneration MaxPcieLinkGeneration CurrPcieLinkWidth PerformanceState
    PcieReplayCounter MigMode MaxMigDeviceCount VirtualizationMode GpuInstanceId
    ComputeInstanceId DeviceHandleFromMigDeviceHandle
""")

# Of a GPU, and one number: a clock, a sensor, a link, a cause ...
_NUMBERED = _words("""
    ClockInfo MaxClockInfo ApplicationsClock DefaultApplicationsClock Temperature TemperatureV
    TemperatureThreshold NvLinkState NvLinkRemoteDeviceType
    MigDeviceHandleByIndex GpuInstanceById
""")

_RESETS = ("ApplicationsClocks", "GpuLockedClocks", "MemoryLockedClocks")
_MODES = ("PersistenceMode", "ComputeMode", "AccountingMode", "EccMode", "MigMode")


def _get(what: str) -> Call:
    return lambda held: getattr(pynvml, f"nvmlDeviceGet{what}")(held.gpu)


def _get_one(what: str) -> Call:
    return lambda held: getattr(pynvml, f"nvmlDeviceGet{what}")(held.gpu, 0)


def _set(what: str) -> Call:
    return lambda held: getattr(pynvml, f"nvmlDeviceSet{what}")(held.gpu, 0)


def _reset(what: str) -> Call:
    return lambda held: getattr(pynvml, f"nvmlDeviceReset{what}")(held.gpu)


CALLS: dict[str, Call] = {
    **{f"nvmlDeviceGet{what}": _get(what) for what in _PLAIN},
    **{f"nvmlDeviceGet{what}": _get_one(what) for what in _NUMBERED},
    **{f"nvmlDeviceSet{what}": _set(what) for what in _MODES},
    **{f"nvmlDeviceReset{what}": _reset(what) for what in _RESETS},
    "nvmlInitWithFlags": lambda _: pynvml.nvmlInit(),
    "nvmlInit_v2": _raw("nvmlInit_v2"),
    "nvmlShutdown": lambda _: pynvml.nvmlShutdown(),
    "nvmlSystemGetDriverVersion": lambda _: pynvml.nvmlSystemGetDriverVersion(),
    "nvmlSystemGetNVMLVersion": lambda _: pynvml.nvmlSystemGetNVMLVersion(),
    "nvmlSystemGetCudaDriverVersion": lambda _: pynvml.nvmlSystemGetCudaDriverVersion(),
    "nvmlSystemGetCudaDriverVersion_v2": lambda _: pynvml.nvmlSystemGetCudaDriverVersion_v2(),
    "nvmlDeviceGetCount_v2": lambda _: pynvml.nvmlDeviceGetCount(),
    "nvmlDeviceGetHandleByIndex_v2": lambda _: pynvml.nvmlDeviceGetHandleByIndex(0),
    "nvmlDeviceGetHandleByUUID": lambda _: pynvml.nvmlDeviceGetHandleByUUID("GPU-none"),
    "nvmlDeviceGetHandleByPciBusId_v2": lambda _: pynvml.nvmlDeviceGetHandleByPciBusId("0000:1b:00.0"),
    "nvmlDeviceGetMemoryInfo_v2": lambda held: pynvml.nvmlDeviceGetMemoryInfo(held.gpu, pynvml.nvmlMemory_v2),
    "nvmlDeviceGetSramEccErrorStatus": lambda held: pynvml.nvmlDeviceGetSramEccErrorStatus(held.gpu, byref(_sram())),
    "nvmlDeviceGetTotalEccErrors": lambda held: pynvml.nvmlDeviceGetTotalEccErrors(held.gpu, 1, 0),
    "nvmlDeviceGetFieldValues": lambda held: pynvml.nvmlDeviceGetFieldValues(held.gpu, [230]),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": lambda held: pynvml.nvmlDeviceGetNvLinkRemotePciInfo(held.gpu, 0),
    "nvmlDeviceGetGpuFabricInfoV": lambda held: pynvml.nvmlDeviceGetGpuFabricInfoV(
        held.gpu, byref(pynvml.c_nvmlGpuFabricInfoV_t())
    ),
    "nvmlDeviceSetPowerManagementLimit": lambda held: pynvml.nvmlDeviceSetPowerManagementLimit(held.gpu, 300000),
    "nvmlDeviceSetApplicationsClocks": lambda held: pynvml.nvmlDeviceSetApplicationsClocks(held.gpu, 3201, 900),
    "nvmlEventSetCreate": lambda _: pynvml.nvmlEventSetCreate(),
    "nvmlEventSetWait_v2": lambda held: pynvml.nvmlEventSetWait(held.events, 0),
    "nvmlDeviceRegisterEvents": lambda held: pynvml.nvmlDeviceRegisterEvents(held.gpu, 8, held.events),
    "nvmlEventSetFree": lambda held: pynvml.nvmlEventSetFree(held.events),
    "nvmlDeviceGetGpuInstances": lambda held: pynvml.nvmlDeviceGetGpuInstances(
        held.gpu, WHOLE_GI_1G, _gi_array(), byref(c_uint())
    ),
    "nvmlDeviceGetGpuInstanceProfileInfo": lambda held: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(held.gpu, 0, 1),
    "nvmlDeviceGetGpuInstanceProfileInfoV": lambda held: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(held.gpu, 0, 2),
    "nvmlDeviceCreateGpuInstance": lambda held: pynvml.nvmlDeviceCreateGpuInstance(held.gpu, WHOLE_GI_1G),
    "nvmlDeviceCreateGpuInstanceWithPlacement": lambda held: pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
        held.gpu, WHOLE_GI_1G, _placement()
    ),
    "nvmlGpuInstanceGetInfo": lambda held: pynvml.nvmlGpuInstanceGetInfo(held.gi),
    "nvmlGpuInstanceDestroy": lambda held: pynvml.nvmlGpuInstanceDestroy(held.gi),
    "nvmlGpuInstanceGetComputeInstanceById": lambda held: pynvml.nvmlGpuInstanceGetComputeInstanceById(held.gi, 0),
    "nvmlGpuInstanceCreateComputeInstance": lambda held: pynvml.nvmlGpuInstanceCreateComputeInstance(
        held.gi, WHOLE_CI_1G
    ),
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement": lambda held: (
        pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(held.gi, WHOLE_CI_1G, _ci_placement())
    ),
    "nvmlComputeInstanceGetInfo_v2": lambda held: pynvml.nvmlComputeInstanceGetInfo(held.ci),
    "nvmlComputeInstanceDestroy": lambda held: pynvml.nvmlComputeInstanceDestroy(held.ci),
}
