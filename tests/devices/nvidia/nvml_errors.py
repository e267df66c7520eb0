"""The errors of NVML by their code, and the error that the product makes of each."""

import pynvml

from scrubber.devices.base import DeviceError, DeviceLostError
from scrubber.devices.nvidia.nvml import (
    ArgumentError,
    BufferTooSmallError,
    DriverGoneError,
    NoPermissionError,
    NotFoundError,
    NotSupportedError,
    ResetRequiredError,
)

KINDS: dict[int, type[DeviceError]] = {
    pynvml.NVML_ERROR_UNINITIALIZED: DriverGoneError,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: ArgumentError,
    pynvml.NVML_ERROR_NOT_SUPPORTED: NotSupportedError,
    pynvml.NVML_ERROR_NOT_FOUND: NotFoundError,
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE: BufferTooSmallError,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: DriverGoneError,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: DriverGoneError,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NotSupportedError,
    pynvml.NVML_ERROR_GPU_IS_LOST: DeviceLostError,
    pynvml.NVML_ERROR_NO_PERMISSION: NoPermissionError,
    pynvml.NVML_ERROR_RESET_REQUIRED: ResetRequiredError,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: DriverGoneError,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: NotSupportedError,
    pynvml.NVML_ERROR_DEPRECATED: NotSupportedError,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: DeviceLostError,
}
CODES = sorted(value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_"))
