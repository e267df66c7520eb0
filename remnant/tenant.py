"""The program in a container: fills memory of GPU and host with words by CUDA, or looks for earlier ones.

It reads its order from the first line of stdin, says on stdout what it has done, and goes on with the next line.
Whoever looks does so before it writes anything, and searches what is not zero at any alignment.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

from ground.documents import strict_json
from remnant import gpu_identity
from remnant.container_answers import Filled, Looked, Ready, Refused
from remnant.round_result import Ending, GpuAndDriver, Look, Medium, Planted
from scrubber.cuda import cuda_card, memory
from scrubber.cuda.card import CudaError, KernelProgram, Span, Sweep
from scrubber.cuda.cuda_card import CudaCard
from scrubber.cuda.driver import CudaDriver, status_of
from scrubber.cuda.memory import GpuMemory
from scrubber.cuda.patterns import ZERO, Pattern, PatternKind
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.host import Host

SEARCHED_AT_MOST = 2**28  # bytes that are copied to the host and searched
PINNED_AT_MOST = 2**28  # bytes of the host's memory
ABORTED = 1  # the status of a container whose kernel has trapped
PIECE = 2**21  # bytes that are copied at once
ON_THE_CHIP = {
    Medium.REGISTERS: (KernelProgram.PLANT_REGISTERS, KernelProgram.LISTEN_REGISTERS),
    Medium.SHARED: (KernelProgram.PLANT, KernelProgram.LISTEN),
}
_WORD = 4  # bytes
_KILLED = 128  # and the signal: the status of a container that one has ended
_NO_KIND = 9  # of a pattern: every kernel traps
_CAN_MAP = 102  # an attribute of the device: it knows the calls of Tenant._mapped
_OF_DEVICE = struct.pack("<iiiiQQ", 1, 0, 1, 0, 0, 0)  # CUmemAllocationProp: pinned, not exported, of device 0
_READ_AND_WRITE = struct.pack("<iii", 1, 0, 3)  # CUmemAccessDesc: by device 0


@dataclass(frozen=True, slots=True)
class ContainerOrder:
    """What a container is to do with which GPU."""

    deed: str  # "fill" or "look"
    uuid: str  # empty: the container is not told which GPU to use, and says which one it uses
    pci_address: str
    host_root: str
    key: str  # 32 hexadecimal digits, of the words that are planted
    never: str  # the same, of words that nobody plants
    media: tuple[str, ...] = tuple(medium.value for medium in Medium)
    share: int = 1  # one part of the memory in so many is filled
    count: int = 1  # so many GPUs the container has, if it is not told which one to use
    wanted: str = ""  # the one of them that the container before it has used

    @property
    def programs(self) -> dict[Medium, tuple[KernelProgram, KernelProgram]]:
        """What plants and what listens, for the chosen media on the chip."""
        return {medium: programs for medium, programs in ON_THE_CHIP.items() if medium.value in self.media}


class Tenant(CudaCard):
    """A card on which nothing runs but what is asked for: more would overwrite what the last container has left."""

    loaded: Sequence[KernelProgram] = ()
    maps = False  # every second block is created and mapped, not allocated
    mapped = 0  # bytes of these blocks
    _blocks = 0

    def allocate(self, size: int) -> int | None:
        """The address of new memory; None if there is no free block of this size."""
        self._blocks += 1
        if self.maps and self._blocks % 2 == 0 and (address := self._mapped(size)) is not None:
            self.mapped += size
            return address
        return super().allocate(size)

    def _mapped(self, size: int) -> int | None:
        """The address of memory that was created and mapped; None, and nothing taken, if the driver refuses a step.

        After a refusal for another reason than a lack of memory, the driver is not asked again.
        """
        call, address, handle = self._driver.call, ctypes.c_uint64(), ctypes.c_uint64()
        length, none = ctypes.c_size_t(size), ctypes.c_uint64()
        try:
            if not self._driver.attribute(_CAN_MAP):
                self.maps = False
                return None
            call("cuMemAddressReserve", ctypes.byref(address), length, none, none, none)
            call("cuMemCreate", ctypes.byref(handle), length, _OF_DEVICE, none)
            with ExitStack() as undo:
                undo.callback(call, "cuMemRelease", handle)
                call("cuMemMap", address, length, none, handle, none)
                undo.callback(call, "cuMemUnmap", address, length)
                call("cuMemSetAccess", address, length, _READ_AND_WRITE, ctypes.c_size_t(1))
                undo.pop_all()
        except self._driver.Error as error:
            self.maps = status_of(error) == cuda_card.OUT_OF_MEMORY
            return None
        return address.value

    def pin(self, size: int) -> int | None:
        """The address of new memory of the host that this GPU can reach; None if so much is refused."""
        address = ctypes.c_void_p()
        try:
            self._driver.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), 0)
        except self._driver.Error as error:
            if status_of(error) == cuda_card.OUT_OF_MEMORY:
                return None
            raise self._error("pin memory of the host for", error) from error
        return address.value

    def read(self, span: Span) -> bytes:
        """The bytes of a piece of allocated memory."""
        with self._translated("read memory of"):
            return self._driver.get(span.address, span.size)

    def words_of(self, program: KernelProgram) -> int:
        """How many words of the chip one launch of this program reads or writes."""
        if program in (KernelProgram.PLANT, KernelProgram.LISTEN):
            return self.units * self._granted.get(program, 0) // _WORD
        return self.units * cuda_card.THREADS * cuda_card.KEPT

    def trap(self, span: Span) -> None:
        """Launch a kernel that ends with a trap, which ends the context."""
        self.sweep(Sweep.WRITE, Pattern(cast("PatternKind", _NO_KIND)), [span], _unheard)


def words(key: str) -> bytes:
    """The 16 bytes that fill the memory. None of them is zero, so that memory that was cleared holds none of them."""
    return bytes(1 + byte % 255 for byte in hashlib.sha256(bytes.fromhex(key)).digest()[:16])


def recognised(data: bytes, key: str) -> int:
    """The bytes of the key's words in the data, at any alignment."""
    return 16 * data.count(words(key))


