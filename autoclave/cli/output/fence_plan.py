"""Who asked for GPUs of others: by the namespace or unit that a policy can exempt, with what each mode does to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from autoclave.cli.output import human
from ground import pod_groups
from ground.quantities import quantity
from policies.load import is_interpreter
from scrub_api import views

HEADERS = ("KIND", "NAME", "GPUS", "ASKED", "REFUSED", "HOLD", "REFUSE", "PROGRAM")
SHORT = 86_400.0  # seconds: whoever comes once a day has not been counted yet
BYSTANDER, EXEMPT, COUNTED, UNKNOWN, REFUSED = "bystander", "exempt", "counted", "unknown", "refused"
_SEVERITY = (BYSTANDER, EXEMPT, COUNTED, UNKNOWN, REFUSED)
_ENDED = "it may have ended before the service could look at it"
_NO_PROGRAM = "-"  # the program of a row for a name that is exempt, and from which nobody asked


class Program(NamedTuple):
    """What is known of a program that still runs."""

    path: str = ""  # of its file; empty: it has ended, or this user may not look
    obstacle: str = ""  # why it is no bystander, whatever the policy lists; empty: it may be one


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
    hold: str  # what happens under ``fence.mode: hold``: bystander, exempt, counted, unknown or refused ...
    refuse: str  # ... and under ``refuse``
    advice: str = ""  # what to do about an exempt program that costs scrubs, and about one of somebody's session

    @property
    def cells(self) -> list[str]:
        """Those of a table. What the program has chosen comes last."""
        numbers = map(str, (self.gpus, self.asked, self.refused))
        return [self.kind, self.name, *numbers, self.hold, self.refuse, f"{self.program} {self.path}".rstrip()]


def planned(status: views.Status, look: Callable[[views.OpenerView], Program]) -> list[Planned]:
    """Those who asked, the most frequent first, then names that flags of the service exempt, from which nobody asked.

    Also who is exempt and has a GPU open, without an attempt that was counted. Of an opener, ``look`` tells what is
    known of its program.
    """
    found = dict[tuple[str, str, str], list[tuple[str, views.OpenerView]]]()
    for device in status.devices:
        for opener in (*device.openers, *device.exempt_holders):
            found.setdefault((*_who(opener), human.printable(opener.command)), []).append((device.device, opener))
    rows = [_row(key, openers, look, status.service.policy_since) for key, openers in found.items()]
    named = {(row.kind, row.name) for row in rows}
    exempt = [("namespace", name) for name in status.service.exempt_namespaces]
    exempt += [("unit", name) for name in status.service.exempt_units]
    rows += [
        Planned(*name, _NO_PROGRAM, "", gpus=0, asked=0, refused=0, hold=EXEMPT, refuse=EXEMPT)
        for name in dict.fromkeys(exempt)
        if name not in named
    ]
    return sorted(rows, key=lambda row: (-row.asked, row.kind, row.name, row.program))


def _row(
    key: tuple[str, str, str],
    asked: Sequence[tuple[str, views.OpenerView]],
    look: Callable[[views.OpenerView], Program],
    policy_since: float,
) -> Planned:
    openers = [opener for _, opener in asked]
    # Attempts from before the policy in force do not say what modes do now, if the program has asked again.
    again = any(opener.last >= policy_since for opener in openers)
    now = [it for it in openers if not again or it.last >= policy_since or not it.is_settled(policy_since)]
    program = next((it for it in map(look, openers) if it.path), Program())
    row = Planned(
        *key,
        path=human.printable(program.path),
        gpus=len({device for device, _ in asked}),
        asked=sum(opener.times for opener in openers),
        refused=sum(opener.refused for opener in openers),
        hold=max(map(_held, now), key=_SEVERITY.index),
        refuse=max((_let_in(opener) if opener.exempt else REFUSED for opener in now), key=_SEVERITY.index),
    )
    if row.hold == COUNTED and (row.kind, row.name) == ("unit", views.SESSIONS):
        return replace(row, advice=_advice(row, ""))
    if row.hold != EXEMPT or all(opener.is_settled(policy_since) for opener in openers):
        return row
    return replace(row, advice=_advice(row, program.obstacle))


def _advice(row: Planned, obstacle: str) -> str:
    if (row.kind, row.name) == ("unit", views.SESSIONS):
        return f"somebody started it in a session: end it when nobody needs it, or {views.UNIT_OF_ITS_OWN}"
    if row.kind in ("unit", "host") and is_interpreter(row.path):
        return (
            f"do not list {row.path}, which would let in each script that root runs: run this script with a copy of it "
            "under another name, and add that to evict.bystanders"
        )
    if row.kind in ("unit", "host") and obstacle:
        return f"it cannot become one as it runs now: {obstacle}"
    namespaces = {"namespace": f"{row.name}:", "pod": "NAMESPACE:"}
    entry = f"add {namespaces.get(row.kind, '')}{row.path or 'PATH'} to evict.bystanders"
    if row.kind in namespaces:
        why = "this node cannot tell that the process is in a pod of that namespace"
        return f"{entry}; if it is there already, {why if row.path else _ENDED}"
    return entry


_COSTS = (
    "is exempt, but did not count as a bystander: each opening ends the proof of a clean GPU, and nobody else gets a "
    "GPU while the program keeps it open"
)


def advice(rows: Iterable[Planned]) -> list[str]:
    """What an exemption does not do for a program, or does for too many. An exempt bystander has no row."""
    return [
        f"{row.program} ({row.kind} {row.name}) {_COSTS if row.hold == EXEMPT else 'opened GPUs'}; {row.advice}"
        for row in rows
        if row.advice
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


def _who(opener: views.OpenerView) -> tuple[str, str]:
    """The kind of the place, and its name."""
    namespace, is_named, _ = opener.pod.partition("/")
    if is_named:
        return "namespace", namespace
    if pod_groups.holds_pods(opener.place):  # its own group is gone, so nobody knows its namespace
        return "pod", "-"
    if opener.in_session:
        return "unit", views.SESSIONS
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
        return _let_in(opener)
    if opener.in_pod:
        return REFUSED
    if opener.ignored:
        return BYSTANDER
    return COUNTED if opener.place else UNKNOWN


def _let_in(opener: views.OpenerView) -> str:
    return BYSTANDER if opener.ignored else EXEMPT
