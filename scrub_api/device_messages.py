"""What the scrub service says to its clients about devices: their names, its list, and its grants.

Field names are those of ``scrub.proto``.
"""

from __future__ import annotations

from dataclasses import dataclass


def state_words(state: str) -> str:
    """The state of a device as a sentence has it, such as ``in use``."""
    return state.replace("_", " ")


def device_name(index: int, number: int | None) -> str:
    """The name of a device: its index, and for a slice its number on that GPU, as in ``0:1``."""
    return str(index) if number is None else f"{index}:{number}"


@dataclass(frozen=True, slots=True)
class ReportedDevice:
    """The state of one device, for the kubelet and for the cluster's view of the node."""

    uuid: str
    healthy: bool  # whether the kubelet may give it to a pod
    clean: bool  # whether it can be handed out without a scrub
    numa_node: int | None
    resource: str  # the hardware's name for it
    index: int = 0
    mig: bool = False
    island: str = ""  # fast links join the devices of one island; empty: no links
    nodes: tuple[str, ...] = ()  # device nodes of this device alone
    reason: str = ""  # the kind of its ailment; empty: none known
    quarantined: bool = False
    sick: bool = False  # it has an ailment and is quarantined as soon as its pod ends
    replaced: bool = False  # another device, or another MIG layout, is in its place
    owner: str = ""  # who it was acquired for, as the caller wrote it: the UID of a claim
    model: str = ""
    memory_bytes: int = 0
    pci_address: str = ""
    waits: bool = False  # a pod may be given the device before it is clean: its containers wait for the proof
    receipts: str = ""  # as in ``GrantedDevice``, for a pod that gets the device while the service does not answer


@dataclass(frozen=True, slots=True)
class ReportedDevices:
    """All devices, and for how long the list stays valid once the service does not answer any more."""

    devices: tuple[ReportedDevice, ...]
    silence_seconds: float
    checkpoint: str = ""  # the newest signed checkpoint of the ledger; empty: nothing is signed


@dataclass(frozen=True, slots=True)
class GrantedDevice:
    """A grant for one device. ``receipt`` is empty under policy ``observe`` only."""

    device: str
    grant: str
    receipt: str
    receipts: str = ""  # the node's directory with the receipt, for the containers; empty: they get none
