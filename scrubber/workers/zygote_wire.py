"""What the service and its zygote say to each other: one JSON packet at a time, with open files along.

The zygote imports this module, so it is plain Python.
"""

from __future__ import annotations

import json
import socket
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass

FORK = b"fork"  # the one request: the child's stdin, stdout and stderr come along

_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class Ready:
    """The zygote will answer from now on."""

    cupy: str | None = None  # its version, if it was to be loaded and could be
    lacks: str = ""  # why it could not; nothing that needs CuPy can be done then, and all else can


@dataclass(frozen=True, slots=True)
class Forked:
    """A child runs. Its pidfd comes along."""

    pid: int


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """There is no child."""

    why: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A child has ended and was collected: its pid may be anybody's now."""

    pid: int
    status: int  # negative: the signal that ended it


Said = Ready | Forked | ForkFailed | Ended

_KINDS: dict[str, type[Said]] = {kind.__name__: kind for kind in (Ready, Forked, ForkFailed, Ended)}


def encode(said: Said) -> bytes:
    """A packet of the zygote's."""
    return json.dumps([type(said).__name__, asdict(said)]).encode()


def decode(packet: bytes) -> Said:
    """What the zygote said."""
    kind, fields = json.loads(packet)
    return _KINDS[kind](**fields)


def send(line: socket.socket, packet: bytes, files: Sequence[int] = ()) -> None:
    """One packet; whoever hears it has the open files too."""
    line.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else [])


def receive(line: socket.socket, most: int) -> tuple[bytes, tuple[int, ...]]:
    """The next packet and the files that came along, of at most so many; an empty packet when the other end is gone."""
    files = array("i")
    packet, ancillary, _, _ = line.recvmsg(_LONGEST, socket.CMSG_SPACE(most * files.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return packet, tuple(files)
