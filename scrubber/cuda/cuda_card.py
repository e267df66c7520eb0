"""A ``Card`` on a real GPU: opens it by the CUDA driver, takes its memory, and launches our kernels on units.

The process calls no CUDA function before ``opened``. It frees nothing afterwards: only the end of the process releases
its memory for certain.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from uuid import UUID

from scrubber.core.model import MemoryManager
from scrubber.cuda import cupy_loading
from scrubber.cuda.card import (
    NOWHERE,
    CardBusyError,
    CudaError,
    Found,
    Free,
    KernelFailedError,
    KernelProgram,
    NotStartedError,
    Span,
    Step,
    Sweep,
    Unit,
)
from scrubber.cuda.driver import LIBRARY, CudaDriver, Kernel, Word, status_of
from scrubber.cuda.images import image_for
from scrubber.cuda.patterns import VECTOR, ZERO, Pattern
from scrubber.words import nvidia_advice

ENVIRONMENT = {
    "CUDA_MODULE_LOADING": "LAZY",
    # One channel for work, where CUDA makes eight: on an H100 the context then takes 55 ms instead of 105.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent",  # a shared server would run our kernels next to those of others
}
LIMITS = {
    0: 256,
    1: 4096,
    2: 4096,
}  # bytes: stack for each thread, print buffer, device heap. Small, to leave memory for the scrub
THREADS = 256
# So many run on a multiprocessor, or fewer where fewer fit.
BLOCKS = {Sweep.WRITE: 8, Sweep.CHECK: 4, Sweep.INVERT: 4, Sweep.INVERT_DOWN: 4}
ROUNDS = 64  # of the computation in one launch
TRIES = 20  # the device chooses where blocks run

_FOUND, _UNIT = struct.Struct("<QQQ"), struct.Struct("<IIQQ")
_MOST_SPANS, _MOST_UNITS = 256, 1024
_NOTHING = _FOUND.pack(0, NOWHERE, 0)
_QUIETLY = 1 | 2  # an event without busy waiting and without timing
_MULTIPROCESSORS, _THREADS_OF_UNIT, _CAPABILITY = 16, 39, (75, 76)  # attributes of a device
_SHARED_OF_UNIT, _SHARED_OF_BLOCK, _SHARED_OF_SYSTEM = 81, 97, 111  # bytes: of a multiprocessor, at most, reserved
_INTEGRATED, _HOST_TABLES = 18, 100  # the GPU has no memory of its own; it uses the page tables of the host
KERNELS = {Sweep.WRITE: "write", Sweep.CHECK: "check", Sweep.INVERT: "invert", Sweep.INVERT_DOWN: "invert"}
OUT_OF_MEMORY = 2
_INVALID_VALUE = 1
_TOO_MUCH = frozenset({_INVALID_VALUE, 701})  # a launch asked for more than there is; 701: for more resources
_REFUSED = frozenset({_INVALID_VALUE, 215, 801})  # the value, the limit or the call
_WORD, _TWICE = 4, 2  # bytes; the keyed pattern and the zeros after it
KEPT = 240  # overwritten registers of a thread
_IN_A_SCRUB = (KernelProgram.SCRATCH, KernelProgram.REGISTERS, KernelProgram.EXACT)
_IN_REGISTERS = {
    program.value
    for program in (KernelProgram.REGISTERS, KernelProgram.PLANT_REGISTERS, KernelProgram.LISTEN_REGISTERS)
}

_FITTING = f"{nvidia_advice.INSTALL}; and {LIBRARY} of the loaded driver"
# Which errors of CUDA are certainly not the device's fault, and what to do about each, by the meanings that the header
# of the CUDA driver gives. An error that is in no table counts against the device.
_REMEDIES = {
    "end the process that uses it, or set its compute mode on the node: nvidia-smi -c DEFAULT": {46},
    _FITTING: {34, 36, 803, 804},
    "no fault of the device: the driver refuses what this release of Autoclave asks for; update Autoclave, or the"
    " driver if it is old, and report this message with the GPU's model and the driver's version": {
        *(_INVALID_VALUE, 400, 701, 720, 800, 801),  # parameters, handles, resources, rights or calls
        *(200, 209, 218, 222, 300, 500),  # our kernels: broken, unknown, or none that this driver or device takes
    },
    "put the driver's libnvidia-ptxjitcompiler where the service finds it, and unset CUDA_DISABLE_PTX_JIT": {221, 223},
    "look at the files and the limits of the service: memory, open files, the driver's libraries": {301, 302, 303, 304},
    "start nvidia-fabricmanager on the node, if the GPUs have switches; with confidential computing, set them ready:"
    " nvidia-smi conf-compute -srs 1": {802},
    "end the node's server of MPS": set(range(805, 811)),
    # Another process, or the scrub itself, has taken the memory that a call needs.
    "end the process that uses its memory": {OUT_OF_MEMORY},
}
_REMEDY = {status: remedy for remedy, statuses in _REMEDIES.items() for status in statuses}
# A kernel ended with an exception, such as a trap. A fault of the kernel causes these too: 700 (an illegal address),
# 710 (a failed assertion), 714 (the call stack), 715 (an illegal instruction), 716 (a misaligned address), 717 (an
# address in the wrong space), 718 (an invalid program counter) and 719 (any other exception).
_KERNEL_FAILED = frozenset({700, 710, *range(714, 720)})
# CUDA could not start, no device, unknown: a node without a module, a container without the device, or a broken device.
_NOT_STARTED = frozenset({3, 100, 999})
_NODE_OR_DEVICE = (
    "if scrubs of every GPU fail so, the node or the container of the service lacks something: look whether"
    " /dev/nvidia-uvm can be opened there, and start the container of the service again"
)
_OUT_OF_TIME = 702  # the driver limits the time of a kernel on a GPU with a display


@dataclass(frozen=True, slots=True)
class _Shared:
    """The shared memory of the device, in bytes."""

    unit: int  # of a multiprocessor
    block: int  # the most that a block can have
    system: int  # what the system reserves for each block

    def sizes(self, program: KernelProgram, own: int) -> tuple[int, int]:
        """The dynamic shared memory to ask for, and what to ask for if that is refused.

        The most for a block, so that two blocks never fit on a multiprocessor. ``own``: what the driver says that the
        kernel declares. It may or may not count what the system reserves, and SCRATCH declares nothing itself.
        """
        if program is KernelProgram.SCRATCH:
            return self.block, self.block - max(own, self.system)
        return self.block - own, self.block - own - self.system


def opened(uuid: str, pci_address: str, manager: MemoryManager = MemoryManager.UNKNOWN) -> CudaCard:
    """Open the only device that this process can see; CudaError if it is another device. Nothing runs on it yet."""
    only(uuid)
    card = CudaCard(driver_of(uuid), uuid)
    card.begin(pci_address, manager)
    return card


def driver_of(uuid: str) -> CudaDriver:
    """The driver; CardBusyError if its library or CuPy is missing or too old."""
    try:
        return CudaDriver(cupy_loading.load())
    except cupy_loading.UnusableError as error:
        raise CardBusyError(f"cannot open {uuid}: {error}") from error
    except (OSError, AttributeError, RuntimeError) as error:  # the library, one of its functions, or a part of CuPy
        raise CardBusyError(f"cannot open {uuid}: {error}; {_FITTING}") from error


def only(uuid: str) -> None:
    """Hide all other devices from this process. Call it before the first CUDA call."""
    os.environ.update(ENVIRONMENT, CUDA_VISIBLE_DEVICES=uuid)


class CudaCard:
    """One GPU or slice."""

    loaded: Sequence[KernelProgram] = (
        _IN_A_SCRUB  # loaded at the start; others at their first launch, if there is memory
    )

    def __init__(self, driver: CudaDriver, uuid: str) -> None:
        self._driver = driver
        self.name = uuid
        self._module = 0
        self._kernels: dict[str, Kernel] = {}
        self._events: list[c_void_p] = []
        self._found = 0  # where kernels write their results; 0: nothing is loaded yet
        self.units = 0
        self.capability = (0, 0)
        self._most_blocks = 0  # that fit on a multiprocessor, by their threads
        self._shared = _Shared(0, 0, 0)
        self._granted: dict[KernelProgram, int] = {}  # the dynamic shared memory that the driver grants a block

    @property
    def ungranted(self) -> int:
        """Bytes of shared memory of each multiprocessor that the driver grants no block of SCRATCH."""
        return max(0, self._shared.unit - self._granted.get(KernelProgram.SCRATCH, 0))

    def begin(self, pci_address: str, manager: MemoryManager = MemoryManager.UNKNOWN) -> None:
        """Check that it is the right device, and make the context."""
        with self._translated("open", starting=True):
            count = self._driver.devices()
        with self._translated("open"):
            address, uuid = (self._driver.pci_address(), self._driver.uuid()) if count == 1 else ("", b"")
        if count != 1:
            raise CudaError(f"cannot open {self.name}: CUDA shows {count} devices where one was asked for")
        if _plain(address) != _plain(pci_address):
            raise CudaError(f"cannot open {self.name}: CUDA shows the device at {address}, which is another one")
        # All slices of a GPU have its PCI address.
        if self.name.partition("-")[2] != str(UUID(bytes=uuid)):
            raise CardBusyError(f"cannot open {self.name}: CUDA shows the device {uuid.hex()}, which is another one")
        with self._translated("open"):
            integrated, tables = map(self._driver.attribute, (_INTEGRATED, _HOST_TABLES))
            if fault := _memory_of_host(manager, integrated=bool(integrated), tables=bool(tables)):
                raise CardBusyError(f"cannot open {self.name}: {fault}")
            self._make_context()

    def ready(self) -> None:
        """Load the kernels at the first use: nothing runs on the device before, and they take memory."""
        if not self._found:
            with self._translated("open"):
                self._load()

    def allocate(self, size: int) -> int | None:
        """The address of new memory; None if there is no free block of this size."""
        self.ready()
        try:
            return self._driver.allocate(size)
        except self._driver.Error as error:
            if status_of(error) == OUT_OF_MEMORY:
                return None
            raise self._error("take memory of", error) from error

    def memory(self) -> Free:
        """The memory that the driver says is free now."""
        self.ready()
        with self._translated("ask for the free memory of"):
            return Free(*self._driver.memory())

    def sweep(self, kind: Sweep, pattern: Pattern, spans: Iterable[Span], step: Step) -> tuple[Found, ...]:
        """Start the operation on all spans, then wait for span after span."""
        self.ready()
        with self._translated(f"{kind.value} memory of"):
            if kind is Sweep.WRITE:
                return self._written(pattern, spans, step)
            results: list[Found] = []
            rest = iter(spans)
            while part := tuple(islice(rest, _MOST_SPANS)):
                results += self._swept(kind, pattern, part, step)
            return tuple(results)

    def everywhere(self, program: KernelProgram, number: int) -> tuple[Unit, ...]:
        """Launch blocks that fill a multiprocessor each, until each multiprocessor has run one."""
        self.ready()
        seen: dict[int, Unit] = {}
        with self._translated(f"run {program.value} on"):
            for _ in range(TRIES):
                for unit in self._ran(program, number):
                    before = seen.get(unit.number)
                    if before is None:
                        seen[unit.number] = unit
                        continue
                    # Two different digests of one multiprocessor count as one wrong word.
                    wrong = before.wrong + unit.wrong + (before.digest != unit.digest)
                    seen[unit.number] = Unit(unit.number, wrong, unit.digest)
                if len(seen) >= self.units:
                    break
        return tuple(seen[number] for number in sorted(seen))

    def _make_context(self) -> None:
        self._driver.make_context()
        for limit, size in LIMITS.items():
            try:
                self._driver.limit(limit, size)
            except self._driver.Error as error:
                if status_of(error) not in _REFUSED:  # the context takes more memory then, which is counted
                    raise
        self.units = self._driver.attribute(_MULTIPROCESSORS)
        major, minor = map(self._driver.attribute, _CAPABILITY)
        self.capability = major, minor
        self._most_blocks = self._driver.attribute(_THREADS_OF_UNIT) // THREADS
        self._shared = _Shared(*map(self._driver.attribute, (_SHARED_OF_UNIT, _SHARED_OF_BLOCK, _SHARED_OF_SYSTEM)))
        self._module = self._driver.load(str(self._image()))
        self._events = [self._driver.event(_QUIETLY) for _ in range(_MOST_SPANS)]

    def _load(self) -> None:
        self._found = self._driver.allocate(_FOUND.size * _MOST_SPANS + _UNIT.size * _MOST_UNITS)
        self._units = self._found + _FOUND.size * _MOST_SPANS
        nothing = (Span(self._found, 0, 0),)
        for kind in Sweep:  # the first launch takes memory too
            if kind is Sweep.WRITE:
                self._written(ZERO, nothing, _quiet)
            else:
                self._swept(kind, ZERO, nothing, _quiet)
        for program in self.loaded:
            self._ran(program, 0)

    def _written(self, pattern: Pattern, spans: Iterable[Span], step: Step) -> tuple[Found, ...]:
        """Ask for each span while the device writes to the last one. A comparison meanwhile does no harm."""
        written = []
        for span in spans:
            self._begin(Sweep.WRITE, pattern, span, 0)
            written.append(span)
        self._driver.get(self._found, _FOUND.size)
        for span in written:
            step(span.size)
        return (Found(),) * len(written)

    def _swept(self, kind: Sweep, pattern: Pattern, spans: Sequence[Span], step: Step) -> list[Found]:
        self._driver.put(self._found, _NOTHING * len(spans))
        for number, (span, event) in enumerate(
            zip(spans, self._events, strict=False)
        ):  # spare events are for longer parts
            self._begin(kind, pattern, span, self._found + _FOUND.size * number)
            self._driver.record(event)
        for span, event in zip(spans, self._events, strict=False):
            self._driver.wait(event)
            step(span.size)
        raw = self._driver.get(self._found, _FOUND.size * len(spans))
        try:
            return [Found.decoded(*words) for words in _FOUND.iter_unpack(raw)]
        except CudaError as error:
            raise CudaError(f"cannot {kind.value} memory of {self.name}: {error}") from error

    def _begin(self, kind: Sweep, pattern: Pattern, span: Span, place: int) -> None:
        words: list[Word] = [c_uint64(number) for number in (span.address, span.size // VECTOR, span.start // VECTOR)]
        words += [c_uint32(pattern.kind), c_uint64(pattern.first), c_uint64(pattern.second)]
        if kind in (Sweep.INVERT, Sweep.INVERT_DOWN):
            words.append(c_uint32(kind is Sweep.INVERT_DOWN))
        if kind is not Sweep.WRITE:
            words.append(c_uint64(place))
        self._kernel(KERNELS[kind]).launch(self.units * min(BLOCKS[kind], self._most_blocks), THREADS, words)

    def _ran(self, program: KernelProgram, number: int) -> list[Unit]:
        kernel = self._kernel(program.value)
        words: list[Word] = [c_uint64(number) if program in _IN_A_SCRUB else c_uint32(number)]
        if program is KernelProgram.EXACT:
            words.append(c_uint32(ROUNDS))
        self._driver.put(self._units, bytes(_UNIT.size * _MOST_UNITS))
        granted = self._granted.get(program)
        sizes = self._shared.sizes(program, kernel.own_shared) if granted is None else (granted,)
        self._launch(program, [*words, c_uint64(self._units)], sizes)
        raw = self._driver.get(self._units, _UNIT.size * _MOST_UNITS)
        reports = [(place, *words) for place, words in enumerate(_UNIT.iter_unpack(raw))]
        if (ran := sum(rounds for _, rounds, _, _, _ in reports)) != self.units:
            ended = f"{ran} of {self.units} blocks came to their end"
            raise CudaError(f"cannot run {program.value} on {self.name}: {ended}")
        due = None  # the number of words that a block must read back, by the memory that it was granted
        if program is KernelProgram.SCRATCH:
            due = _TWICE * self._granted[program] // _WORD
        elif program is KernelProgram.REGISTERS:
            due = _TWICE * KEPT * THREADS
        for place, rounds, _, _, compared in reports:
            if due is not None and compared != rounds * due:
                counted = f"{compared} of {rounds * due} words were read back from multiprocessor {place}"
                raise CudaError(f"cannot run {program.value} on {self.name}: the device reports that {counted}")
        return [Unit(place, wrong, digest) for place, rounds, wrong, digest, _ in reports if rounds]

    def _launch(self, program: KernelProgram, words: Sequence[Word], sizes: Sequence[int]) -> None:
        """Launch blocks with the first size that the driver grants. A refused launch has not run."""
        kernel, (size, *smaller) = self._kernel(program.value), sizes
        try:
            kernel.allow_shared(size)
            kernel.launch(self.units, THREADS, words, size)
        except self._driver.Error as error:
            if not smaller or status_of(error) not in _TOO_MUCH:
                raise
            self._launch(program, words, smaller)
        else:
            self._granted[program] = size

    def _kernel(self, name: str) -> Kernel:
        """Get a kernel when it is first used: the driver loads it then, which takes memory."""
        if name not in self._kernels:
            kernel = self._driver.kernel(self._module, name)
            if name in _IN_REGISTERS and kernel.local:  # known only now if the driver compiles it
                compiled = f"as its driver has compiled it, {name} would keep in memory what is to be in registers"
                raise CardBusyError(f"cannot use {self.name}: {compiled}")
            self._kernels[name] = kernel
        return self._kernels[name]

    def _image(self) -> Path:
        try:
            return image_for(self.capability)
        except ValueError as error:
            raise CardBusyError(f"cannot open {self.name}: {error}") from error

    @contextmanager
    def _translated(self, action: str, *, starting: bool = False) -> Iterator[None]:
        """Turn errors of CUDA into CudaError or a kind of it."""
        try:
            yield
        except self._driver.Error as error:
            translated = self._error(action, error)
            if starting and status_of(error) in _NOT_STARTED:
                raise NotStartedError(f"{translated}; {_NODE_OR_DEVICE}") from error
            raise translated from error

    def _error(self, action: str, error: Exception) -> CudaError:
        status = status_of(error)
        remedy = _REMEDY.get(status)
        text = f"cannot {action} {self.name}: CUDA says {error}"
        if status == _OUT_OF_TIME:
            return KernelFailedError(f"{text}; if a display is connected to the GPU, take it off, or stop its server")
        if status in _KERNEL_FAILED:
            return KernelFailedError(f"{text}; a kernel of Autoclave failed, by its own fault or by the GPU's")
        return CudaError(text) if remedy is None else CardBusyError(f"{text}; {remedy}")


def _quiet(_size: int) -> None:
    """Progress that is not reported."""


def _memory_of_host(manager: MemoryManager, *, integrated: bool, tables: bool) -> str | None:
    """Why Linux may use the memory of the device; None if it cannot."""
    harm = "a scrub would take all memory of the node"
    if integrated:
        return f"its memory is integrated into the host's; {harm}, so such devices are not supported"
    if manager is MemoryManager.LINUX:
        return f"its memory is a NUMA node of the host; {harm}; {nvidia_advice.MANAGE_MEMORY}"
    if tables and manager is not MemoryManager.DRIVER:
        unsaid = "/proc/driver/nvidia/params and gpus do not say that the driver manages it"
        return f"it shares its memory with the host, and {unsaid}; {nvidia_advice.MANAGE_MEMORY}"
    return None


def _plain(pci_address: str) -> str:
    """Lower case, without leading zeros of the domain, which not all tools print."""
    return pci_address.lower().lstrip("0")
