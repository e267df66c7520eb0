"""The program of the fence: may this process open this device node?

The kernel runs it for each question about a device node: by open, access(2), io_uring and the like, and when a node is
made. It answers 1 (yes) or 0 (EPERM). Most nodes are not in ``rules``, so one look-up is all that they cost.

Making a node is always allowed. Container runtimes make all nodes of the host in a privileged container: were one of
them refused, no such container could start. Who opens the node is asked then.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from scrubber.core.model import DeviceNumber, NodeKind
from scrubber.fence.instructions import (
    R0,
    R1,
    R2,
    R3,
    R4,
    R6,
    R7,
    R8,
    R9,
    STACK,
    Instruction,
    Label,
    Table,
    add,
    call,
    copy,
    count,
    end,
    join_bits,
    jump,
    jump_if_equal,
    jump_if_less,
    jump_if_not,
    keep_bits,
    load_map,
    put,
    read4,
    read8,
    shift_left,
    shift_right,
    write4,
    write8,
)

LEVELS = 16  # of control groups below the root that are compared with the owners: more than runtimes nest

# Functions of the kernel, from enum bpf_func_id.
_LOOK_UP, _PID, _COMMAND, _GROUP, _ANCESTOR, _BOOT_TIME, _SEND, _ANSWER_SO_FAR = 1, 14, 16, 80, 123, 125, 130, 186

# What the kernel tells: struct bpf_cgroup_dev_ctx. The type is in the lower half of the first word, the access above.
_ACCESS, _MAJOR, _MINOR = 0, 4, 8
_TYPE_BITS, _READS_OR_WRITES = 0xFFFF, 6


@dataclass(frozen=True, slots=True)
class MapShape:
    """What the kernel must know to make a map: its kind, the bytes of a key and of a value, and how many it holds."""

    kind: int
    key: int
    value: int
    entries: int


_HASH, _ARRAY, _RING = 1, 2, 27
RING_BYTES = 64 * 1024  # about a thousand questions
NUMBERS = 1024  # device numbers that are fenced at most
MEMBERS = 16384  # control groups that may open one, in all: for each number, those of all pods that are exempt

# The names hold the version of the layout: a service finds the maps of an earlier one by them, with what they count.
RULES, MEMBERSHIP, COUNTERS = "fence2_rules", "fence2_members", "fence2_counts"
LEASE, QUESTIONS, PROOFS = "fence2_lease", "fence2_asked", "fence2_proofs"
MAPS = {
    RULES: MapShape(_HASH, 8, 8, NUMBERS),
    MEMBERSHIP: MapShape(_HASH, 16, 4, MEMBERS),
    COUNTERS: MapShape(_HASH, 8, 16, NUMBERS),  # apart from the rules: to replace a rule must not lose a count
    LEASE: MapShape(_ARRAY, 4, 8, 1),
    QUESTIONS: MapShape(_RING, 0, 0, RING_BYTES),
    PROOFS: MapShape(_HASH, 8, 32, NUMBERS),  # what services write for later ones, as long as the node runs
}

RULE = struct.Struct("<II")  # open to all; refuse
COUNTS = struct.Struct("<QQ")  # questions of others: let pass; refused. Each is counted once, at its answer
PROOF = struct.Struct("<QQQQ")  # excused questions; gaps; which proof; the uses that it had seen
QUESTION = struct.Struct("<QQ8sII16s")  # boot time in ns, group, key of the device, process, refused, command

# The stack, from its end down. The key of a device is the beginning of the key of a member.
_DEVICE, _GROUP_ID = -16, -8
_INDEX = -20
_QUESTION = -24 - QUESTION.size
_COMMAND_BYTES = 16


def number(key: bytes) -> DeviceNumber:
    """The device number of a key."""
    first, minor = struct.unpack("<II", key)
    return DeviceNumber(NodeKind(first >> 16), first & 0xFFFF, minor)


def program() -> Table:
    """The program. It takes Linux 6.1: before, it may ask neither for the process nor for groups above its own."""
    return [
        *_WHICH_DEVICE,
        *_look_up(RULES, _DEVICE),
        jump_if_equal(R0, 0, "allow"),  # no device of ours
        read4(R9, R0, 4),  # refuse
        read4(R7, R0, 0),  # open to all
        *_in_a_member(),
        Label("other"),
        call(_ANSWER_SO_FAR),
        jump_if_not(R0, 0, "allow"),  # the program of its container refuses: it opens nothing
        *_look_up(COUNTERS, _DEVICE),
        jump_if_equal(R0, 0, "allow"),
        copy(R8, R0),
        jump_if_not(R7, 0, "passes untold"),
        jump_if_equal(R9, 0, "passes"),
        *_LEASE_LASTS,
        put(R1, 1),
        count(R8, 8, R1),
        jump("tell"),
        Label("passes"),
        put(R1, 1),
        count(R8, 0, R1),
        Label("tell"),
        *_TELL,
        jump_if_equal(R9, 0, "allow"),
        put(R0, 0),
        end(),
        Label("passes untold"),
        put(R1, 1),
        count(R8, 0, R1),
        Label("allow"),
        put(R0, 1),
        end(),
    ]


def _look_up(name: str, place: int) -> list[Instruction]:
    """R0 = the value in a map whose key is at this place of the stack, or 0."""
    return [load_map(R1, name), copy(R2, STACK), add(R2, place), call(_LOOK_UP)]


# Who only makes a node is not asked. Then the key: type and major number, minor number.
_WHICH_DEVICE = [
    copy(R6, R1),
    read4(R7, R6, _ACCESS),
    copy(R1, R7),
    shift_right(R1, 16),
    keep_bits(R1, _READS_OR_WRITES),
    jump_if_equal(R1, 0, "allow"),
    keep_bits(R7, _TYPE_BITS),
    shift_left(R7, 16),
    read4(R1, R6, _MAJOR),
    join_bits(R7, R1),
    write4(STACK, _DEVICE, R7),
    read4(R1, R6, _MINOR),
    write4(STACK, _DEVICE + 4, R1),
]


def _in_a_member() -> Table:
    """Go on at "allow" if the group of the process, or one above it, may open the device. The root is nobody's."""
    return [
        entry
        for level in range(1, LEVELS + 1)
        for entry in (
            put(R1, level),
            call(_ANCESTOR),
            jump_if_equal(R0, 0, "other"),  # the process is in no group so far from the root
            write8(STACK, _GROUP_ID, R0),
            *_look_up(MEMBERSHIP, _DEVICE),
            jump_if_not(R0, 0, "allow"),
        )
    ]


