"""What NVIDIA's driver says in the kernel's log of errors of GPUs (XID) and of NVSwitches (SXid). Text in, values out.

The forms, as the open driver prints them (``kernel_rc.c``, and ``SXID`` of its NVSwitch part):

    NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 94, pid=4711, name=python, Contained: ...
    NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 30 sourcetrack timeout error

A tenant chooses the name of its process. It stands behind the code; so only the beginning of a message says what it is,
and the end what XID 154 asks for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 300  # characters of a text that are kept
ACTION = 154  # the XID whose text says what must be done

_PLACE = r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_PLACE}([^)]*)\): (\d{{1,6}})(?:,(.*))?", re.DOTALL)
_INSTANCE = re.compile(r" GPU-I:(\d{1,3})(?: |$)")
_SXID = re.compile(
    rf"nvidia-(nvswitch\d{{1,3}}): SXid \(PCI:{_PLACE}[^)]*\): (\d{{1,6}}), (Fatal|Non-fatal)\b(.*)", re.DOTALL
)
_CHANGED = "GPU recovery action changed from"
_TO = re.compile(r" 0x[0-9a-f]+ \([^()]*\) to 0x([0-9a-f]+) \([^()]*\)\.?\s*")
# By its number, which is that of NVML's field 230: the words behind it have changed from driver to driver.
_ACTIONS = {0: "none", 1: "reset_gpu", 2: "restart_vm_or_node", 3: "drain_p2p", 4: "reset_gpu", 7: "restart_vm_or_node"}


@dataclass(frozen=True, slots=True)
class GpuError:
    """An XID, and whose."""

    place: str  # the PCI address without its function, as in 0000:3b:00
    code: int
    instance: int | None = None  # the GPU instance, where one is named
    action: str = ""  # what XID 154 asks for; empty where it says nothing that is known


@dataclass(frozen=True, slots=True)
class SwitchError:
    """An SXid: an error of an NVSwitch, by which GPUs are joined."""

    switch: str
    code: int
    fatal: bool
    detail: str


def read(text: str) -> GpuError | SwitchError | None:
    """The error that a message of the kernel tells of, if it is one of the driver's."""
    if "Xid" not in text:
        return None
    if found := _XID.fullmatch(text):
        instance = _INSTANCE.search(found[4])
        code = int(found[5])
        action = _asked_for(found[6] or "") if code == ACTION else ""
        return GpuError(place(*(int(it, 16) for it in found.groups()[:3])), code, instance and int(instance[1]), action)
    if found := _SXID.fullmatch(text):
        detail = f"SXid {int(found[5])}{found[7]}"[:LONGEST]
        return SwitchError(found[1], int(found[5]), found[6] == "Fatal", detail)
    return None


def place(domain: int, bus: int, device: int) -> str:
    """Where a GPU sits, as the driver writes it in messages: a GPU has one function."""
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def _asked_for(text: str) -> str:
    found = _TO.fullmatch(text.rpartition(_CHANGED)[2])
    return _ACTIONS.get(int(found[1], 16), "") if found else ""
