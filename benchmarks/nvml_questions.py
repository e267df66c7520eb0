"""Every question that the service asks of an NVIDIA GPU through NVML, and a guard against other calls."""

from __future__ import annotations

import re
import statistics
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_uint
from dataclasses import dataclass
from typing import Any

import pynvml

from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.nvml import ArgumentError, Handle, NotFoundError, NotSupportedError, Session

WIDTH = 120  # of a page
TIMES = 50  # each question; the median counts
_MOST_INSTANCES = 16  # more than any GPU can be cut into
_READS = re.compile(
    r"nvml(?:Init\w*|Shutdown|ErrorString|(?:System|Device|GpuInstance|ComputeInstance)Get\w+)", re.ASCII
)


_NAMES = re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{4})[0-9a-f-]+", re.ASCII)


def cut(text: str) -> str:
    """UUIDs to their first eight characters."""
    return _NAMES.sub(r"\1", text)


def wrapped(page: str) -> str:
    """A page with its prose in lines of one width; headings and tables stay as they are."""
    return "\n\n".join(map(_wrapped, page.strip().split("\n\n"))) + "\n"


def _wrapped(block: str) -> str:
    if block.startswith(("#", "|")):
        return block
    lines = block.split("\n") if block.startswith("* ") else [" ".join(block.split())]
    indent = "  " if block.startswith("* ") else ""
    return "\n".join(
        textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for line in lines
    )


class NotARead(RuntimeError):
    """A function of the library that may change something was called where only reads are allowed."""


@contextmanager
def reads_only() -> Iterator[None]:
    """No function of NVML but those that only read: pynvml finds all of them in one place."""
    find = pynvml._nvmlGetFunctionPointer  # noqa: SLF001 - the one place

    def found(name: str) -> Any:  # noqa: ANN401 - a C function
        if _READS.fullmatch(name) is None:
            raise NotARead(f"cannot call {name}: only reads are allowed here")
        return find(name)

    pynvml._nvmlGetFunctionPointer = found  # noqa: SLF001 - same
    try:
        yield
    finally:
        pynvml._nvmlGetFunctionPointer = find  # noqa: SLF001 - same


@dataclass(frozen=True)
class Question:
    """One call and what it is asked about; ``about`` tells calls of one name apart."""

    call: Callable[..., Any]
    args: tuple[object, ...]
    about: str = ""

    @property
    def name(self) -> str:
        """As pynvml has it."""
        return str(self.call.__name__)

    def ask(self, nvml: Session) -> object:
        """The answer; None where the device does not know such a thing."""
        if self.call is pynvml.nvmlDeviceGetFieldValues:  # says of each field whether it is known
            handle, number = self.args
            return nvml.field(handle, int(str(number)))
        return nvml.ask(self.call, *self.args)


@dataclass(frozen=True)
class Answer:
    """What became of a question (told, untold, error, or none: no such thing is there), and how long it took."""

    question: str
    about: str
    answer: str
    why: str
    microseconds: float


def of_gpu(nvml: Session, gpu: Handle) -> tuple[Question, ...]:
    """Everything that the service asks of a whole GPU."""
    uuid = nvml.ask(pynvml.nvmlDeviceGetUUID, gpu)
    place = nvml.ask(pynvml.nvmlDeviceGetPciInfo_v3, gpu).busId
    clocks = ((pynvml.NVML_CLOCK_GRAPHICS, "graphics"), (pynvml.NVML_CLOCK_MEM, "memory"))
    uncorrected, volatile = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    action, last = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, pynvml.NVML_NVLINK_MAX_LINKS - 1
    fabric, sram = pynvml.c_nvmlGpuFabricInfo_v2_t(), pynvml.c_nvmlEccSramErrorStatus_v1_t()
    return (
        Question(pynvml.nvmlDeviceGetCount, ()),
        Question(pynvml.nvmlSystemGetDriverVersion, ()),
        Question(pynvml.nvmlDeviceGetHandleByIndex, (0,)),
        Question(pynvml.nvmlDeviceGetHandleByUUID, (uuid,)),
        Question(pynvml.nvmlDeviceGetHandleByPciBusId, (place,)),
        *(Question(call, (gpu,)) for call in _PLAIN),
        Question(pynvml.nvmlDeviceGetMemoryInfo, (gpu, pynvml.nvmlMemory_v2), "version 2"),
        Question(pynvml.nvmlDeviceGetTemperatureV, (gpu, pynvml.NVML_TEMPERATURE_GPU)),
        Question(pynvml.nvmlDeviceGetTemperature, (gpu, pynvml.NVML_TEMPERATURE_GPU)),
        Question(
            pynvml.nvmlDeviceGetTemperatureThreshold, (gpu, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN), "slowdown"
        ),
        Question(pynvml.nvmlDeviceGetUtilizationRates, (gpu,)),
        Question(pynvml.nvmlDeviceGetTotalEccErrors, (gpu, uncorrected, volatile), "uncorrected, volatile"),
        Question(pynvml.nvmlDeviceGetFieldValues, (gpu, action), f"field {action}: recovery action"),
        Question(pynvml.nvmlDeviceGetNvLinkState, (gpu, 0), "link 0"),
        Question(pynvml.nvmlDeviceGetNvLinkState, (gpu, last), f"link {last}"),
        Question(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, (gpu, 0), "link 0"),
        Question(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, (gpu, 0), "link 0"),
        Question(pynvml.nvmlDeviceGetGpuFabricInfoV, (gpu, byref(fabric))),
        Question(pynvml.nvmlDeviceGetSramEccErrorStatus, (gpu, byref(sram))),
        *(Question(pynvml.nvmlDeviceGetApplicationsClock, (gpu, clock), name) for clock, name in clocks),
        *(Question(pynvml.nvmlDeviceGetDefaultApplicationsClock, (gpu, clock), name) for clock, name in clocks),
        Question(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, (gpu, 0), "slice 0"),
        Question(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, (gpu, 0), "profile 0"),
    )


