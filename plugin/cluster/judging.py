"""What is to be told of the devices. Pure: values in, values out.

A device is out when the scrub service names an ailment of it, or names it no more. One that is merely not offered, as
it is being scrubbed or waits for that, is not out unless it lasts: a node must not look sick between two pods. One in
whose place another one, or another layout, sits is told of, and does not count: a repair must not leave the node sick
for ever. One that is lost counts until then.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from plugin.devices import GONE, LEFT, Device

NOT_READY_AFTER = 600.0  # seconds that a device may be unhealthy for no told reason: the slow path takes about a minute
MOST_NAMED = 16  # devices in one message
LONGEST_MESSAGE = 1000  # characters: the API server takes 1024 of an Event


class Code(Enum):
    """What becomes of a device: the reason of its Event."""

    SICK = "DeviceSick"
    QUARANTINED = "DeviceQuarantined"
    NOT_READY = "DeviceNotReady"
    GONE = "DeviceGone"
    RECOVERED = "DeviceRecovered"


class ConditionStatus(Enum):
    """Of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a device stands: in, or out with a code and the word for what ails it."""

    uuid: str
    index: int
    mig: bool
    out: Code | None = None
    ailment: str = ""
    idle_since: float | None = None  # not offered since then, and nobody says why
    proven: bool = False  # it was offered as healthy, and nothing ailed it since
    replaced: bool = False  # it is not there, and another one, or another layout, is in its place

    @property
    def name(self) -> str:
        """How people call it."""
        if self.mig:
            return f"{self.uuid} of GPU {self.index}"
        left = self.replaced or self.out is Code.GONE  # its index may be that of another one by now
        return self.uuid if left else f"GPU {self.index}"


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a condition says, without its times."""

    status: ConditionStatus
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Condition:
    """An outlook with its times, on the clock of the wall."""

    outlook: Outlook
    heartbeat: float
    transition: float


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Something that became of a device."""

    device: str
    code: Code
    ailment: str
    note: str


Verdicts = Mapping[str, Verdict]

SILENT = Outlook(
    ConditionStatus.UNKNOWN,
    "ScrubServiceSilent",
    "the scrub service of this node does not answer: nothing is known of its devices",
)
STOPPED = Outlook(ConditionStatus.UNKNOWN, "PluginStopped", "the device plugin of this node was stopped: nobody looks")
FAULT = Outlook(
    ConditionStatus.UNKNOWN,
    "PluginFault",
    "the device plugin of this node failed to judge its devices: its log says more",
)
NONE_OFFERED = Outlook(ConditionStatus.UNKNOWN, "NoDevices", "no device of this node is offered")

_WORDS = {Code.SICK: "sick", Code.QUARANTINED: "quarantined", Code.NOT_READY: "not ready", Code.GONE: "gone"}


def judge(before: Verdicts, devices: Iterable[Device], now: float) -> dict[str, Verdict]:
    """A verdict for each device, by its UUID; ``now`` is on a clock that never jumps."""
    # A device that changed its resource is there twice: what it is now wins over what it was.
    present = {device.uuid: device for device in sorted(devices, key=lambda device: device.reason != GONE)}
    # Only a device that was never seen takes a place, as those that are left may have moved up. At the first look
    # nobody can tell.
    taken = {(device.index, device.mig) for uuid, device in present.items() if before and uuid not in before}
    found = [_judge(before.get(uuid), device, now, taken) for uuid, device in present.items()]
    return {verdict.uuid: verdict for verdict in sorted(found, key=lambda verdict: (verdict.index, verdict.uuid))}


def _judge(before: Verdict | None, device: Device, now: float, taken: Container[tuple[int, bool]]) -> Verdict:
    about = (device.uuid, device.index, device.mig)
    if device.reason == GONE:
        succeeded = before is not None and before.replaced
        return Verdict(*about, Code.GONE, replaced=succeeded or (device.index, device.mig) in taken)
    if device.quarantined:
        return Verdict(*about, Code.QUARANTINED, device.reason, replaced=device.reason in LEFT)
    if device.reason:
        return Verdict(*about, Code.SICK, device.reason)
    if device.healthy:
        return Verdict(*about, proven=True)
    since = now if before is None or before.idle_since is None else before.idle_since
    if before is not None and before.out is not None:  # only a device that is offered again is back
        return Verdict(*about, before.out, before.ailment, since)
    if now - since >= NOT_READY_AFTER:
        return Verdict(*about, Code.NOT_READY, "", since)
    return Verdict(*about, idle_since=since, proven=before is not None and before.proven)


def unseen(verdicts: Verdicts) -> dict[str, Verdict]:
    """What is left of them after a while in which nobody looked: what is out is still out, and nothing is proven."""
    return {uuid: replace(verdict, proven=False, idle_since=None) for uuid, verdict in verdicts.items()}


def next_look(verdicts: Verdicts, now: float) -> float | None:
    """Seconds until a verdict may change by time alone."""
    idle = (verdict.idle_since for verdict in verdicts.values() if verdict.out is None)
    return min((max(0.0, since + NOT_READY_AFTER - now) for since in idle if since is not None), default=None)


def happenings(before: Verdicts, after: Verdicts) -> tuple[NodeEvent, ...]:
    """What became of each device between two looks; at the first look, those that are out."""
    told = (_happening(before.get(uuid), verdict) for uuid, verdict in after.items())
    return tuple(happening for happening in told if happening is not None)


def _happening(before: Verdict | None, after: Verdict) -> NodeEvent | None:
    then = (before.out, before.ailment) if before is not None else (None, "")
    if then == (after.out, after.ailment):
        return None
    if after.out is not None:
        # Of one that is gone the service knows nothing.
        hint = f"; `autoclave explain {after.uuid}` on the node says more" if after.out is not Code.GONE else ""
        return NodeEvent(after.uuid, after.out, after.ailment, f"{_full(after)} is {_state(after)}{hint}")
    if before is None or before.out is None:
        return None
    note = f"{_full(after)} is healthy again; it was {_state(before)}"
    return NodeEvent(after.uuid, Code.RECOVERED, before.ailment, note)


def outlook(verdicts: Verdicts | None) -> Outlook:
    """What the condition says; None: the scrub service is silent."""
    if verdicts is None:
        return SILENT
    counted = _counted(verdicts)
    if not counted:
        return NONE_OFFERED
    found = _outlook(counted)
    replaced = [verdict.name for verdict in verdicts.values() if verdict.replaced]
    also = f"; not counted, as others are in their place: {_named(replaced)}" if replaced else ""
    return replace(found, message=bounded(f"{found.message}{also}"))


def _outlook(counted: Sequence[Verdict]) -> Outlook:
    out = [verdict for verdict in counted if verdict.out is not None]
    if out:
        reason = "AllDevicesOut" if len(out) == len(counted) else "SomeDevicesOut"
        named = _named([f"{verdict.name} ({_state(verdict)})" for verdict in out])
        return Outlook(ConditionStatus.FALSE, reason, f"{len(out)} of {len(counted)} devices are out: {named}")
    unproven = [verdict.name for verdict in counted if not verdict.proven]
    if unproven:
        told = f"{len(unproven)} of {len(counted)} devices were not found healthy yet: {_named(unproven)}"
        return Outlook(ConditionStatus.UNKNOWN, "DevicesNotReady", told)
    return Outlook(ConditionStatus.TRUE, "AllDevicesHealthy", f"no device of {len(counted)} is out")


def condition(present: Condition | None, outlook: Outlook, since: float, now: float) -> Condition:
    """The condition to write: it keeps the time of the last change of status, whoever wrote that."""
    same = present is not None and present.outlook.status is outlook.status
    return Condition(outlook, now, present.transition if present is not None and same else since)


def due(present: Condition | None, outlook: Outlook, now: float, every: float) -> float:
    """Seconds until the condition has to be written again: at once when it says something else."""
    if present is None or present.outlook != outlook:
        return 0.0
    age = now - present.heartbeat
    return every - age if 0 <= age < every else 0.0  # a heartbeat from the future says that a clock was set


def tainted(verdicts: Verdicts | None, present: bool) -> bool:  # noqa: FBT001 - how it is now, as a value
    """Whether the node bears the taint; it stays as it is until all are out, or one is found healthy."""
    counted = _counted(verdicts or {})
    if not counted:
        return present
    if all(verdict.out is not None for verdict in counted):
        return True
    return present and not any(verdict.proven for verdict in counted)


def bounded(text: str) -> str:
    """No longer than the API server takes."""
    return text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - 4]} ..."


def _counted(verdicts: Verdicts) -> list[Verdict]:
    return [verdict for verdict in verdicts.values() if not verdict.replaced]


def _named(names: Sequence[str]) -> str:
    more = f", and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


def _state(verdict: Verdict) -> str:
    word = _WORDS[verdict.out] if verdict.out is not None else "healthy"
    return f"{word}: {verdict.ailment}" if verdict.ailment else word


def _full(verdict: Verdict) -> str:
    return verdict.name if verdict.uuid in verdict.name else f"{verdict.name} ({verdict.uuid})"
