"""The system call bpf(2): maps, programs, and the control group where a program is attached.

No library is needed: the fence uses a dozen of its commands. Each argument block is written as ``union bpf_attr`` of
``include/uapi/linux/bpf.h`` has it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_CALL = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine)
_MAP_CREATE, _MAP_LOOK_UP, _MAP_UPDATE, _MAP_DELETE, _MAP_NEXT_KEY, _PROGRAM_LOAD = 0, 1, 2, 3, 4, 5
_ATTACH, _DETACH, _NEXT_PROGRAM, _PROGRAM_BY_ID, _MAP_BY_ID, _INFO, _QUERY, _MAP_BATCH = 8, 9, 11, 13, 14, 15, 16, 24
_BIND = 35
_NAMES = {
    _MAP_CREATE: "BPF_MAP_CREATE",
    _PROGRAM_LOAD: "BPF_PROG_LOAD",
    _ATTACH: "BPF_PROG_ATTACH",
    _DETACH: "BPF_PROG_DETACH",
    _NEXT_PROGRAM: "BPF_PROG_GET_NEXT_ID",
    _PROGRAM_BY_ID: "BPF_PROG_GET_FD_BY_ID",
    _MAP_BY_ID: "BPF_MAP_GET_FD_BY_ID",
}
_CGROUP_DEVICE_PROGRAM, _CGROUP_DEVICE_ATTACHMENT = 15, 6
_BESIDE_OTHERS, _REPLACE = 2, 4  # BPF_F_ALLOW_MULTI, BPF_F_REPLACE
_MOST_MAPS = _MOST_PROGRAMS = 64
_BATCH = 1024  # keys that are read at once: more than the kernel has in one place
_ATTRIBUTES = 128  # bytes; the kernel accepts zeros beyond those that it knows
_INFO_BYTES = 128

_libc = ctypes.CDLL(None, use_errno=True)


class UnavailableError(Exception):
    """This kernel has no bpf(2) that we know how to call."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A program that is attached to a control group."""

    id: int
    tag: bytes  # the same for the same instructions
    name: str
    maps: tuple[int, ...]  # their ids


def _bpf(command: int, attributes: bytes) -> int:
    return _asked(command, ctypes.create_string_buffer(attributes, _ATTRIBUTES))


def _asked(command: int, block: ctypes.Array[ctypes.c_char]) -> int:
    """The answer of a command, which may also write into the block. The error names the command."""
    if _CALL is None:
        raise UnavailableError(f"no number of bpf(2) is known for {os.uname().machine}")
    answer = int(_libc.syscall(_CALL, command, block, _ATTRIBUTES))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), _NAMES.get(command))
    return answer


def make_map(name: str, kind: int, key: int, value: int, entries: int) -> int:
    """The descriptor of a new map."""
    attributes = struct.pack("<7I16s", kind, key, value, entries, 0, 0, 0, name.encode())
    return _bpf(_MAP_CREATE, attributes)