_PLAIN: tuple[Callable[..., Any], ...] = (
    pynvml.nvmlDeviceGetUUID,
    pynvml.nvmlDeviceGetName,
    pynvml.nvmlDeviceGetPciInfo_v3,
    pynvml.nvmlDeviceGetMinorNumber,
    pynvml.nvmlDeviceGetSerial,
    pynvml.nvmlDeviceGetCudaComputeCapability,
    pynvml.nvmlDeviceGetArchitecture,
    pynvml.nvmlDeviceGetVirtualizationMode,
    pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
    pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2,
    pynvml.nvmlDeviceGetRemappedRows,
    pynvml.nvmlDeviceGetRetiredPagesPendingStatus,
    pynvml.nvmlDeviceGetCurrPcieLinkWidth,
    pynvml.nvmlDeviceGetPcieReplayCounter,
    pynvml.nvmlDeviceGetCurrentClocksEventReasons,
    pynvml.nvmlDeviceGetSupportedEventTypes,
    pynvml.nvmlDeviceGetEccMode,
    pynvml.nvmlDeviceGetPersistenceMode,
    pynvml.nvmlDeviceGetComputeMode,
    pynvml.nvmlDeviceGetPowerManagementLimit,
    pynvml.nvmlDeviceGetPowerUsage,
    pynvml.nvmlDeviceGetPowerManagementDefaultLimit,
    pynvml.nvmlDeviceGetMigMode,
    pynvml.nvmlDeviceGetMaxMigDeviceCount,
)


def of_slice(nvml: Session, gpu: Handle, slice_: Handle) -> tuple[Question, ...]:
    """Everything that it asks of a slice beside that."""
    instance_id = nvml.ask(pynvml.nvmlDeviceGetGpuInstanceId, slice_)
    part_id = nvml.ask(pynvml.nvmlDeviceGetComputeInstanceId, slice_)
    instance = nvml.ask(pynvml.nvmlDeviceGetGpuInstanceById, gpu, instance_id)
    part = nvml.ask(pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, part_id)
    profile = nvml.ask(pynvml.nvmlGpuInstanceGetInfo, instance).profileId
    alike, count = (pynvml.c_nvmlGpuInstance_t * _MOST_INSTANCES)(), c_uint(_MOST_INSTANCES)
    return (
        Question(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (slice_,)),
        Question(pynvml.nvmlDeviceGetGpuInstanceId, (slice_,)),
        Question(pynvml.nvmlDeviceGetComputeInstanceId, (slice_,)),
        Question(pynvml.nvmlDeviceGetGpuInstanceById, (gpu, instance_id)),
        Question(pynvml.nvmlDeviceGetGpuInstances, (gpu, profile, alike, byref(count)), f"profile {profile}"),
        Question(pynvml.nvmlGpuInstanceGetInfo, (instance,)),
        Question(pynvml.nvmlGpuInstanceGetComputeInstanceById, (instance, part_id)),
        Question(pynvml.nvmlComputeInstanceGetInfo_v2, (part,)),
        Question(pynvml.nvmlDeviceGetMemoryInfo, (slice_, pynvml.nvmlMemory_v2), "version 2, of a slice"),
    )


def questions(nvml: Session, gpu: Handle) -> tuple[Question, ...]:
    """For a GPU, and the first slice of it where it has any."""
    slice_ = None
    for number in range(nvml.ask_optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0):
        try:
            slice_ = nvml.ask_optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, number)
            break
        except (NotFoundError, ArgumentError):
            continue
    return of_gpu(nvml, gpu) + (() if slice_ is None else of_slice(nvml, gpu, slice_))


def answered(nvml: Session, question: Question, times: int = TIMES) -> Answer:
    """Ask so many times; the last answer and the median time."""
    answer, why, took = "", "", []
    for _ in range(times):
        began = time.perf_counter_ns()
        answer, why = _once(nvml, question)
        took.append((time.perf_counter_ns() - began) / 1000)
    return Answer(question.name, question.about, answer, why, round(statistics.median(took), 1))


def _once(nvml: Session, question: Question) -> tuple[str, str]:
    try:
        return ("untold", "") if question.ask(nvml) is None else ("told", "")
    except NotSupportedError as error:
        return "untold", _why(error)
    except (NotFoundError, ArgumentError) as error:
        return "none", _why(error)
    except DeviceError as error:
        return "error", _why(error)


def _why(error: DeviceError) -> str:
    return str(error.__cause__ or error)
