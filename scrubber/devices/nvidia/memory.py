"""All memory of one GPU in a worker's hands: from the first step that works on it until the worker ends.

What a later step reads is the very memory that an earlier one wrote. The driver's books are read before, between and
afterwards, so that what was not covered has a cause, and nobody else's memory comes or goes unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scrubber.core.measurements import Uncovered
from scrubber.cuda import coverage, device, memory
from scrubber.cuda.card import Card, CardBusyError, CudaError
from scrubber.cuda.coverage import Account, Books
from scrubber.cuda.memory import GpuMemory
from scrubber.devices.base import DeviceError, NotNowError
from scrubber.devices.nvidia import holders
from scrubber.devices.nvidia.address import WorkerTarget
from scrubber.devices.nvidia.inventory import boards
from scrubber.devices.nvidia.nvml import Library

OpenCard = Callable[[str, str], Card]  # a UUID, and the PCI address where it must be


@dataclass(frozen=True, slots=True)
class _Held:
    """What was taken, and the books of that time."""

    memory: GpuMemory
    before: Books
    opened: Books
    taken: Books


class HeldMemory:
    """One device; nothing of it is taken before it is asked for."""

    def __init__(self, place: WorkerTarget, library: Library, open_card: OpenCard = device.opened) -> None:
        """Take nothing yet."""
        self._uuid = place.uuid
        self._pci_address = place.pci_address
        self._idle = holders.IDLE_AT_MOST if place.idle_bytes is None else place.idle_bytes
        self._library = library
        self._open_card = open_card
        self._held: _Held | None = None

    def memory(self) -> GpuMemory:
        """All that can be had, the same at every call."""
        return self._all().memory

    def undisturbed(self) -> tuple[int, tuple[Uncovered, ...]]:
        """The same, refused if others' memory has changed."""
        if fault := coverage.disturbance(self._books_until_now(), self.memory().size):
            raise NotNowError(f"cannot prove what the memory of {self._uuid} holds: {fault}")
        return self.account()

    def account(self) -> tuple[int, tuple[Uncovered, ...]]:
        """What a process could ever have of it, and what of that we have not."""
        account = self._books_until_now()
        return account.before.allocatable, coverage.uncovered(account, self.memory().size, self._idle)

    def _books_until_now(self) -> Account:
        held = self._all()
        return Account(held.before, held.opened, held.taken, self._books())

    def _all(self) -> _Held:
        if self._held is None:
            before = self._books()
            if before.used > self._idle + holders.NOISE:
                # A look has just found nobody, so that nobody will give it back: only a reset does.
                told = f"{before.used} bytes of its memory are in use by nobody who could be seen"
                raise DeviceError(f"cannot prove what the memory of {self._uuid} holds: {told}")
            with in_our_words():
                card = self._open_card(self._uuid, self._pci_address)
            opened = self._books()
            with in_our_words():
                taken = memory.take(card)
            self._held = _Held(taken, before, opened, self._books())
        return self._held

    def _books(self) -> Books:
        """NVML is closed again at once: while it is open it has all GPUs open, which keeps other jobs from theirs."""
        with self._library.session() as session:
            told = boards.memory(session, session.handle(self._uuid))
        self._library.close()
        return Books(told.total, told.reserved, told.used)


@contextmanager
def in_our_words() -> Iterator[None]:
    """CUDA's errors as those of a device."""
    try:
        yield
    except CardBusyError as error:
        raise NotNowError(str(error)) from error
    except CudaError as error:
        raise DeviceError(str(error)) from error
