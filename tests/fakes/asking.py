"""Short questions to the stand-in for NVML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml


def first() -> Any:  # noqa: ANN401 - a pointer that only pynvml understands
    """The first GPU."""
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def code_of(call: Callable[..., object], *about: object) -> int:
    """The error that a call ends with; 0 when it does not."""
    try:
        call(*about)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0
