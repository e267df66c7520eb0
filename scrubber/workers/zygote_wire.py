"""The messages between the service and its zygote: one JSON packet each, with open files.

The zygote imports this module, so it imports no library.
"""

from __future__ import annotations

import json
import socket
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass

FORK = b"fork"  # the only request; stdin, stdout and stderr of the child come with it

_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class Ready:
    """The zygote answers requests from now on."""

    cupy: str | None = None  # the version of CuPy, if it is loaded
    lacks: str = ""  # why CuPy could not be loaded; steps that do not need CuPy still run


@dataclass(frozen=True, slots=True)
class Forked:
    """A child runs. Its pidfd comes with the packet."""

    pid: int


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """There is no child."""

    why: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A child has ended and was reaped: its pid may belong to another process now."""

    pid: int
    status: int  # negative: the signal that ended it


Message = Ready | Forked | ForkFailed | Ended

_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in (Ready, Forked, ForkFailed, Ended)}


def encode(message: Message) -> bytes:
    """A message of the zygote as a packet."""
    return json.dumps([type(message).__name__, asdict(message)]).encode()


def decode(packet: bytes) -> Message:
    """The message in a packet of the zygote."""
    kind, fields = json.loads(packet)
    return _KINDS[kind](**fields)


def send(line: socket.socket, packet: bytes, files: Sequence[int] = ()) -> None:
    """Send one packet; the receiver gets the open files too."""
    line.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else [])


def receive(line: socket.socket, most: int) -> tuple[bytes, tuple[int, ...]]:
    """The next packet, with at most so many open files; an empty packet when the other end is gone."""
    files = array("i")
    packet, ancillary, _, _ = line.recvmsg(_LONGEST, socket.CMSG_SPACE(most * files.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return packet, tuple(files)
