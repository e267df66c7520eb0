"""The instructions of the kernel's virtual machine (eBPF) that the fence needs, and how they become bytes.

Each is one instruction of ``include/uapi/linux/bpf.h``: an operation, two registers, an offset and a number. A jump
names a label, a look-up names a map; both become numbers when the program is assembled.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

R0, R1, R2, R3, R4 = range(5)  # registers: the answer of a call, and its arguments
R6, R7, R8, R9 = range(6, 10)  # those that a call leaves as they are
STACK = 10  # the end of the stack: a program writes below it

_IS_MAP = 1  # BPF_PSEUDO_MAP_FD: the number is the descriptor of a map


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. ``to``: the label that it jumps to; ``map``: the name of the map that it loads."""

    code: int
    target: int = 0
    source: int = 0
    offset: int = 0
    number: int = 0
    to: str = ""
    map: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """A place that jumps lead to. It is not an instruction."""

    name: str


Table = Sequence[Instruction | Label]


def copy(target: int, source: int) -> Instruction:
    """``target = source``."""
    return Instruction(0xBF, target, source)


def put(target: int, number: int) -> Instruction:
    """``target = number``."""
    return Instruction(0xB7, target, number=number)


def add(target: int, number: int) -> Instruction:
    """``target += number``."""
    return Instruction(0x07, target, number=number)


def subtract(target: int, other: int) -> Instruction:
    """``target -= other``."""
    return Instruction(0x1F, target, other)


def keep_bits(target: int, bits: int) -> Instruction:
    """``target &= bits``."""
    return Instruction(0x57, target, number=bits)


def join_bits(target: int, source: int) -> Instruction:
    """``target |= source``."""
    return Instruction(0x4F, target, source)


def shift_left(target: int, bits: int) -> Instruction:
    """``target <<= bits``."""
    return Instruction(0x67, target, number=bits)


def shift_right(target: int, bits: int) -> Instruction:
    """``target >>= bits``."""
    return Instruction(0x77, target, number=bits)


def read4(target: int, address: int, offset: int = 0) -> Instruction:
    """``target`` = the four bytes at ``address + offset``."""
    return Instruction(0x61, target, address, offset)


def read8(target: int, address: int, offset: int = 0) -> Instruction:
    """``target`` = the eight bytes at ``address + offset``."""
    return Instruction(0x79, target, address, offset)


def write4(address: int, offset: int, source: int) -> Instruction:
    """Store the lower half of ``source`` at ``address + offset``."""
    return Instruction(0x63, address, source, offset)


def write8(address: int, offset: int, source: int) -> Instruction:
    """Store ``source`` at ``address + offset``."""
    return Instruction(0x7B, address, source, offset)


def count(address: int, offset: int, source: int) -> Instruction:
    """Add ``source`` to the eight bytes at ``address + offset``, whatever other processors do at the same time."""
    return Instruction(0xDB, address, source, offset)


def load_map(target: int, name: str) -> Instruction:
    """``target`` = a map, for a call. It takes the place of two instructions."""
    return Instruction(0x18, target, _IS_MAP, map=name)


def jump(to: str) -> Instruction:
    """Go on at the label."""
    return Instruction(0x05, to=to)


def jump_if_equal(register: int, number: int, to: str) -> Instruction:
    """Go on at the label if ``register == number``."""
    return Instruction(0x15, register, number=number, to=to)


def jump_if_not(register: int, number: int, to: str) -> Instruction:
    """Go on at the label if ``register != number``."""
    return Instruction(0x55, register, number=number, to=to)


def jump_if_at_most(register: int, other: int, to: str) -> Instruction:
    """Go on at the label if ``register <= other``."""
    return Instruction(0xBD, register, other, to=to)


def call(helper: int) -> Instruction:
    """Call a function of the kernel: arguments in R1 to R5, which are lost, and the answer in R0."""
    return Instruction(0x85, number=helper)


def end() -> Instruction:
    """End with the answer in R0."""
    return Instruction(0x95)


def assemble(table: Table, maps: Mapping[str, int]) -> bytes:
    """The bytes of a program. ``maps``: the descriptor of each map that it names."""
    places, place = dict[str, int](), 0
    for entry in table:
        if isinstance(entry, Label):
            places[entry.name] = place
        else:
            place += 2 if entry.map else 1
    code, place = bytearray(), 0
    for entry in table:
        if isinstance(entry, Label):
            continue
        place += 2 if entry.map else 1
        offset = places[entry.to] - place if entry.to else entry.offset
        number = maps[entry.map] if entry.map else entry.number
        code += struct.pack("<BBhi", entry.code, entry.source << 4 | entry.target, offset, number)
        code += bytes(8) if entry.map else b""
    return bytes(code)
