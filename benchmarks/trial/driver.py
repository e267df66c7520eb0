"""The driver of CUDA with the functions that only measurements call."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import POINTER, Structure, c_float, c_int, c_size_t, c_ubyte, c_uint64, c_void_p
from types import ModuleType

from scrubber.cuda.driver import CudaDriver

_TIMED = 0  # the flags of an event that notes the time
_PINNED, _ON_DEVICE, _READ_AND_WRITE = 1, 1, 3


class _Location(Structure):
    _fields_ = [("kind", c_int), ("number", c_int)]


class _Allocation(Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("kind", c_int),
        ("exported_as", c_int),
        ("location", _Location),
        ("of_windows", c_void_p),
        ("flags", c_ubyte * 8),
    ]


class _Access(Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", _Location), ("flags", c_int)]


_CALLS = {
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuMemFree_v2": (c_uint64,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, POINTER(_Allocation), c_uint64),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(_Access), c_size_t),
}


class MeasuringDriver(CudaDriver):
    """The driver, as a worker has it, and more."""

    def __init__(self, bindings: ModuleType) -> None:
        """OSError if the library is missing, AttributeError if it is too old. CUDA is not started yet."""
        super().__init__(bindings)
        for name, arguments in _CALLS.items():
            getattr(self._library, name).argtypes = arguments

    def version(self) -> int:
        """The newest CUDA that the driver knows. No device is opened."""
        version = c_int()
        self.call("cuDriverGetVersion", version)
        return version.value

    def timed_event(self) -> c_void_p:
        """A new event that notes the time of the device."""
        return self.event(_TIMED)

    def seconds_between(self, first: c_void_p, last: c_void_p) -> float:
        """Wait for the last one."""
        self.wait(last)
        milliseconds = c_float()
        self.call("cuEventElapsedTime", milliseconds, first, last)
        return milliseconds.value / 1000

    def fill(self, address: int, byte: int, size: int) -> None:
        """Let the driver fill memory, without waiting for the end."""
        self.call("cuMemsetD8Async", address, byte, size, None)

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy on the device, without waiting for the end."""
        self.call("cuMemcpyDtoDAsync_v2", target, source, size, None)

    def release(self, addresses: Iterable[int]) -> None:
        """Give memory back to the driver."""
        for address in addresses:
            self.call("cuMemFree_v2", address)

    def reserve(self, size: int) -> int:
        """Addresses without memory."""
        address = c_uint64()
        self.call("cuMemAddressReserve", address, size, 0, 0, 0)
        return address.value

    def create(self, size: int) -> int:
        """Memory without addresses; returns its handle."""
        handle, on_device = c_uint64(), _Location(_ON_DEVICE, 0)
        self.call("cuMemCreate", handle, size, ctypes.byref(_Allocation(_PINNED, 0, on_device)), 0)
        return handle.value

    def map(self, address: int, handle: int, size: int) -> None:
        """Give reserved addresses created memory that kernels may read and write."""
        self.call("cuMemMap", address, size, 0, handle, 0)
        access = _Access(_Location(_ON_DEVICE, 0), _READ_AND_WRITE)
        self.call("cuMemSetAccess", address, size, ctypes.byref(access), 1)
