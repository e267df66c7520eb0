"""The condition and the Events that a node reports about its devices, their JSON, and those that wait. Pure.

A device has failed when the scrub service says that it is sick or quarantined, or no longer lists it. A device
that is only unhealthy, because it waits for a scrub or is scrubbed, fails after ``NOT_READY_AFTER``: a node must not
look sick between two pods. A device that was replaced is named, but does not count: a repair must not leave the node
sick forever. A device that is gone without a replacement counts.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from ground import calendar_time, public_names
from ground.quantities import quantity
from plugin.devices import Device

NOT_READY_AFTER = 600.0  # seconds that a device may be unhealthy without a reason: a slow scrub takes about a minute
MOST_WAITING = 64  # events
MOST_NAMED = 16  # devices in one message
LONGEST_MESSAGE = 1000  # characters: the API server takes 1024 in an Event

CONDITION = "AutoclaveDevicesHealthy"
COMPONENT = "autoclave"
NAMESPACE = "default"  # of Events about objects without a namespace


class EventReason(Enum):
    """The change of a device: the reason of its Event."""

    SICK = "DeviceSick"
    QUARANTINED = "DeviceQuarantined"
    NOT_READY = "DeviceNotReady"
    GONE = "DeviceGone"
    RECOVERED = "DeviceRecovered"


class ConditionStatus(Enum):
    """The status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The state of one device for the cluster."""

    uuid: str
    index: int
    mig: bool
    failure: EventReason | None = None
    ailment: str = ""
    unhealthy_since: float | None = None  # while unhealthy without a reason
    found_healthy: bool = False  # it was healthy, and has had no ailment since
    replaced: bool = False  # another device, or another MIG layout, is in its place
    open: bool = False  # the kernel keeps no pod off it

    @property
    def name(self) -> str:
        """The name for people."""
        if self.mig:
            return f"{self.uuid} of GPU {self.index}"
        absent = self.replaced or self.failure is EventReason.GONE  # another device may have its index by now
        return self.uuid if absent else f"GPU {self.index}"


@dataclass(frozen=True, slots=True)
class ConditionContent:
    """A condition without its times."""

    status: ConditionStatus
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition with its times, in seconds of the wall clock."""

    content: ConditionContent
    heartbeat: float
    transition: float


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A change of a device."""

    device: str
    reason: EventReason
    ailment: str
    note: str


DeviceReports = Mapping[str, DeviceReport]

SILENT = ConditionContent(
    ConditionStatus.UNKNOWN,
    "ScrubServiceSilent",
    "the scrub service of this node does not answer: the state of its devices is unknown",
)
STOPPED = ConditionContent(
    ConditionStatus.UNKNOWN,
    "PluginStopped",
    "the device plugin of this node was stopped: the state of its devices is unknown",
)
FAULT = ConditionContent(
    ConditionStatus.UNKNOWN,
    "PluginFault",
    "a fault inside the device plugin of this node: the state of its devices is unknown; see the log of the plugin",
)
NONE_OFFERED = ConditionContent(ConditionStatus.UNKNOWN, "NoDevices", "no device of this node is offered")

_WORDS = {
    EventReason.SICK: "sick",
    EventReason.QUARANTINED: "quarantined",
    EventReason.NOT_READY: "not ready",
    EventReason.GONE: "gone",
}


def report(before: DeviceReports, devices: Iterable[Device], now: float) -> dict[str, DeviceReport]:
    """A report for each device, by UUID; ``now`` is from a monotonic clock."""
    # A device that changed its resource is there twice: its current state wins over the one that is gone.
    present = {device.uuid: device for device in sorted(devices, key=lambda device: not device.gone)}
    # Only a device that is new since the last report replaces another one: a known device may have changed its index.
    # The first report cannot know which devices are new.
    taken = {(device.index, device.mig) for uuid, device in present.items() if before and uuid not in before}
    reports = [
        replace(_report(before.get(uuid), device, now, taken), open=not device.waits and not device.gone)
        for uuid, device in present.items()
    ]
    return {each.uuid: each for each in sorted(reports, key=lambda each: (each.index, each.uuid))}


def _report(
    before: DeviceReport | None, device: Device, now: float, taken: Container[tuple[int, bool]]
) -> DeviceReport:
    identity = (device.uuid, device.index, device.mig)
    if device.gone:
        replaced = (before is not None and before.replaced) or (device.index, device.mig) in taken
        return DeviceReport(*identity, EventReason.GONE, replaced=replaced)
    if device.quarantined:
        return DeviceReport(*identity, EventReason.QUARANTINED, device.reason, replaced=device.replaced)
    if device.sick:
        return DeviceReport(*identity, EventReason.SICK, device.reason)
    if device.healthy:
        return DeviceReport(*identity, found_healthy=True)
    since = now if before is None or before.unhealthy_since is None else before.unhealthy_since
    if before is not None and before.failure is not None:  # it recovers only when it is healthy again
        return DeviceReport(*identity, before.failure, before.ailment, since)
    if now - since >= NOT_READY_AFTER:
        return DeviceReport(*identity, EventReason.NOT_READY, "", since)
    found_healthy = before is not None and before.found_healthy
    return DeviceReport(*identity, unhealthy_since=since, found_healthy=found_healthy)


def after_silence(reports: DeviceReports) -> dict[str, DeviceReport]:
    """The reports after a time without observations: failures stay, and no device counts as found healthy."""
    return {uuid: replace(each, found_healthy=False, unhealthy_since=None) for uuid, each in reports.items()}


def next_change(reports: DeviceReports, now: float) -> float | None:
    """The seconds until a report may change without a new observation."""
    starts = (each.unhealthy_since for each in reports.values() if each.failure is None)
    return min((max(0.0, since + NOT_READY_AFTER - now) for since in starts if since is not None), default=None)


def node_events(before: DeviceReports, after: DeviceReports) -> tuple[NodeEvent, ...]:
    """The changes between two reports; for the first report, its failures."""
    changes = (_node_event(before.get(uuid), each) for uuid, each in after.items())
    return tuple(event for event in changes if event is not None)


def _node_event(before: DeviceReport | None, after: DeviceReport) -> NodeEvent | None:
    then = (before.failure, before.ailment) if before is not None else (None, "")
    if then == (after.failure, after.ailment):
        return None
    if after.failure is not None:
        # The service cannot explain a device that it does not list any more.
        gone = after.failure is EventReason.GONE
        hint = "" if gone else f"; run `autoclave explain {after.uuid}` on the node for details"
        return NodeEvent(after.uuid, after.failure, after.ailment, f"{_full_name(after)} is {_state(after)}{hint}")
    if before is None or before.failure is None:
        return None
    note = f"{_full_name(after)} is healthy again; it was {_state(before)}"
    return NodeEvent(after.uuid, EventReason.RECOVERED, before.ailment, note)


def condition_content(reports: DeviceReports | None) -> ConditionContent:
    """The content of the condition. ``None`` reports: the scrub service does not answer."""
    if reports is None:
        return SILENT
    counted = _counted(reports)
    if not counted:
        return NONE_OFFERED
    content = _content(counted)
    replaced = [each.name for each in reports.values() if each.replaced]
    also = f"; not counted, because they were replaced: {_named(replaced)}" if replaced else ""
    kept_off_none = [each.name for each in counted if each.open]
    if kept_off_none:
        which = "these devices" if len(kept_off_none) == len(counted) else _named(kept_off_none)
        also += f"; the kernel keeps no pod off {which}"
    return replace(content, message=bounded(f"{content.message}{also}"))


def _content(counted: Sequence[DeviceReport]) -> ConditionContent:
    failed = [each for each in counted if each.failure is not None]
    of = f"of {quantity(len(counted), 'device')}"
    if failed:
        reason = "AllDevicesOut" if len(failed) == len(counted) else "SomeDevicesOut"
        named = _named([f"{each.name} ({_state(each)})" for each in failed])
        return ConditionContent(
            ConditionStatus.FALSE, reason, f"{quantity(len(failed), f'{of} is', f'{of} are')} out: {named}"
        )
    unknown = [each.name for each in counted if not each.found_healthy]
    if unknown:
        message = f"{quantity(len(unknown), f'{of} was', f'{of} were')} not found healthy yet: {_named(unknown)}"
        return ConditionContent(ConditionStatus.UNKNOWN, "DevicesNotReady", message)
    return ConditionContent(ConditionStatus.TRUE, "AllDevicesHealthy", f"no device of {len(counted)} is out")


def condition(present: Condition | None, content: ConditionContent, since: float, now: float) -> Condition:
    """The condition to write. It keeps the transition time of the present one if the status is the same."""
    same = present is not None and present.content.status is content.status
    return Condition(content, now, present.transition if present is not None and same else since)


def due(present: Condition | None, content: ConditionContent, now: float, every: float) -> float:
    """The seconds until the condition must be written again: 0 if its content differs."""
    if present is None or present.content != content:
        return 0.0
    age = now - present.heartbeat
    return every - age if 0 <= age < every else 0.0  # a heartbeat in the future means that a clock was set


def bounded(text: str) -> str:
    """The text, cut to the length that the API server takes."""
    return text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - 4]} ..."


def _counted(reports: DeviceReports) -> list[DeviceReport]:
    return [each for each in reports.values() if not each.replaced]


def _named(names: Sequence[str]) -> str:
    more = f", and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


def _state(report: DeviceReport) -> str:
    word = _WORDS[report.failure] if report.failure is not None else "healthy"
    return f"{word}: {report.ailment}" if report.ailment else word


def _full_name(report: DeviceReport) -> str:
    return report.name if report.uuid in report.name else f"{report.name} ({report.uuid})"


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """One Event to create: its name, what happened, and when."""

    name: str
    event: NodeEvent
    at: float


class Outbox:
    """The events that wait, in the order in which they have to be sent.

    Their number is bounded: the oldest one is dropped and counted. While an event waits, a repetition of it takes its
    place, so that one device cannot displace the last event of another.
    """

    def __init__(self, name: Callable[[], str], most: int = MOST_WAITING) -> None:
        """``name`` makes a name that no Event has."""
        self._name = name
        self._most = most
        self._waiting: dict[tuple[str, str, str], PendingEvent] = {}
        self.dropped = 0

    def put(self, event: NodeEvent, now: float) -> None:
        """Add an event; may drop the oldest one."""
        key = event.device, event.reason.value, event.ailment
        self._waiting.pop(key, None)
        self._waiting[key] = PendingEvent(self._name(), event, now)
        if len(self._waiting) > self._most:
            del self._waiting[next(iter(self._waiting))]
            self.dropped += 1

    def first(self) -> PendingEvent | None:
        """The event that has waited longest."""
        return next(iter(self._waiting.values()), None)

    def sent(self, event: PendingEvent) -> None:
        """The API server has this event. A repetition since then must still be sent."""
        self._waiting = {key: waiting for key, waiting in self._waiting.items() if waiting is not event}

    def waiting(self) -> int:
        """The number of events to send."""
        return len(self._waiting)


def condition_patch(condition: Condition, checkpoint: str = "") -> dict[str, Any]:
    """A strategic merge patch of the Node's status: it changes only the condition of our type.

    ``checkpoint``: the annotation to set with it; empty for none. The API server accepts annotations with a status.
    """
    return ({"metadata": {"annotations": {public_names.CHECKPOINT: checkpoint}}} if checkpoint else {}) | {
        "status": {
            "conditions": [
                {
                    "type": CONDITION,
                    "status": condition.content.status.value,
                    "reason": condition.content.reason,
                    "message": condition.content.message,
                    "lastHeartbeatTime": api_time(condition.heartbeat),
                    "lastTransitionTime": api_time(condition.transition),
                }
            ]
        }
    }


def event_object(pending: PendingEvent, node: str, uid: str) -> dict[str, Any]:
    """An Event of the Node."""
    involved = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node,
        "uid": uid or node,
    }  # as the kubelet does
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": pending.name, "namespace": NAMESPACE},
        "involvedObject": involved,
        "type": "Normal" if pending.event.reason is EventReason.RECOVERED else "Warning",
        "reason": pending.event.reason.value,
        "message": bounded(pending.event.note),
        "count": 1,
        "firstTimestamp": api_time(pending.at),
        "lastTimestamp": api_time(pending.at),
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
    }


def api_time(at: float) -> str:
    """A time with seconds, as the API server stores it."""
    return calendar_time.utc(at).strftime("%Y-%m-%dT%H:%M:%SZ")
