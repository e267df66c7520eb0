"""Functions of the CUDA driver (``libcuda.so.1``) by name: context, memory, events, modules, kernels.

Devices, the context, memory and events are reached with ctypes: the names and numbers are those of NVIDIA's driver API.
CuPy's bindings, which wrap the same library, load kernels and launch them, and their exception reports each error. The
CUDA runtime that CuPy contains is never loaded: ``RawModule``, ``RawKernel`` and ``cupy.cuda.Function`` would call it,
because they ask it for the device and the context.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from types import ModuleType
from typing import Any

LIBRARY = "libcuda.so.1"
Word = c_uint32 | c_uint64  # an argument of a kernel

_SUCCESS = 0
_DEVICE = 0  # the only one that the process can see
_PCI_ADDRESS_BYTES, _UUID_BYTES = 32, 16
_DEFAULT_STREAM = None
_OWN_SHARED, _LOCAL, _MOST_DYNAMIC_SHARED = 1, 3, 8  # attributes of a kernel, in bytes
_CALLS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDeviceGetUuid_v2": (c_char_p, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxSetFlags_v2": (c_int, c_uint),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSetLimit": (c_int, c_size_t),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemcpyHtoD_v2": (c_uint64, c_char_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_char_p, c_uint64, c_size_t),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
}


class CudaDriver:
    """The driver, with the only device that this process can see. Each error is a ``CUDADriverError`` of CuPy.

    The context belongs to the thread that has made it.
    """

    waits = 4  # of the context's flags: a wait blocks; CUDA's own choice burns a core during each pass

    def __init__(self, bindings: ModuleType) -> None:
        """Load the library; CUDA is not started yet.

        OSError if the library is missing, AttributeError if it is too old, RuntimeError if CuPy cannot use it.
        """
        self._bindings = bindings
        self.Error: type[Exception] = bindings.CUDADriverError
        self._library = ctypes.CDLL(LIBRARY)
        for name, arguments in _CALLS.items():
            getattr(self._library, name).argtypes = arguments
        self.Error(_SUCCESS)  # CuPy looks for all functions that it wraps here, and no later

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver API by its name."""
        self._bindings.check_status(getattr(self._library, name)(*arguments))

    def devices(self) -> int:
        """Start CUDA in this process; returns the number of devices that the process can see."""
        count = c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGetCount", count)
        return count.value

    def pci_address(self) -> str:
        """As the driver writes it."""
        text = ctypes.create_string_buffer(_PCI_ADDRESS_BYTES)
        self.call("cuDeviceGetPCIBusId", text, len(text), _DEVICE)
        return text.value.decode()

    def uuid(self) -> bytes:
        """The bytes of the UUID: of a slice its own, not that of its GPU."""
        data = ctypes.create_string_buffer(_UUID_BYTES)
        self.call("cuDeviceGetUuid_v2", data, _DEVICE)
        return data.raw

    def attribute(self, number: int) -> int:
        """An attribute of the device."""
        value = c_int()
        self.call("cuDeviceGetAttribute", value, number, _DEVICE)
        return value.value

    def make_context(self) -> None:
        """Make the context of this process, for this thread. While it waits for the device, it leaves the processor."""
        context = c_void_p()
        self.call("cuDevicePrimaryCtxSetFlags_v2", _DEVICE, self.waits)
        self.call("cuDevicePrimaryCtxRetain", context, _DEVICE)
        self.call("cuCtxSetCurrent", context)

    def limit(self, number: int, size: int) -> None:
        """Set a limit of the context."""
        self.call("cuCtxSetLimit", number, size)

    def allocate(self, size: int) -> int:
        """The address of new device memory."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", address, size)
        return address.value

    def memory(self) -> tuple[int, int]:
        """The bytes that are free, and the bytes that there are."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", free, total)
        return free.value, total.value

    def put(self, address: int, data: bytes) -> None:
        """Copy to the device."""
        self.call("cuMemcpyHtoD_v2", address, data, len(data))

    def get(self, address: int, size: int) -> bytes:
        """Copy from the device, after all launched kernels have ended."""
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, address, size)
        return data.raw

    def event(self, flags: int) -> c_void_p:
        """A new event."""
        event = c_void_p()
        self.call("cuEventCreate", event, flags)
        return event

    def record(self, event: c_void_p) -> None:
        """Let the event happen after all that was launched so far."""
        self.call("cuEventRecord", event, _DEFAULT_STREAM)

    def wait(self, event: c_void_p) -> None:
        """Wait for the event."""
        self.call("cuEventSynchronize", event)

    def load(self, path: str) -> int:
        """Load the kernels of a file; returns the module."""
        return int(self._bindings.moduleLoad(path))

    def kernel(self, module: int, name: str) -> Kernel:
        """A kernel of a loaded module."""
        return Kernel(self._bindings, self._bindings.moduleGetFunction(module, name))


class Kernel:
    """A kernel that is loaded."""

    def __init__(self, bindings: ModuleType, handle: int) -> None:
        self._bindings = bindings
        self._handle = handle

    def attribute(self, number: int) -> int:
        """What the driver says of it."""
        return int(self._bindings.funcGetAttribute(number, self._handle))

    @property
    def own_shared(self) -> int:
        """The bytes of shared memory that it declares itself."""
        return self.attribute(_OWN_SHARED)

    @property
    def local(self) -> int:
        """The bytes of device memory that hold what a thread cannot keep in registers."""
        return self.attribute(_LOCAL)

    def allow_shared(self, size: int) -> None:
        """Allow a block so much dynamic shared memory."""
        self._bindings.funcSetAttribute(self._handle, _MOST_DYNAMIC_SHARED, size)

    def launch(self, blocks: int, threads: int, words: Sequence[Word], shared: int = 0) -> None:
        """Start it with these arguments. It runs after all that was launched before."""
        addresses = (c_void_p * len(words))(*map(ctypes.addressof, words))
        grid, block, stream, extra = (blocks, 1, 1), (threads, 1, 1), 0, 0
        self._bindings.launchKernel(self._handle, *grid, *block, shared, stream, ctypes.addressof(addresses), extra)


def status_of(error: Exception) -> int:
    """The status that the driver has answered with."""
    return int(error.status)  # type: ignore[attr-defined]  # an exception of a module without types
