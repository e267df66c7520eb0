"""The plain runtime: one device, the one that CUDA_VISIBLE_DEVICES names when it is first asked for."""

from __future__ import annotations

import ctypes
import os
import time
from functools import cache

from tests.fakes.cuda.device import Device, OutOfMemoryError
from tests.fakes.cuda.gpu import BrokenError
from tests.fakes.cuda.machine import CudaMachine

TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
SHARED_OF_A_BLOCK, SHARED_OF_A_UNIT = 227 * 1024, 228 * 1024  # bytes, at most ...
SHARED_OF_THE_SYSTEM = 1024  # ... of which each block takes so many more


class CUDARuntimeError(RuntimeError):
    """What a call raises that did not do what it should."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@cache
def device() -> Device:
    """Opened at the first call, for the life of the process."""
    found = CudaMachine.of_environment().gpus.get(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    if found is None:
        raise CUDARuntimeError(100, "cudaErrorNoDevice: no CUDA-capable device is detected")
    if found.refuses is not None:
        raise CUDARuntimeError(found.refuses, "cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy")
    return Device(found)


def runtimeGetVersion() -> int:  # noqa: N802 - as it is called there
    return 13000


driverGetVersion = runtimeGetVersion  # noqa: N816 - as it is called there


def getDeviceCount() -> int:  # noqa: N802 - as it is called there
    return device().place.shown


def deviceGetPCIBusId(_number: int) -> str:  # noqa: N802 - as it is called there
    return device().place.pci_address.upper()


def getDeviceProperties(_number: int) -> dict[str, object]:  # noqa: N802 - as it is called there
    shown = device().place.shown_uuid or os.environ["CUDA_VISIBLE_DEVICES"]
    text = shown.partition("-")[2].replace("-", "")
    return {"uuid": bytes.fromhex(text).partition(b"\0")[0] if set(text) <= set("0123456789abcdef") else b""}


def deviceGetAttribute(attribute: int, _number: int) -> int:  # noqa: N802 - as it is called there
    major, minor = device().place.capability
    has = {18: 0, 100: 0} | dict.fromkeys(device().place.has, 1)
    shared = {81: SHARED_OF_A_UNIT, 97: SHARED_OF_A_BLOCK, 111: SHARED_OF_THE_SYSTEM}
    return {16: device().gpu.units, 75: major, 76: minor, **shared, **has}[attribute]


def deviceSetLimit(limit: int, value: int) -> None:  # noqa: N802 - as it is called there
    opened = device()
    if value <= 0 or limit in opened.place.refuses_limits:
        raise CUDARuntimeError(1, "cudaErrorInvalidValue: invalid argument")
    opened.limit(limit, value)


def memGetInfo() -> tuple[int, int]:  # noqa: N802 - as it is called there
    return device().books()


def malloc(size: int) -> int:
    try:
        return device().allocate(size)
    except OutOfMemoryError as error:
        raise CUDARuntimeError(2, "cudaErrorMemoryAllocation: out of memory") from error
    except BrokenError as error:
        raise CUDARuntimeError(700, f"cudaErrorIllegalAddress: {error}") from error


def free(address: int) -> None:
    try:
        device().free(address)
    except KeyError as error:
        raise CUDARuntimeError(1, "cudaErrorInvalidValue: invalid argument") from error


def memset(address: int, value: int, size: int) -> None:
    device().put(address, bytes([value]) * size)


def memcpyAsync(to: int, source: int, size: int, kind: int, _stream: int) -> None:  # noqa: N802 - as it is called there
    if kind != ON_DEVICE:
        raise CUDARuntimeError(21, "cudaErrorInvalidMemcpyDirection: invalid copy direction for memcpy")
    device().put(to, device().get(source, size))


def memcpy(to: int, source: int, size: int, kind: int) -> None:
    if kind == TO_DEVICE:
        device().put(to, ctypes.string_at(source, size))
    elif kind == TO_HOST:
        data = device().get(source, size)
        ctypes.memmove(to, data, size)
    else:
        raise CUDARuntimeError(21, "cudaErrorInvalidMemcpyDirection: invalid copy direction for memcpy")


def eventCreate() -> int:  # noqa: N802 - as it is called there
    return device().event()


def eventCreateWithFlags(_flags: int) -> int:  # noqa: N802 - as it is called there
    return device().event()


def eventRecord(event: int, _stream: int) -> None:  # noqa: N802 - as it is called there
    device().events[event] = time.perf_counter()  # whatever was begun has ended


def eventSynchronize(event: int) -> None:  # noqa: N802 - as it is called there
    _moment(event)


def eventDestroy(event: int) -> None:  # noqa: N802 - as it is called there
    del device().events[event]


def eventElapsedTime(start: int, end: int) -> float:  # noqa: N802 - as it is called there
    return (_moment(end) - _moment(start)) * 1000


def _moment(event: int) -> float:
    moment = device().events[event]
    if moment is None:
        raise CUDARuntimeError(400, "cudaErrorInvalidResourceHandle: invalid resource handle")
    return moment