# R9 = 0 if nobody has renewed the lease: a node without its service is not kept from its GPUs.
_LEASE_LASTS: Table = [
    put(R1, 0),
    write4(STACK, _INDEX, R1),
    *_look_up(LEASE, _INDEX),
    jump_if_equal(R0, 0, "over"),
    read8(R7, R0),
    call(_BOOT_TIME),
    jump_if_less(R0, R7, "lasts"),
    Label("over"),
    put(R9, 0),
    jump("passes"),
    Label("lasts"),
]

_TELL: Table = [
    call(_BOOT_TIME),
    write8(STACK, _QUESTION, R0),
    call(_GROUP),
    write8(STACK, _QUESTION + 8, R0),
    read8(R1, STACK, _DEVICE),
    write8(STACK, _QUESTION + 16, R1),
    call(_PID),
    shift_right(R0, 32),
    write4(STACK, _QUESTION + 24, R0),
    write4(STACK, _QUESTION + 28, R9),
    copy(R1, STACK),
    add(R1, _QUESTION + 32),
    put(R2, _COMMAND_BYTES),
    call(_COMMAND),
    load_map(R1, QUESTIONS),
    copy(R2, STACK),
    add(R2, _QUESTION),
    put(R3, QUESTION.size),
    put(R4, 0),
    call(_SEND),
]