class Map:
    """A map by its descriptor, with keys and values as bytes."""

    def __init__(self, descriptor: int, key: int, value: int) -> None:
        """``key`` and ``value``: their bytes."""
        self.descriptor = descriptor
        self._sizes = key, value
        self._key = ctypes.create_string_buffer(max(key, 1))
        self._value = ctypes.create_string_buffer(max(value, 1))
        addresses = ctypes.addressof(self._key), ctypes.addressof(self._value)
        self._of_item = struct.pack("<IxxxxQQQ", descriptor, *addresses, 0)
        self._of_key = struct.pack("<IxxxxQ", descriptor, addresses[0])

    def get(self, key: bytes) -> bytes | None:
        """The value, None if there is none."""
        self._key.raw = key
        try:
            _bpf(_MAP_LOOK_UP, self._of_item)
        except FileNotFoundError:
            return None
        return self._value.raw

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value."""
        self._key.raw, self._value.raw = key, value
        _bpf(_MAP_UPDATE, self._of_item)

    def remove(self, key: bytes) -> None:
        """Remove the key, if it is there."""
        self._key.raw = key
        try:
            _bpf(_MAP_DELETE, self._of_key)
        except FileNotFoundError:
            return

    def __iter__(self) -> Iterator[bytes]:
        """All keys. Change the map only when the iteration has ended."""
        key = ctypes.create_string_buffer(len(self._key))
        before = 0  # no key: the first one follows
        while True:
            try:
                _bpf(_MAP_NEXT_KEY, struct.pack("<IxxxxQQQ", self.descriptor, before, ctypes.addressof(key), 0))
            except FileNotFoundError:
                return
            yield key.raw
            before = ctypes.addressof(key)

    def items(self) -> dict[bytes, bytes]:
        """All keys and values of a hash map, read in few calls."""
        key, value = self._sizes
        keys, values = ctypes.create_string_buffer(key * _BATCH), ctypes.create_string_buffer(value * _BATCH)
        place, found, before = ctypes.create_string_buffer(8), dict[bytes, bytes](), 0
        while True:
            addresses = before, *map(ctypes.addressof, (place, keys, values))
            block = ctypes.create_string_buffer(
                struct.pack("<QQQQII", *addresses, _BATCH, self.descriptor), _ATTRIBUTES
            )
            try:
                _asked(_MAP_BATCH, block)
                has_more = True
            except FileNotFoundError:  # the last ones
                has_more = False
            (count,) = struct.unpack_from("<I", block, 32)
            for at in range(count):
                found[keys.raw[at * key : (at + 1) * key]] = values.raw[at * value : (at + 1) * value]
            if not has_more:
                return found
            before = addresses[1]


def load(name: str, code: bytes) -> int:
    """The descriptor of a loaded program. OSError: the kernel refuses it."""
    instructions, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"Apache-2.0")
    addresses = ctypes.addressof(instructions), ctypes.addressof(licence)
    before, after = (_CGROUP_DEVICE_PROGRAM, len(code) // 8, *addresses), (name.encode(), _CGROUP_DEVICE_ATTACHMENT)
    attributes = struct.pack("<IIQQ24x16s4xI", *before, *after)
    return _bpf(_PROGRAM_LOAD, attributes)


def bind(program: int, descriptor: int) -> None:
    """Keep a map as long as a program that does not use it."""
    _bpf(_BIND, struct.pack("<III", program, descriptor, 0))


def attach(group: int, program: int) -> None:
    """Attach a program to a control group, beside those of others."""
    _attach(group, program)


def _attach(group: int, program: int, flags: int = 0, before: int = 0) -> None:
    _bpf(_ATTACH, struct.pack("<5I", group, program, _CGROUP_DEVICE_ATTACHMENT, _BESIDE_OTHERS | flags, before))


def replace(group: int, program: int, number: int) -> None:
    """Attach a program in the place of another one, named by its id, without a gap."""
    with by_id(number) as before:
        _attach(group, program, _REPLACE, before)


def detach(group: int, number: int) -> None:
    """Detach a program, named by its id, from a control group."""
    with by_id(number) as program:
        _bpf(_DETACH, struct.pack("<5I", group, program, _CGROUP_DEVICE_ATTACHMENT, 0, 0))


def in_order(group: int) -> tuple[tuple[int, ...], int]:
    """The ids of the programs that are attached to this control group itself, in the order in which they answer.

    And how often that was changed; 0 before Linux 6.17. PermissionError: before 6.9 it takes CAP_NET_ADMIN.
    """
    ids = (ctypes.c_uint32 * _MOST_PROGRAMS)()
    asked = struct.pack("<4IQI", group, _CGROUP_DEVICE_ATTACHMENT, 0, 0, ctypes.addressof(ids), _MOST_PROGRAMS)
    block = ctypes.create_string_buffer(asked, _ATTRIBUTES)
    _asked(_QUERY, block)
    count, changes = struct.unpack_from("<I28xQ", block, 24)
    return tuple(ids[:count]), changes


def attached(group: int, name: str) -> list[Attached]:
    """The programs of this name that are attached to this control group itself."""
    programs = []
    for number in _candidates(group):
        with suppress(FileNotFoundError), by_id(number) as program:  # it may be unloaded meanwhile
            described = describe(program)
            if described.name == name and is_attached(group, program):
                programs.append(described)
    return programs


def is_attached(group: int, program: int) -> bool:
    """Whether a program is attached to a control group.

    Without the right to ask, it is put in its own place, which the kernel does only there.
    """
    with suppress(PermissionError):
        return describe(program).id in in_order(group)[0]
    try:
        _attach(group, program, _REPLACE, program)
    except FileNotFoundError:
        return False
    return True


def _candidates(group: int) -> Iterable[int]:
    with suppress(PermissionError):
        return in_order(group)[0]
    return _programs()


def _programs() -> Iterator[int]:
    """The ids of all programs in the kernel."""
    block = ctypes.create_string_buffer(_ATTRIBUTES)
    number = 0
    while True:
        struct.pack_into("<II", block, 0, number, 0)
        try:
            _asked(_NEXT_PROGRAM, block)
        except FileNotFoundError:
            return
        (number,) = struct.unpack_from("<I", block, 4)
        yield number


@contextmanager
def by_id(number: int) -> Iterator[int]:
    """The descriptor of a program."""
    program = _bpf(_PROGRAM_BY_ID, struct.pack("<III", number, 0, 0))
    try:
        yield program
    finally:
        os.close(program)


def describe(program: int) -> Attached:
    """What the kernel says of a program, by its descriptor."""
    maps = (ctypes.c_uint32 * _MOST_MAPS)()
    asked = struct.pack("<52xIQ", _MOST_MAPS, ctypes.addressof(maps))
    info = _info(program, asked)
    (number,) = struct.unpack_from("<I", info, 4)
    (count,) = struct.unpack_from("<I", info, 52)
    return Attached(number, info[8:16], _name(info[64:80]), tuple(maps[:count]))


def map_name(descriptor: int) -> str:
    """The name of a map."""
    return _name(_info(descriptor, b"")[24:40])


def map_id(descriptor: int) -> int:
    """The number of a map, which no other one has in this boot while it lives."""
    return int.from_bytes(_info(descriptor, b"")[4:8], sys.byteorder)


def _info(descriptor: int, asked: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(asked, _INFO_BYTES)
    _bpf(_INFO, struct.pack("<IIQ", descriptor, _INFO_BYTES, ctypes.addressof(buffer)))
    return buffer.raw


def _name(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="replace")


def open_map(number: int) -> int:
    """The descriptor of a map, by its id."""
    return _bpf(_MAP_BY_ID, struct.pack("<III", number, 0, 0))


def unified_root(mounts: str) -> Path | None:
    """Where version 2 of control groups is mounted, with the root of the node; by the text of /proc/self/mountinfo."""
    for line in mounts.split("\n"):
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            place = Path(before.split(" ")[4])
            if place.is_dir() and place.stat().st_ino == 1:  # the root of all groups, not that of a container
                return place
    return None
