"""bpf(2) without a kernel: maps, programs and a control group as the fence uses them, with a clock of the test's own.

It stands under ``scrubber.fence.kernel.bpf``, as the system call, and executes the instructions that it was given. So
the fence, its program and its ring are those of a node. ``tests/fence/kernel/test_bpf.py`` holds it against this
machine's.

Kinder than a real kernel: no verifier reads a program, any user has the rights, and nobody waits for a poll of the
ring: its descriptor is a file's. The order of the keys of a map is that in which they came.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from scrubber.core.model import DeviceNumber
from scrubber.fence.kernel import bpf

ROOT = 1  # the control group above all
_PAGE = os.sysconf("SC_PAGESIZE")
_ARRAY, _LATEST, _RING = 2, 9, 27
_STACK, _CONTEXT, _VALUES = 1 << 32, 2 << 32, 3 << 32  # where they are for a program: a number for each above
_WHOLE = (1 << 64) - 1
_THREAD = 1 << 30  # by so much the number of a thread that asks is more: it is not the first of its process


@dataclass
class _Map:
    """A map, by what its maker said of it."""

    kind: int
    key: int
    value: int
    entries: int
    name: bytes
    values: dict[bytes, bytearray] = field(default_factory=dict)
    answers: dict[bytes, bytes] = field(default_factory=dict)  # the last one about a key since the service has put it


@dataclass
class _Program:
    """A loaded program, and the ids of its maps."""

    code: bytes
    name: bytes
    maps: list[int]
    tag: bytes  # the same for the same code, whatever its maps are


@dataclass(frozen=True)
class Process:
    """Who opens: its control groups from the root down, without the root."""

    pid: int
    groups: tuple[int, ...] = ()
    command: str = "python"


class Bpf:
    """One boot of a kernel whose system call it is."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: the seconds since boot."""
        self.clock = clock
        self.before: Callable[[int], None] = lambda _command: None  # called with each command; may raise OSError
        self.is_old = False  # the answer to this call is what was true when it was asked before
        self._objects: dict[int, _Map | _Program] = {}  # by id, which is the inode of its file
        self._files: dict[int, int] = {}
        self._attached: list[int] = []  # the ids of programs
        self._changes = 0  # of that list
        self._open: list[int] = []  # descriptors that were given out, of all objects
        self._reserved: dict[int, _Map] = {}  # by the place in the memory of a program: the ring of a record

    @contextmanager
    def booted(self) -> Iterator[None]:
        """While it is the kernel of this process."""
        real, bpf._libc = bpf._libc, self  # type: ignore[assignment] # it has the one function
        number, bpf._CALL = bpf._CALL, 321
        try:
            yield
        finally:
            bpf._libc, bpf._CALL = real, number
            for descriptor in self._files.values():
                os.close(descriptor)

    def syscall(self, _number: int, command: int, block: ctypes.Array[ctypes.c_char], _size: int) -> int:
        """The answer to a command, -1 with an errno for a refusal."""
        try:
            self.before(command)
            answer = int(_COMMANDS[command](self, block) or 0)
        except OSError as error:
            ctypes.set_errno(error.errno or errno.EIO)
            return -1
        finally:
            self.is_old = False
        return answer

    # -- objects

    def _made(self, thing: _Map | _Program) -> int:
        descriptor = os.memfd_create("bpf", os.MFD_CLOEXEC)
        number = os.fstat(descriptor).st_ino
        self._objects[number], self._files[number] = thing, descriptor
        return self._given(number)

    def _given(self, number: int) -> int:
        descriptor = os.dup(self._files[number])
        self._open.append(descriptor)
        return descriptor

    def _is_held(self, number: int) -> bool:
        self._open = [descriptor for descriptor in self._open if _inode(descriptor) in self._objects]
        return number in self._attached or any(_inode(descriptor) == number for descriptor in self._open)

    def _map(self, descriptor: int) -> _Map:
        found = self._objects.get(_inode(descriptor))
        if not isinstance(found, _Map):
            raise OSError(errno.EBADF, "no map")
        return found

    def _program(self, descriptor: int) -> tuple[int, _Program]:
        found = self._objects.get(number := _inode(descriptor))
        if not isinstance(found, _Program):
            raise OSError(errno.EBADF, "no program")
        return number, found

    def _make_map(self, block: ctypes.Array[ctypes.c_char]) -> int:
        kind, key, value, entries, name = struct.unpack_from("<4I12x16s", block)
        made = _Map(kind, key, value, entries, name)
        if kind == _ARRAY:
            made.values = {struct.pack("<I", at): bytearray(value) for at in range(entries)}
        descriptor = self._made(made)
        if kind == _RING:
            os.ftruncate(descriptor, 2 * _PAGE + 2 * entries)
        return descriptor

    def _load(self, block: ctypes.Array[ctypes.c_char]) -> int:
        count, address, name = struct.unpack_from("<4xIQ32x16s", block)
        code = bytearray(ctypes.string_at(address, 8 * count))
        maps, plain = [], bytearray(code)
        for at in range(0, len(code), 8):
            if code[at] == 0x18:  # the kernel knows a map from now on, whatever becomes of its descriptor
                number = _inode(struct.unpack_from("<i", code, at + 4)[0])
                struct.pack_into("<i4xI", code, at + 4, number & 0x7FFFFFFF, number >> 31)
                plain[at + 4 : at + 16] = bytes(12)
                maps.append(number)
        return self._made(_Program(bytes(code), name, [*dict.fromkeys(maps)], hashlib.sha256(plain).digest()[:8]))

    def _bind(self, block: ctypes.Array[ctypes.c_char]) -> None:
        program, descriptor = struct.unpack_from("<II", block)
        maps = self._program(program)[1].maps
        self._map(descriptor)
        if _inode(descriptor) not in maps:
            maps.append(_inode(descriptor))

    def _info(self, block: ctypes.Array[ctypes.c_char]) -> None:
        descriptor, _, address = struct.unpack_from("<IIQ", block)
        number = _inode(descriptor)
        match self._objects.get(number):
            case _Map(name=name):
                ctypes.memmove(address + 24, name, 16)
            case _Program(name=name, maps=maps, tag=tag):
                room, ids = struct.unpack("<IQ", ctypes.string_at(address + 52, 12))
                ctypes.memmove(address + 4, struct.pack("<I8s", number, tag), 12)
                ctypes.memmove(address + 52, struct.pack("<I", len(maps)), 4)
                ctypes.memmove(address + 64, name, 16)
                ctypes.memmove(ids, struct.pack(f"<{len(maps)}I", *maps), 4 * min(len(maps), room))
            case _:
                raise OSError(errno.EBADF, "neither")

    def _attach(self, block: ctypes.Array[ctypes.c_char]) -> None:
        _, descriptor, _, flags, before = struct.unpack_from("<5I", block)
        number, _ = self._program(descriptor)
        self._changes += 1
        if not flags & 4:  # BPF_F_REPLACE
            self._attached.append(number)
            return
        earlier, _ = self._program(before)
        if earlier not in self._attached:
            raise OSError(errno.ENOENT, "not attached")
        self._attached[self._attached.index(earlier)] = number

    def _detach(self, block: ctypes.Array[ctypes.c_char]) -> None:
        number, _ = self._program(struct.unpack_from("<4xI", block)[0])
        if number not in self._attached:
            raise OSError(errno.ENOENT, "not attached")
        self._attached.remove(number)
        self._changes += 1

    def _query(self, block: ctypes.Array[ctypes.c_char]) -> None:
        address, room = struct.unpack_from("<16xQI", block)
        count, changes = len(self._attached), self._changes
        ctypes.memmove(address, struct.pack(f"<{count}I", *self._attached), 4 * min(count, room))
        struct.pack_into("<I28xQ", block, 24, count, changes)

    def _next_program(self, block: ctypes.Array[ctypes.c_char]) -> None:
        (start,) = struct.unpack_from("<I", block)
        later = [it for it, thing in self._objects.items() if isinstance(thing, _Program) and it > start]
        if not (later := [number for number in later if self._is_held(number)]):
            raise OSError(errno.ENOENT, "no more")
        struct.pack_into("<I", block, 4, min(later))

    def _by_id(self, block: ctypes.Array[ctypes.c_char]) -> int:
        (number,) = struct.unpack_from("<I", block)
        thing = self._objects.get(number)
        if thing is None or (isinstance(thing, _Program) and not self.is_old and not self._is_held(number)):
            raise OSError(errno.ENOENT, "gone")
        return self._given(number)

    # -- maps

    def _look_up(self, block: ctypes.Array[ctypes.c_char]) -> None:
        descriptor, key, value = struct.unpack_from("<IxxxxQQ", block)
        found, wanted = self._map(descriptor), ctypes.string_at(key, self._map(descriptor).key)
        answer = bytes(found.values[_key(found, key)])
        before, found.answers[wanted] = found.answers.get(wanted, answer), answer
        ctypes.memmove(value, before if self.is_old else answer, found.value)

    def _update(self, block: ctypes.Array[ctypes.c_char]) -> None:
        descriptor, key, value = struct.unpack_from("<IxxxxQQ", block)
        found = self._map(descriptor)
        found.answers.pop(ctypes.string_at(key, found.key), None)
        _put(found, ctypes.string_at(key, found.key), ctypes.string_at(value, found.value))

    def _delete(self, block: ctypes.Array[ctypes.c_char]) -> None:
        descriptor, key = struct.unpack_from("<IxxxxQ", block)
        found = self._map(descriptor)
        del found.values[_key(found, key)]

    def _next_key(self, block: ctypes.Array[ctypes.c_char]) -> None:
        descriptor, before, after = struct.unpack_from("<IxxxxQQ", block)
        found = self._map(descriptor)
        keys = list(found.values)
        at = keys.index(ctypes.string_at(before, found.key)) + 1 if before else 0
        if at == len(keys):
            raise OSError(errno.ENOENT, "no more")
        ctypes.memmove(after, keys[at], found.key)

    def _batch(self, block: ctypes.Array[ctypes.c_char]) -> None:
        before, after, keys, values, room, descriptor = struct.unpack_from("<QQQQII", block)
        found = self._map(descriptor)
        begin = struct.unpack("<I", ctypes.string_at(before, 4))[0] if before else 0
        items = list(found.values.items())[begin : begin + room]
        ctypes.memmove(keys, b"".join(key for key, _ in items), found.key * len(items))
        ctypes.memmove(values, b"".join(bytes(value) for _, value in items), found.value * len(items))
        struct.pack_into("<I", block, 32, len(items))
        ctypes.memmove(after, struct.pack("<I", begin + len(items)), 4)
        if begin + room >= len(found.values):
            raise OSError(errno.ENOENT, "the last ones")

    # -- a process opens a device node

    def opens(self, device: DeviceNumber, process: Process, access: int = 2, *, allowed: bool = True) -> bool:
        """Whether it may. ``allowed``: by the programs of its container."""
        word = access << 16 | device.kind.value
        context = bytearray(struct.pack("<III", word, device.major, device.minor))
        answers = [self._run(number, context, process, allowed=allowed) for number in self._attached]  # each is asked
        return allowed and all(answers)

    def _run(self, number: int, context: bytearray, process: Process, *, allowed: bool) -> bool:
        program = self._objects[number]
        assert isinstance(program, _Program)
        memory = [bytearray(), bytearray(512), context]  # by the upper half of an address; then values of maps
        registers: list[Any] = [None] * 10 + [_STACK + 512]
        registers[1], place, code = _CONTEXT, 0, program.code
        while True:
            operation, both, offset, number = struct.unpack_from("<BBhi", code, place * 8)
            target, source, place = both & 15, both >> 4, place + 1
            match operation:
                case _ if operation in _ARITHMETIC:
                    registers[target] = _ARITHMETIC[operation](registers[target], registers[source], number)
                case 0x61 | 0x79:
                    shape = "<I" if operation == 0x61 else "<Q"
                    (registers[target],) = struct.unpack_from(shape, *_at(memory, registers[source], offset))
                case 0x63:
                    struct.pack_into("<I", *_at(memory, registers[target], offset), registers[source] & 0xFFFFFFFF)
                case 0x7B:
                    struct.pack_into("<Q", *_at(memory, registers[target], offset), registers[source])
                case 0xDB:
                    buffer, at = _at(memory, registers[target], offset)
                    struct.pack_into("<Q", buffer, at, struct.unpack_from("<Q", buffer, at)[0] + registers[source])
                case 0x18:
                    upper = struct.unpack_from("<I", code, place * 8 + 4)[0]
                    registers[target] = self._objects[(number & 0x7FFFFFFF) | upper << 31]
                    place += 1
                case _ if operation in _JUMPS:
                    place += offset * _JUMPS[operation](registers[target], registers[source], number)
                case 0x85:
                    registers[0] = self._helper(number, registers[1:5], memory, process, allowed=allowed)
                    registers[1:6] = [None] * 5  # the verifier lets nobody use them
                case 0x95:
                    return bool(registers[0])
                case _:
                    raise AssertionError(f"no instruction {operation:#x}")

    def _helper(
        self, number: int, given: Sequence[Any], memory: list[bytearray], process: Process, *, allowed: bool
    ) -> int:  # fmt: skip
        first, second, third = given[:3]
        match number:
            case 1:  # a look-up
                value = first.values.get(_bytes(memory, second, first.key))
                if value is None:
                    return 0
                memory.append(value)
                return len(memory) - 1 << 32
            case 2:
                _put(first, _bytes(memory, second, first.key), _bytes(memory, third, first.value))
                return 0
            case 14:
                return process.pid << 32 | process.pid + _THREAD
            case 16:
                buffer, at = _at(memory, first, 0)
                buffer[at : at + second] = process.command.encode()[: second - 1].ljust(second, b"\0")
                return 0
            case 80:
                return process.groups[-1] if process.groups else ROOT
            case 123:
                return (ROOT, *process.groups)[first] if first <= len(process.groups) else 0
            case 125:
                return int(self.clock() * 1e9)
            case 131:
                if not self._has_room(first, second):
                    return 0
                memory.append(bytearray(second))
                self._reserved[len(memory) - 1] = first
                return len(memory) - 1 << 32
            case 132:
                self._send(self._reserved.pop(first >> 32), bytes(memory[first >> 32]))
                return 0
            case 186:
                return 0 if allowed else -errno.EPERM & _WHOLE
        raise AssertionError(f"no helper {number}")

    def _places(self, ring: _Map) -> tuple[int, int, int]:
        """The file of a ring, and how far it is read and written."""
        number = next(it for it, thing in self._objects.items() if thing is ring)
        file = self._files[number]
        read, written = (struct.unpack("<Q", os.pread(file, 8, at))[0] for at in (0, _PAGE))
        return file, read, written

    def _has_room(self, ring: _Map, size: int) -> bool:
        _, read, written = self._places(ring)
        return bool(written + 8 + -(-size // 8) * 8 - read <= ring.entries - 1)

    def _send(self, ring: _Map, record: bytes) -> None:
        """Write a record into the ring; each byte is there twice, so that no reader meets its end."""
        file, _, written = self._places(ring)
        whole = struct.pack("<II", len(record), 0) + record.ljust(-(-len(record) // 8) * 8, b"\0")
        before = ring.entries - written % ring.entries
        for part, at in ((whole[:before], written % ring.entries), (whole[before:], 0)):
            for copy in (0, ring.entries):
                os.pwrite(file, part, 2 * _PAGE + copy + at)
        os.pwrite(file, struct.pack("<Q", written + len(whole)), _PAGE)


_COMMANDS: dict[int, Callable[[Bpf, ctypes.Array[ctypes.c_char]], int | None]] = {
    0: Bpf._make_map, 1: Bpf._look_up, 2: Bpf._update, 3: Bpf._delete, 4: Bpf._next_key, 5: Bpf._load,
    8: Bpf._attach, 9: Bpf._detach, 11: Bpf._next_program, 13: Bpf._by_id, 14: Bpf._by_id, 15: Bpf._info,
    16: Bpf._query, 24: Bpf._batch, 35: Bpf._bind,
}  # fmt: skip


_ARITHMETIC: dict[int, Callable[[Any, Any, int], Any]] = {  # of the target, the source and the number
    0xBF: lambda _target, source, _number: source,
    0xB7: lambda _target, _source, number: number & _WHOLE,
    0x07: lambda target, _source, number: target + number & _WHOLE,
    0x1F: lambda target, source, _number: target - source & _WHOLE,
    0x57: lambda target, _source, number: target & number,
    0x4F: lambda target, source, _number: target | source,
    0x67: lambda target, _source, number: target << number & _WHOLE,
    0x77: lambda target, _source, number: target >> number,
}
_JUMPS: dict[int, Callable[[Any, Any, int], bool]] = {
    0x05: lambda _target, _source, _number: True,
    0x15: lambda target, _source, number: target == number,
    0x55: lambda target, _source, number: target != number,
    0xBD: lambda target, source, _number: target <= source,
}


def _inode(descriptor: int) -> int:
    with suppress(OSError):
        return os.fstat(descriptor).st_ino
    return 0


def _key(found: _Map, address: int) -> bytes:
    key = ctypes.string_at(address, found.key)
    if key not in found.values:
        raise OSError(errno.ENOENT, "no such key")
    return key


def _put(found: _Map, key: bytes, value: bytes) -> None:
    if key in found.values:
        found.values[key][:] = value
    elif len(found.values) == found.entries and found.kind != _LATEST:
        raise OSError(errno.E2BIG, "full")
    else:
        if len(found.values) == found.entries:
            del found.values[next(iter(found.values))]
        found.values[key] = bytearray(value)


def _at(memory: list[bytearray], address: int, offset: int) -> tuple[bytearray, int]:
    whole = address + offset
    return memory[whole >> 32], whole & 0xFFFFFFFF


def _bytes(memory: list[bytearray], address: int, size: int) -> bytes:
    buffer, at = _at(memory, address, 0)
    return bytes(buffer[at : at + size])
