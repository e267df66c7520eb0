"""The messages between the service and a worker: one JSON object a line.

The child imports this module, so it imports no library. ``worker`` validates the answers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum

from scrubber.core.model import Step
from scrubber.devices.base import Address, Counts
from scrubber.steps.base import Order, Report


@dataclass(frozen=True, slots=True)
class Assignment:
    """The first line to a worker: its device, which never changes."""

    address: Address
    files: tuple[str, ...]
    whole_node: bool
    service: int  # the pid of the service, which may have the device open and is no holder
    reach: tuple[str, ...] = ()  # the files of all devices that a reset takes down
    bystanders: tuple[str, ...] = ()  # the programs that may have the device open
    pod_logs: str = "/var/log/pods"  # where the kubelet keeps a directory for each pod
    pid_namespace: int | None = None  # the one that shows the whole node, if not the first of the machine
    memory: Counts | None = None  # of the device, as the service has just read it


@dataclass(frozen=True, slots=True)
class StepRequest:
    """Every further line to a worker: one step."""

    step: Step
    order: Order


@dataclass(frozen=True, slots=True)
class Prepare:
    """A line to a worker before its first step on memory: open the device meanwhile. It has no answer."""

    prepare: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """A line from a worker: the progress or the report of a step, exactly one of the two."""

    progress: tuple[int, int] | None = None
    report: Report | None = None


def encode(message: Assignment | StepRequest | Prepare | Answer) -> bytes:
    """A message as a line."""
    return json.dumps(asdict(message), default=_word).encode() + b"\n"


def assignment(line: bytes) -> Assignment:
    """The assignment in the first line."""
    fields = json.loads(line)
    lists = {name: tuple(fields[name]) for name in ("files", "reach", "bystanders")}
    memory = None if fields["memory"] is None else tuple(fields["memory"])
    return Assignment(**fields | lists | {"memory": memory, "address": Address(**fields["address"])})


def request(line: bytes) -> StepRequest | Prepare:
    """The request in any later line."""
    fields = json.loads(line)
    if "prepare" in fields:
        return Prepare()
    order, tenancy = fields["order"], fields["order"]["tenancy"]
    tuples = {"patterns": tuple(order["patterns"]), "tenancy": None if tenancy is None else tuple(tenancy)}
    return StepRequest(Step(fields["step"]), Order(**order | tuples))


def _word(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"cannot encode {value!r}")
