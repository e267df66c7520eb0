"""The port of ``scrubber.cuda.card`` on a GPU of numpy arrays."""

from __future__ import annotations

from collections.abc import Iterable

from scrubber.cuda.card import CudaError, Found, Free, KernelProgram, Span, Step, Sweep, Unit
from scrubber.cuda.patterns import VECTOR, Pattern
from tests.fakes.cuda.gpu import BrokenError, HostGpu


class HostCard:
    """What ``scrubber.cuda.device.CudaCard`` is on a real one."""

    ungranted = 0

    def __init__(self, gpu: HostGpu) -> None:
        self.name = "GPU-host"
        self.gpu = gpu
        self.units = gpu.units

    def allocate(self, size: int) -> int | None:
        try:
            return self.gpu.allocate(size)
        except BrokenError as error:
            raise CudaError(f"cannot take memory: {error}") from error

    def memory(self) -> Free:
        return Free(len(self.gpu.cells) - self.gpu.used, len(self.gpu.cells))

    def sweep(self, kind: Sweep, pattern: Pattern, spans: Iterable[Span], step: Step) -> tuple[Found, ...]:
        done = []
        for span in spans:
            done.append(self._done(kind, pattern, span))
            step(span.size)
        return tuple(done)

    def everywhere(self, program: KernelProgram, number: int) -> tuple[Unit, ...]:
        assert program is KernelProgram.EXACT
        return tuple(Unit(unit, 0, digest) for unit, digest in self.gpu.exact(number))

    def _done(self, kind: Sweep, pattern: Pattern, span: Span) -> Found:
        where = (span.address, span.size // VECTOR, span.start // VECTOR, pattern.kind, pattern.first, pattern.second)
        if kind is Sweep.WRITE:
            self.gpu.write(*where)
            return Found()
        if kind is Sweep.CHECK:
            return Found.decoded(*self.gpu.check(*where))
        return Found.decoded(*self.gpu.invert(*where))
