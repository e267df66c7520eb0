"""Errors of GPUs (XIDs) and of NVSwitches (SXids): the driver's kernel messages, and the list of XIDs of each GPU.

The formats, as the open driver prints them (``kernel_rc.c``, and ``SXID`` of its NVSwitch part):

    NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 94, pid=4711, name=python, Contained: ...
    NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 30 sourcetrack timeout error

The name of the process follows the number of the XID, and a user can choose that name. So only the beginning of a
message decides what it is, and only the end says which action XID 154 asks for.

NVML reports the XIDs as well. The kernel log is the better source: it has events from before the start of the service,
names the process, and gives the same answer after a restart. So NVML's XIDs count only where the log cannot be read.

The number of an event is its time in microseconds, on the clock of kernel messages for both sources. Numbers of a GPU
always increase, so a reader that has seen one number never misses the next event.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from scrubber.core.model import Xid

LONGEST = 300  # characters of a message that are stored
ACTION = 154  # the XID whose text names the recovery action

_PLACE = r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_PLACE}([^)]*)\): (\d{{1,6}})(?:,(.*))?", re.DOTALL)
_PID = re.compile(r" pid=(\d{1,10}),")
_INSTANCE = re.compile(r" GPU-I:(\d{1,3})(?: |$)")
_FATAL_SXID = re.compile(
    rf"nvidia-(nvswitch\d{{1,3}}): SXid \(PCI:{_PLACE}[^)]*\): (\d{{1,6}}), Fatal\b(.*)", re.DOTALL
)
_CHANGED = "GPU recovery action changed from"
_TO = re.compile(r" 0x[0-9a-f]+ \([^()]*\) to 0x([0-9a-f]+) \([^()]*\)\.?\s*")
# By number, as in NVML's field 230: the words differ between driver versions.
_ACTIONS = {0: "none", 1: "reset_gpu", 2: "restart_vm_or_node", 3: "drain_p2p", 4: "reset_gpu", 7: "restart_vm_or_node"}

KEPT = 32  # events of one code and instance, so that a storm of one code displaces no other


@dataclass(frozen=True, slots=True)
class GpuError:
    """An XID of one GPU."""

    place: str  # the PCI address without its function, as in 0000:3b:00
    code: int
    instance: int | None = None  # the GPU instance, if the message names one
    action: str = ""  # of XID 154; empty if unknown
    pid: int | None = None  # the process that the message of the kernel names


@dataclass(frozen=True, slots=True)
class SwitchError:
    """A fatal error of an NVSwitch."""

    switch: str
    detail: str


def read(text: str) -> GpuError | SwitchError | None:
    """The error in a kernel message; None if it is not an error of the driver, or an error that a switch survives."""
    if "Xid" not in text:
        return None
    if found := _XID.fullmatch(text):
        instance = _INSTANCE.search(found[4])
        code = int(found[5])
        change = _TO.fullmatch((found[6] or "").rpartition(_CHANGED)[2]) if code == ACTION else None
        action = _ACTIONS.get(int(change[1], 16), "") if change else ""
        process = _PID.match(found[6] or "")
        return GpuError(
            place(*(int(number, 16) for number in found.groups()[:3])),
            code,
            instance and int(instance[1]),
            action,
            process and int(process[1]),
        )
    if found := _FATAL_SXID.fullmatch(text):
        return SwitchError(found[1], f"SXid {int(found[5])}{found[6]}"[:LONGEST])
    return None


def place(domain: int, bus: int, device: int) -> str:
    """The PCI address as the driver writes it in messages, without the function."""
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def always(_code: int) -> bool:
    """The default without a catalogue of codes: every event concerns the whole GPU."""
    return True


class XidLog:
    """All events. ``microseconds``: on the clock of kernel messages."""

    def __init__(self, whole: Callable[[int], bool] = always) -> None:
        """Start empty. ``whole`` says which codes concern every slice of a GPU, even if they name one slice."""
        self._whole = whole
        self._kept: dict[tuple[str, int, int | None], deque[Xid]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._last: dict[str, int] = {}

    def of(self, place: str, instance: int | None = None) -> tuple[Xid, ...]:
        """The events of a GPU, or of the slice with this GPU instance, in order."""
        events = [
            xid
            for (gpu, code, named), xids in self._kept.items()
            if gpu == place and (instance is None or named in (None, instance) or self._whole(code))
            for xid in xids
        ]
        return tuple(sorted(events, key=lambda xid: xid.number))

    def add(self, event: GpuError, microseconds: int) -> None:
        """Count an event."""
        # Two processors may log in the same microsecond, or a little out of order.
        number = max(microseconds, self._last.get(event.place, 0) + 1)
        self._last[event.place] = number
        xid = Xid(number, event.code, microseconds / 1e6, event.action, event.pid)
        self._kept[event.place, event.code, event.instance].append(xid)
