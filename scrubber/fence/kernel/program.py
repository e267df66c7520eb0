"""The program of the fence: may this process open this device node?

The kernel runs it for each attempt to open a device node: by open, access(2), io_uring and the like, and when a node is
made. It answers 1 (yes) or 0 (EPERM). Most nodes are not in ``rules``, so one look-up is all that they cost.

Making a node is always allowed. Container runtimes make all nodes of the host in a privileged container: were one of
them refused, no such container could start. Who opens the node is asked then.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from scrubber.core.model import DeviceNumber, NodeKind
from scrubber.fence.kernel.instructions import (
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
    jump_if_at_most,
    jump_if_equal,
    jump_if_not,
    keep_bits,
    load_map,
    put,
    read4,
    read8,
    shift_left,
    shift_right,
    subtract,
    write4,
    write8,
)

LEVELS = 16  # of control groups below the root that are compared with the members: more than runtimes nest
NAMED_LEVELS = 6  # of control groups that an attempt names: down to that of a pod, also below another root of a kubelet

# Functions of the kernel, from enum bpf_func_id.
_LOOK_UP, _UPDATE, _PID, _COMMAND, _GROUP, _ANCESTOR = 1, 2, 14, 16, 80, 123
_BOOT_TIME, _RESERVE, _SUBMIT, _ANSWER_SO_FAR = 125, 131, 132, 186

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


_HASH, _ARRAY, _LATEST, _RING = 1, 2, 9, 27  # of the latest: the kernel forgets those that were used least lately
RING_BYTES = 256 * 1024  # some 2,500 attempts
NUMBERS = 1024  # device numbers that are fenced at most
MEMBERS = 65536  # control groups that may open one, in all: for each number, those of all pods that are exempt
PROGRAMS = 4096  # processes of the service at most

# The names hold the version of the layout: a service finds the maps of an earlier one by them, with what they count.
RULES, MEMBERSHIP, COUNTERS = "fence2_rules", "fence2_members", "fence2_counts"
LEASE, ATTEMPTS, PROOFS = "fence2_lease", "fence3_asked", "fence2_proofs"
PROCESSES, SENT, KEEPER = "fence3_service", "fence3_sent", "fence3_keeper"
MAPS = {
    RULES: MapShape(_HASH, 8, 8, NUMBERS),
    MEMBERSHIP: MapShape(_HASH, 16, 4, MEMBERS),
    COUNTERS: MapShape(_HASH, 8, 16, NUMBERS),  # apart from the rules: to replace a rule must not lose a count
    LEASE: MapShape(_ARRAY, 4, 8, 1),
    ATTEMPTS: MapShape(_RING, 0, 0, RING_BYTES),
    PROCESSES: MapShape(_HASH, 4, 4, PROGRAMS),
    SENT: MapShape(_LATEST, 16, 16, NUMBERS),
    # What services write for each other, as long as the node runs:
    PROOFS: MapShape(_HASH, 8, 32, NUMBERS),
    KEEPER: MapShape(_ARRAY, 4, 16, 1),
}
UNUSED = (PROOFS, KEEPER)  # by the program itself

RULE = struct.Struct("<II")  # open to all; refuse
MEMBER = struct.Struct("<I")  # the key: a device and a control group
COUNTS = struct.Struct("<QQ")  # attempts of others: let pass; refused. Each is counted once, at its answer
PROOF = struct.Struct("<QQQQ")  # ignored attempts; gaps; which proof; the uses that it had seen
KEPT_BY = struct.Struct("<QQ")  # process and start, in ticks, of the service that keeps the fence; 0: none does
ATTEMPT = struct.Struct(f"<QQ8sII16s{NAMED_LEVELS}Q")
# boot time in ns, group, key of the device, process, refused, command, the groups from the root down

# What a member is. Others are all who are not below one.
OWNER, EXEMPT, SERVICE, HELD = range(4)
# OWNER: let pass, and not counted. EXEMPT: let pass, and counted as others are. SERVICE: its processes as an owner, and
# who else is in its group as exempt: a privileged container can write itself into any group. HELD: refused, and counted
# as refused. The group that is nearest to the process decides, but below an owner everybody passes.

# A flood of attempts costs the kernel a count each, and the service next to nothing: no more of them are sent of one
# control group about one device, and of all groups about it: a user may have many groups. What is not sent cannot be
# ignored.
SENT_EVERY_NS = 100_000_000
SENT_REFUSED, SENT_PASSED = 1, 64  # of a group ...
OF_ALL = 8  # ... and times that of all groups

# The stack, from its end down. The key of a device is the beginning of the key of a member.
_DEVICE, _GROUP_ID = -16, -8
_INDEX = -20
_COUNTS = -32  # where those of the device are
_ABOVE = _COUNTS - 8 * NAMED_LEVELS
_SINCE, _TIMES = _ABOVE - 16, _ABOVE - 8  # the value in SENT
_COMMAND_BYTES = 16
_ABOVE_SENT = ATTEMPT.size - 8 * NAMED_LEVELS


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
        jump_if_not(R7, 0, "passes"),
        jump_if_equal(R9, 0, "passes"),
        *_LEASE_LASTS,
        put(R7, SENT_REFUSED),
        jump("answered"),
        Label("passes"),
        put(R9, 0),
        put(R7, SENT_PASSED),
        Label("answered"),
        write8(STACK, _COUNTS, R8),
        call(_BOOT_TIME),
        copy(R8, R0),
        call(_GROUP),
        write8(STACK, _GROUP_ID, R0),
        *_is_sent("of one group"),  # first: what one group asks in vain must not use up what others may
        put(R1, 0),
        subtract(R1, R9),  # refused ones apart: who is let through must not use up what is left for them
        write8(STACK, _GROUP_ID, R1),
        shift_left(R7, OF_ALL.bit_length() - 1),
        *_is_sent("of all groups"),
        *_SEND_IT,
        Label("sent"),
        *_COUNT_IT,
        Label("counted"),
        jump_if_equal(R9, 0, "allow"),
        put(R0, 0),
        end(),
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
    """Go on at "allow" if the group of the process, or one above it, may open the device uncounted.

    R9 = 0 if it passes and is counted, 1 if it is refused. The root is nobody's. What is sent of the groups is kept on
    the way.
    """
    return [
        put(R1, 0),
        *(write8(STACK, _ABOVE + 8 * level, R1) for level in range(NAMED_LEVELS)),
        *(entry for level in range(1, LEVELS + 1) for entry in _at_level(level)),
    ]


def _at_level(level: int) -> Table:
    below = f"below level {level}"
    return [
        put(R1, level),
        call(_ANCESTOR),
        jump_if_equal(R0, 0, "other"),  # the process is in no group so far from the root
        write8(STACK, _GROUP_ID, R0),
        *([write8(STACK, _ABOVE + 8 * (level - 1), R0)] if level <= NAMED_LEVELS else []),
        *_look_up(MEMBERSHIP, _DEVICE),
        jump_if_equal(R0, 0, below),
        read4(R8, R0),
        jump_if_equal(R8, OWNER, "allow"),
        put(R9, 1),
        jump_if_equal(R8, HELD, below),
        put(R9, 0),
        jump_if_not(R8, SERVICE, below),
        call(_PID),
        shift_right(R0, 32),
        write4(STACK, _INDEX, R0),
        *_look_up(PROCESSES, _INDEX),
        jump_if_not(R0, 0, "allow"),
        Label(below),
    ]


# In the second place if it was refused, that is if R9 is 1, otherwise in the first.
_COUNT_IT: Table = [
    read8(R2, STACK, _COUNTS),
    put(R1, 1),
    subtract(R1, R9),
    count(R2, 0, R1),
    count(R2, 8, R9),
]

# Nobody is refused if nobody has renewed the lease: a node without its service is not kept from its GPUs.
_LEASE_LASTS: Table = [
    put(R1, 0),
    write4(STACK, _INDEX, R1),
    *_look_up(LEASE, _INDEX),
    jump_if_equal(R0, 0, "passes"),
    read8(R7, R0),
    call(_BOOT_TIME),
    jump_if_at_most(R7, R0, "passes"),
]


def _is_sent(whose: str) -> Table:
    """Go on at "sent" if R7 attempts about this device were sent lately of the group that the key names, or of all."""
    first, passes = f"first {whose}", f"is sent {whose}"
    return [
        *_look_up(SENT, _DEVICE),
        jump_if_equal(R0, 0, first),
        read8(R1, R0),
        copy(R2, R8),
        subtract(R2, R1),
        put(R3, SENT_EVERY_NS),
        jump_if_at_most(R3, R2, first),
        read8(R1, R0, 8),
        jump_if_at_most(R7, R1, "sent"),
        put(R1, 1),
        count(R0, 8, R1),
        jump(passes),
        Label(first),
        write8(STACK, _SINCE, R8),
        put(R1, 1),
        write8(STACK, _TIMES, R1),
        load_map(R1, SENT),
        copy(R2, STACK),
        add(R2, _DEVICE),
        copy(R3, STACK),
        add(R3, _SINCE),
        put(R4, 0),
        call(_UPDATE),
        Label(passes),
    ]


# The record is in the ring, as one that is being written, before it is counted, and can be read only afterwards. So who
# finds no record left in the ring knows all that was sent of those that are counted.
_SEND_IT: Table = [
    load_map(R1, ATTEMPTS),
    put(R2, ATTEMPT.size),
    put(R3, 0),
    call(_RESERVE),
    jump_if_equal(R0, 0, "sent"),  # there is no room
    copy(R7, R0),
    write8(R7, 0, R8),
    call(_GROUP),
    write8(R7, 8, R0),
    read8(R1, STACK, _DEVICE),
    write8(R7, 16, R1),
    call(_PID),
    shift_right(R0, 32),
    write4(R7, 24, R0),
    write4(R7, 28, R9),
    copy(R1, R7),
    add(R1, 32),
    put(R2, _COMMAND_BYTES),
    call(_COMMAND),
    *(
        entry
        for level in range(NAMED_LEVELS)
        for entry in (read8(R1, STACK, _ABOVE + 8 * level), write8(R7, _ABOVE_SENT + 8 * level, R1))
    ),
    *_COUNT_IT,
    copy(R1, R7),
    put(R2, 0),
    call(_SUBMIT),
    jump("counted"),
]
