"""Parses the driver's kernel messages about errors of GPUs (XID) and of NVSwitches (SXid).

The formats, as the open driver prints them (``kernel_rc.c``, and ``SXID`` of its NVSwitch part):

    NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 94, pid=4711, name=python, Contained: ...
    NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 30 sourcetrack timeout error

A user chooses the name of a process, which follows the code. So only the beginning of a message decides what it is, and
only the end says which action XID 154 asks for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 300  # characters of a message that are stored
ACTION = 154  # the XID whose text names the recovery action

_PLACE = r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_PLACE}([^)]*)\): (\d{{1,6}})(?:,(.*))?", re.DOTALL)
_INSTANCE = re.compile(r" GPU-I:(\d{1,3})(?: |$)")
_SXID = re.compile(
    rf"nvidia-(nvswitch\d{{1,3}}): SXid \(PCI:{_PLACE}[^)]*\): (\d{{1,6}}), (Fatal|Non-fatal)\b(.*)", re.DOTALL
)
_CHANGED = "GPU recovery action changed from"
_TO = re.compile(r" 0x[0-9a-f]+ \([^()]*\) to 0x([0-9a-f]+) \([^()]*\)\.?\s*")
# By number, as in NVML's field 230: the words differ between driver versions.
_ACTIONS = {0: "none", 1: "reset_gpu", 2: "restart_vm_or_node", 3: "drain_p2p", 4: "reset_gpu", 7: "restart_vm_or_node"}


@dataclass(frozen=True, slots=True)
class GpuError:
    """An XID of one GPU."""

    place: str  # the PCI address without its function, as in 0000:3b:00
    code: int
    instance: int | None = None  # the GPU instance, if the message names one
    action: str = ""  # of XID 154; empty if unknown


@dataclass(frozen=True, slots=True)
class SwitchError:
    """An SXid: an error of an NVSwitch."""

    switch: str
    code: int
    fatal: bool
    detail: str


def read(text: str) -> GpuError | SwitchError | None:
    """The error in a kernel message; None if the message is not an error of the driver."""
    if "Xid" not in text:
        return None
    if found := _XID.fullmatch(text):
        instance = _INSTANCE.search(found[4])
        code = int(found[5])
        action = _action(found[6] or "") if code == ACTION else ""
        return GpuError(place(*(int(it, 16) for it in found.groups()[:3])), code, instance and int(instance[1]), action)
    if found := _SXID.fullmatch(text):
        detail = f"SXid {int(found[5])}{found[7]}"[:LONGEST]
        return SwitchError(found[1], int(found[5]), found[6] == "Fatal", detail)
    return None


def place(domain: int, bus: int, device: int) -> str:
    """The PCI address as the driver writes it in messages, without the function."""
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def _action(text: str) -> str:
    found = _TO.fullmatch(text.rpartition(_CHANGED)[2])
    return _ACTIONS.get(int(found[1], 16), "") if found else ""