def opened(order: ContainerOrder, driver: CudaDriver) -> Tenant:
    """The GPU, as any program opens it; CudaError if that fails. Nothing is loaded yet."""
    cuda_card.only(order.uuid)
    card = Tenant(driver, order.uuid)
    card.begin(order.pci_address, Host(Path(order.host_root)).memory_manager(order.pci_address))
    return card


def fill(order: ContainerOrder, driver: CudaDriver) -> tuple[Filled, Callable[[], None]]:
    """Fill memory and chip; what was planted, and how this container aborts itself."""
    card = opened(order, driver)
    planted = {}
    if Medium.HOST.value in order.media:
        planted[Medium.HOST.value] = _fill_host(card, order.key)
    for plant, listen in order.programs.values():  # the driver loads them now, while there is memory for them
        card.everywhere(plant, 0)
        card.everywhere(listen, 0)
    available = card.memory().free
    card.maps = True  # so that what is freed was of both kinds; the next container allocates all
    whole = memory.take(card) if order.share == 1 else GpuMemory(card, _part(card.allocate, available // order.share))
    pattern = _pattern(order.key)
    whole.write(pattern, _unheard)
    if Medium.MEMORY.value in order.media:
        planted[Medium.MEMORY.value] = Planted(whole.size, _own_words(card, whole, pattern, order.key), card.mapped)
    for medium, (plant, listen) in order.programs.items():
        card.everywhere(plant, _word(order.key))
        recognised_here = sum(unit.wrong for unit in card.everywhere(listen, _word(order.key)))
        planted[medium.value] = Planted(_WORD * card.words_of(plant), _WORD * recognised_here)
        card.everywhere(plant, _word(order.key))  # what listened may have overwritten a part
    return Filled(available, planted), lambda: card.trap(whole.spans[0])


def look(order: ContainerOrder, driver: CudaDriver) -> Looked:
    """What this container finds, before it writes; then it leaves zeros in the memory."""
    card = opened(order, driver)
    looks: dict[str, Look] = {}
    if Medium.HOST.value in order.media:
        looks[Medium.HOST.value] = _in_host(card, order)
    for medium, (_, listen) in order.programs.items():
        own, never = (
            _WORD * sum(unit.wrong for unit in card.everywhere(listen, _word(key))) for key in (order.key, order.never)
        )
        read = _WORD * card.words_of(listen)
        looks[medium.value] = Look(read, read, own, never)
    whole = memory.take(card)
    if Medium.MEMORY.value in order.media:
        looks[Medium.MEMORY.value] = _in_memory(card, whole, order)
    whole.write(ZERO, _unheard)
    return Looked(looks)


def _in_memory(card: Tenant, whole: GpuMemory, order: ContainerOrder) -> Look:
    spans = whole.spans
    seen = [compared.count for compared in whole.compare(ZERO, _unheard)]
    dirty = [span for span, count in zip(spans, seen, strict=True) if count]
    pieces = _pieces(dirty)
    counts = [compared.count for compared in GpuMemory(card, pieces).compare(ZERO, _unheard)] if pieces else []
    wanted = [piece for piece, count in zip(pieces, counts, strict=True) if count]
    step = max(1, -(-len(wanted) * PIECE // SEARCHED_AT_MOST))
    searched = planted = never = 0
    for piece in wanted[::step]:
        data = card.read(piece)
        searched += len(data)
        planted += recognised(data, order.key)
        never += recognised(data, order.never)
    if step == 1 and sum(counts) == sum(seen):  # what is zero was searched too: it holds no word
        searched = whole.size
    not_zero = max(sum(seen), sum(counts))  # they differ if the driver clears meanwhile
    return Look(whole.size, searched, planted, never, not_zero)


def _own_words(card: Tenant, whole: GpuMemory, pattern: Pattern, key: str) -> int:
    """The bytes that are as they were written; none if those who look later would not recognise the words."""
    wrong = sum(compared.count for compared in whole.compare(pattern, _unheard))
    pieces = [Span(span.address, min(PIECE, span.size), span.start) for span in whole.spans]
    return whole.size - wrong if all(recognised(card.read(piece), key) == piece.size for piece in pieces) else 0


def _fill_host(card: Tenant, key: str) -> Planted:
    spans = _part(card.pin, PINNED_AT_MOST)
    for piece in _pieces(spans):
        ctypes.memmove(piece.address, words(key) * (piece.size // 16), piece.size)
    recognised_bytes = (recognised(ctypes.string_at(piece.address, piece.size), key) for piece in _pieces(spans))
    return Planted(sum(span.size for span in spans), sum(recognised_bytes))


def _in_host(card: Tenant, order: ContainerOrder) -> Look:
    planted = never = not_zero = 0
    spans = _part(card.pin, PINNED_AT_MOST)
    for piece in _pieces(spans):
        data = ctypes.string_at(piece.address, piece.size)
        planted += recognised(data, order.key)
        never += recognised(data, order.never)
        not_zero += piece.size - data.count(0)
        ctypes.memset(piece.address, 0, piece.size)
    read = sum(span.size for span in spans)
    return Look(read, read, planted, never, not_zero)


def _pieces(spans: Iterable[Span]) -> list[Span]:
    return [
        Span(span.address + at, min(PIECE, span.size - at), span.start + at)
        for span in spans
        for at in range(0, span.size, PIECE)
    ]


def _part(allocate: Callable[[int], int | None], size: int) -> list[Span]:
    """So much memory, allocated, or less if that is refused."""
    spans: list[Span] = []
    start = 0
    for rung in memory.RUNGS:
        while start + rung <= size and (address := allocate(rung)) is not None:
            spans.append(Span(address, rung, start))
            start += rung
    return spans


def _pattern(key: str) -> Pattern:
    first, second = (int.from_bytes(words(key)[at : at + 8], "little") for at in (0, 8))
    return Pattern(PatternKind.CONSTANT, first, second)


def _word(key: str) -> int:
    """The word that is planted on the chip."""
    return int.from_bytes(words(key)[:_WORD], "little")


def _unheard(_size: int) -> None:
    """Progress that is not reported."""


def _say(answer: Ready | Filled | Looked | Refused) -> None:
    sys.stdout.write(strict_json.encode(answer).decode())
    sys.stdout.flush()


def main(lines: Iterable[str]) -> NoReturn:
    """Do what the first line says; then what the next ones say. Ends without a handler, as a container does."""
    rest = iter(lines)
    order = ContainerOrder(**json.loads(next(rest)))
    about: GpuAndDriver | None = None
    if not order.uuid:
        try:
            board, about = gpu_identity.of_container(Path(order.host_root), order.count, order.wanted)
        except DeviceError as error:
            sys.exit(str(error))
        order = dataclasses.replace(order, uuid=board.uuid, pci_address=board.pci_address)
    driver = cuda_card.driver_of(order.uuid)  # loading CuPy takes longer than all else
    _say(Ready(about))
    if next(rest, None) is None:
        os._exit(0)  # who gave the order has gone
    answer: Filled | Looked | Refused
    abort: Callable[[], None] = lambda: None  # noqa: E731 -- replaced where there is something to abort
    try:
        if order.deed == "fill":
            answer, abort = fill(order, driver)
        else:
            answer = look(order, driver)
    except CudaError as error:
        cause = error.__cause__
        full = isinstance(cause, driver.Error) and status_of(cause) == cuda_card.OUT_OF_MEMORY
        answer = Refused(str(error), full)
    _say(answer)
    match next(rest, "").strip():
        case Ending.ABORT.value:
            try:
                abort()
            except CudaError:
                os._exit(ABORTED)  # the context has ended with the kernel
        case Ending.KILL.value:
            os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)


def _in_a_child() -> None:
    """Go on in a child, and end as it does. No signal kills the first process of a container from within."""
    if (child := os.fork()) != 0:
        _, status = os.waitpid(child, 0)
        os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else _KILLED + os.WTERMSIG(status))


if __name__ == "__main__":
    if os.getpid() == 1:
        _in_a_child()
    main(sys.stdin)
