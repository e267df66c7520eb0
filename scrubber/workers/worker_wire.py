"""What the service and its worker child say to each other: one JSON object a line.

The child imports this module at every start, so it is plain Python; ``worker`` checks what comes back.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum

from scrubber.core.model import Step
from scrubber.devices.base import Address
from scrubber.steps.base import Order, Report


@dataclass(frozen=True, slots=True)
class Assignment:
    """The first line to a child: its device, for good."""

    address: Address
    files: tuple[str, ...]
    full_sight: bool
    service: int  # the pid that is no holder, although it may look at the device
    reach: tuple[str, ...] = ()  # the files of all that a reset takes down
    bystanders: tuple[str, ...] = ()  # who may have the device open and is no user
    pod_logs: str = "/var/log/pods"  # where the kubelet's directories of pods are seen
    pid_namespace: int | None = None  # the one that shows the whole node, if that is not the machine's first


@dataclass(frozen=True, slots=True)
class StepRequest:
    """Every further line to a child: one step."""

    step: Step
    order: Order


@dataclass(frozen=True, slots=True)
class Answer:
    """A line from a child: how far it is, or how it ended. Exactly one of the two."""

    progress: tuple[int, int] | None = None
    report: Report | None = None


def encode(frame: Assignment | StepRequest | Answer) -> bytes:
    """A frame as a line."""
    return json.dumps(asdict(frame), default=_word).encode() + b"\n"


def assignment(line: bytes) -> Assignment:
    """The first line that a child reads."""
    said = json.loads(line)
    lists = {name: tuple(said[name]) for name in ("files", "reach", "bystanders")}
    return Assignment(**said | lists | {"address": Address(**said["address"])})


def task(line: bytes) -> StepRequest:
    """Any later line that a child reads."""
    said = json.loads(line)
    order, tenancy = said["order"], said["order"]["tenancy"]
    tuples = {"patterns": tuple(order["patterns"]), "tenancy": None if tenancy is None else tuple(tenancy)}
    return StepRequest(Step(said["step"]), Order(**order | tuples))


def _word(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{value!r} cannot be said")
