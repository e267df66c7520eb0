"""All memory of one GPU, allocated by a worker from its first step that needs memory until the worker ends.

So a later step reads the same memory that an earlier step wrote. NVML counts the memory before CUDA is opened, and CUDA
counts it from then on: the counts explain what was not covered, and show memory that another process takes or frees.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from scrub_api.measurements import Uncovered
from scrubber.core.measured import OURS_AT_MOST
from scrubber.core.model import MemoryManager
from scrubber.cuda import coverage, cuda_card, memory
from scrubber.cuda.card import Card, CardBusyError, CudaError, Free, KernelFailedError, NotStartedError
from scrubber.cuda.coverage import Account, MemoryCounts
from scrubber.cuda.memory import GpuMemory
from scrubber.cuda.selftest import Clock
from scrubber.devices.base import Counts, DeviceError, NodeOrDeviceError, NotNowError, ProgramFailedError
from scrubber.devices.nvidia import boards, holders, restore
from scrubber.devices.nvidia.address import WorkerTarget
from scrubber.devices.nvidia.nvml import Library, Session

T = TypeVar("T")
FREED_WITHIN = 15.0  # seconds: the driver may free the memory of an ended process later than it ends ...
_FIRST_PAUSE, _GROWTH, _LONGEST_PAUSE = 0.1, 2.0, 1.0  # ... and has no event that says so
CLOCK = Clock(time.monotonic, time.sleep)
# From a UUID, the expected PCI address, and who manages the memory.
OpenCard = Callable[[str, str, MemoryManager], Card]


@dataclass(frozen=True, slots=True)
class _Held:
    """The memory, and the counts before and after the context was made."""

    memory: GpuMemory
    before: MemoryCounts
    opened: Free


class HeldMemory:
    """The memory of one device, allocated at the first request."""

    def __init__(
        self,
        place: WorkerTarget,
        library: Library,
        open_card: OpenCard = cuda_card.opened,
        counts: Counts | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        """``counts``: those of the service, read after the last tenant; None: read them."""
        self._place = place
        self._library = library
        self._open_card = open_card
        self._counts = counts
        self._clock = clock
        self.restored: tuple[str, ...] = ()  # the setting that was changed, so that CUDA could open the device
        self._opened: tuple[Card, MemoryCounts] | None = None
        self._held: _Held | None = None

    def prepare(self) -> None:
        """Make the context ahead of its use. Nothing runs on the device yet."""
        self._open()

    def memory(self) -> GpuMemory:
        """All memory that can be allocated, the same at every call."""
        return self._all().memory

    def undisturbed(self) -> tuple[int, tuple[Uncovered, ...]]:
        """Like ``account``; NotNowError if the memory of another process has changed."""
        if fault := coverage.disturbance(self._account(), self.memory().size):
            raise NotNowError(f"cannot prove what the memory of {self._place.uuid} holds: {fault}")
        return self.account()

    def account(self) -> tuple[int, tuple[Uncovered, ...]]:
        """The bytes that a process could allocate, and those of them that this worker has not allocated."""
        account = self._account()
        return account.allocatable, coverage.uncovered(account, self.memory().size, self._place.idle_bytes)

    def _account(self) -> Account:
        held = self._all()
        with cuda_errors_translated():
            account = Account(held.before, held.opened, held.memory.card.memory())
        if account.context <= OURS_AT_MOST:
            return account
        with self._nvml() as session:
            listed = holders.memory_of(session, session.handle(self._place.uuid), os.getpid())
        return replace(account, own=max(0, listed - held.memory.size))

    def _all(self) -> _Held:
        if self._held is None:
            card, before = self._open()
            with cuda_errors_translated():
                self._held = _Held(memory.all_free(card), before, card.memory())
        return self._held

    def _open(self) -> tuple[Card, MemoryCounts]:
        if self._opened is None:
            most = self._place.idle_bytes + holders.NOISE
            before = MemoryCounts(*self._counts) if self._counts is not None else None
            if before is None or before.used > most:  # memory of a process that has ended may be free by now
                before = once_freed(self._read_counts, lambda counts: counts.used <= most, self._clock)
            if before.used > most:
                # A full observation has just found no holder, so only a reset frees this memory.
                fault = f"{before.used} bytes of its memory are in use by no visible process"
                raise DeviceError(f"cannot prove what the memory of {self._place.uuid} holds: {fault}")
            with cuda_errors_translated():
                self._opened = self._card(), before
        return self._opened

    def _card(self) -> Card:
        """Open the device. Without a node that only CUDA needs, CUDA answers as if the device were broken."""
        asked = (
            self._place.uuid,
            self._place.pci_address,
            self._place.host.memory_manager(self._place.pci_address),
        )
        try:
            return self._open_card(*asked)
        except CudaError as error:
            dev = {Path("/dev"), self._place.host.dev}
            uvm = [folder / "nvidia-uvm" for folder in dev if (folder / "nvidiactl").exists()]
            if lacking := [str(node) for node in uvm if not node.exists()]:
                remedy = "load the module nvidia_uvm on the node (nvidia-modprobe -u -c 0)"
                raise CardBusyError(f"{error}; {lacking[0]} is missing: {remedy}") from error
            self.restored = self._allow_cuda()
            if not self.restored:
                raise
        return self._open_card(*asked)

    def _allow_cuda(self) -> tuple[str, ...]:
        """Change a compute mode that keeps CUDA out; returns the change. NVML is slow: called only if CUDA failed."""
        gpu, forbidden = self._place.gpu, False
        try:
            with suppress(DeviceError), self._library.session() as session:  # else the error of CUDA says why
                forbidden = restore.forbids_cuda(session, gpu)
            if not forbidden:
                return ()
            if self._place.parent is not None:  # other slices may be in use: their settings are not changed
                raise NotNowError(
                    f"cannot open {self._place.uuid}: the compute mode of its GPU is prohibited;"
                    f" set it on the node: nvidia-smi -i {gpu} -c DEFAULT"
                )
            with self._library.session() as session:
                return restore.allow_cuda(session, gpu, self._place.left)
        finally:
            with suppress(DeviceError):  # the error before is the better one
                self._library.close()

    def _read_counts(self) -> MemoryCounts:
        with self._nvml() as session:
            counts = boards.memory(session, session.handle(self._place.uuid))
        return MemoryCounts(counts.total, counts.reserved, counts.used)

    @contextmanager
    def _nvml(self) -> Iterator[Session]:
        """A session, closed at once: an open NVML has all GPUs open, which blocks the jobs of the others."""
        with self._library.session() as session:
            yield session
        self._library.close()


def once_freed(read: Callable[[], T], is_free: Callable[[T], bool], clock: Clock) -> T:
    """Read again until the driver has freed the memory of ended processes; the last reading after ``FREED_WITHIN``."""
    until, pause = clock.now() + FREED_WITHIN, _FIRST_PAUSE
    while not is_free(reading := read()) and clock.now() < until:
        clock.pause(pause)
        pause = min(pause * _GROWTH, _LONGEST_PAUSE)
    return reading


@contextmanager
def cuda_errors_translated() -> Iterator[None]:
    """Raise errors of CUDA as errors of the device."""
    try:
        yield
    except CardBusyError as error:
        raise NotNowError(str(error)) from error
    except NotStartedError as error:
        raise NodeOrDeviceError(str(error)) from error
    except KernelFailedError as error:
        raise ProgramFailedError(str(error)) from error
    except CudaError as error:
        raise DeviceError(str(error)) from error
