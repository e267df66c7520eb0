"""The packets between service, zygote and workers: assignments, requests and answers, and the files sent with them.

To and from a worker: one JSON object a line. From the zygote: one JSON packet each, with open files. The zygote and the
workers import this module, so it imports no library.
"""

from __future__ import annotations

import socket
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ground.documents import strict_json
from scrubber.core.model import Step
from scrubber.devices.base import Address, Counts
from scrubber.steps.orders import Order, Report

FORK = b"fork"  # the only request to the zygote; stdin, stdout and stderr of the child come with it

_LONGEST = 4096  # bytes of a packet


@dataclass(frozen=True, slots=True)
class Assignment:
    """The first line to a worker: its device, which never changes."""

    address: Address
    files: tuple[str, ...]
    whole_node: bool
    service: int  # the pid of the service, which may have the device open and is not a holder
    reach: tuple[str, ...] = ()  # the files of all devices that a reset takes down
    bystanders: tuple[str, ...] = ()  # the programs that may have the device open
    pod_logs: str = "/var/log/pods"  # where the kubelet keeps a directory for each pod
    host_root: str = "/"  # where the node's file system is mounted
    pid_namespace: int | None = None  # the one that shows the whole node, if not the first of the machine


@dataclass(frozen=True, slots=True)
class StepRequest:
    """Every further line to a worker: one step."""

    step: Step
    order: Order


@dataclass(frozen=True, slots=True)
class Prepare:
    """A line to a worker before its first step on memory: open the device meanwhile. It has no answer.

    It says anew what the device is: the steps before may have ended its processes, or reset it.
    """

    address: Address
    memory: Counts | None  # of the device, as the service has just read it


@dataclass(frozen=True, slots=True)
class Answer:
    """A line from a worker: the progress or the report of a step, exactly one of the two."""

    progress: tuple[int, int] | None = None
    report: Report | None = None


def request(line: bytes) -> StepRequest | Prepare:
    """The request in any later line to a worker."""
    fields = strict_json.parse(line)
    is_prepare = isinstance(fields, dict) and "address" in fields
    return strict_json.build(Prepare, fields) if is_prepare else strict_json.build(StepRequest, fields)


@dataclass(frozen=True, slots=True)
class Ready:
    """The zygote answers requests from now on."""

    cupy: str | None = None  # the version of CuPy, if it is loaded
    lacks: str = ""  # why CuPy could not be loaded; steps that do not need CuPy still run


@dataclass(frozen=True, slots=True)
class Packet:
    """A message from the zygote: exactly one of the fields."""

    ready: Ready | None = None
    forked: int | None = None  # the pid of a child that runs; its pidfd comes with the packet
    failed: str | None = None  # why there is no child
    ended: tuple[int, int] | None = None  # the pid of a child that was reaped, and its status (negative: a signal)


def send(line: socket.socket, packet: bytes, files: Sequence[int] = ()) -> None:
    """Send one packet; the receiver gets the open files too."""
    line.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else [])


def receive(line: socket.socket, most: int) -> tuple[bytes, tuple[int, ...]]:
    """The next packet, with at most ``most`` open files; an empty packet when the other end is gone."""
    files = array("i")
    packet, ancillary, _, _ = line.recvmsg(_LONGEST, socket.CMSG_SPACE(most * files.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return packet, tuple(files)
