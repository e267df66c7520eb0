"""Who asked for GPUs of others: by the namespace or unit that a policy can exempt, with what each mode does to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autoclave.cli.output import human
from ground import pod_groups
from ground.quantities import quantity
from scrub_api import views

HEADERS = ("KIND", "NAME", "GPUS", "ASKED", "REFUSED", "HOLD", "REFUSE", "PROGRAM")
SHORT = 86_400.0  # seconds: whoever comes once a day has not been counted yet
EXEMPT, COUNTED, UNKNOWN, REFUSED = "exempt", "counted", "unknown", "refused"
_SEVERITY = (EXEMPT, COUNTED, UNKNOWN, REFUSED)
_PEOPLE = "user.slice"


@dataclass(frozen=True, slots=True)
class Planned:
    """A program at one place, on all GPUs of the node."""

    kind: str  # namespace or unit, which a policy can name; pod, container, host or unknown, which none can
    name: str  # of the namespace or unit, or what is known; without blanks
    program: str
    path: str  # of its file, as ``evict.bystanders`` of a policy names it; empty: it has ended
    gpus: int
    asked: int  # open attempts; one opening asks two or three times
    refused: int  # of them
    hold: str  # what happens under ``fence.mode: hold``: exempt, counted, unknown or refused ...
    refuse: str  # ... and under ``refuse``

    @property
    def cells(self) -> list[str]:
        """Those of a table. What the program has chosen comes last."""
        numbers = map(str, (self.gpus, self.asked, self.refused))
        return [self.kind, self.name, *numbers, self.hold, self.refuse, f"{self.program} {self.path}".rstrip()]


def planned(devices: Iterable[views.DeviceStatus], path_of: Callable[[views.OpenerView], str]) -> list[Planned]:
    """Those who asked, the most frequent first. ``path_of``: the file of a program, if it runs."""
    found = dict[tuple[str, str, str], list[views.OpenerView]]()
    for device in devices:
        for opener in device.openers:
            found.setdefault((*_who(opener), human.printable(opener.command)), []).append(opener)
    rows = [
        Planned(
            *key,
            path=human.printable(next(filter(None, map(path_of, openers)), "")),
            gpus=len(openers),
            asked=sum(opener.times for opener in openers),
            refused=sum(opener.refused for opener in openers),
            hold=max((_held(opener) for opener in openers), key=_SEVERITY.index),
            refuse=max((EXEMPT if opener.exempt else REFUSED for opener in openers), key=_SEVERITY.index),
        )
        for key, openers in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.asked, row.kind, row.name, row.program))


def exempt_users(rows: Iterable[Planned]) -> list[str]:
    """What an exemption does not do for a program. A bystander that is exempt has no row."""
    return [
        f"{row.program} ({row.kind} {row.name}) is exempt, but did not count as a bystander: each opening ends the "
        f"proof of a clean GPU, and nobody else gets a GPU while the program keeps it open; add {_entry(row)} to "
        "evict.bystanders"
        for row in rows
        if row.hold == EXEMPT
    ]


def gaps(status: views.Status, now: float) -> list[str]:
    """Why somebody may be missing in the plan."""
    if not status.devices:
        return ["the service lists no GPU"]
    unguarded, found = sum(not device.fence for device in status.devices), []
    if unguarded:
        why = f": {status.service.fence_lacks}" if status.service.fence_lacks else ""
        found.append(f"no fence counts who opens {quantity(unguarded, 'GPU')}, so whoever uses it is missing{why}")
    if status.service.pods_share_groups:
        found.append("`hold` and `refuse` keep nobody off here: pods are in control groups of version 1")
    if unguarded < len(status.devices) and now - status.service.started < SHORT:
        found.append("the service counts for less than a day: whoever comes once a day may be missing")
    return found


def _entry(row: Planned) -> str:
    """The program as ``evict.bystanders`` names it."""
    namespaces = {"namespace": f"{row.name}:", "pod": "NAMESPACE:"}
    return namespaces.get(row.kind, "") + (row.path or "PATH")


def _who(opener: views.OpenerView) -> tuple[str, str]:
    """The kind of the place, and its name."""
    namespace, is_named, _ = opener.pod.partition("/")
    if is_named:
        return "namespace", namespace
    if pod_groups.holds_pods(opener.place):  # its own group is gone, so nobody knows its namespace
        return "pod", "-"
    if opener.place.startswith(f"/{_PEOPLE}/"):
        return "unit", _PEOPLE
    if opener.place.startswith("/"):
        unit = opener.place.rpartition("/")[2]
        return "unit", "\\x20".join((unit if unit.endswith((".service", ".scope")) else opener.place).split())
    if opener.place.startswith("container:"):
        return "container", opener.place
    if opener.in_pod:
        return "pod", opener.place
    return ("host", "-") if opener.place else ("unknown", "-")


def _held(opener: views.OpenerView) -> str:
    if opener.exempt:
        return EXEMPT
    if opener.in_pod:
        return REFUSED
    return COUNTED if opener.place else UNKNOWN
