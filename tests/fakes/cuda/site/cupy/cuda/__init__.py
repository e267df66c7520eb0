"""The parts of ``cupy.cuda`` that are asked for."""

from __future__ import annotations

from types import SimpleNamespace

from cupy.cuda import runtime


class CUDADriverError(RuntimeError):
    """What the driver's own calls raise."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


driver = SimpleNamespace(CUDADriverError=CUDADriverError)

__all__ = ["driver", "runtime"]
