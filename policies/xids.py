"""What driver error codes (XIDs) mean for a device: what each asks for, and which of them make it sick.

Pure. What a code asks for are facts (``xidtable``); what it does here is the policy's to say (``Xids``).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import BeforeValidator, Field, WithJsonSchema

from policies.base import Duration, Model, Word
from policies.units import format_duration
from policies.xidtable import DATE, RECOVERY, ROWS, Action, Row, Scope

__all__ = [
    "DATE", "RECOVERY", "ROWS", "Action", "Event", "Finding", "Preset", "Repeats", "Row", "Scope", "Treatment", "Xids",
    "asked", "limit", "remedy", "row", "told", "treatment", "verdict",
]  # fmt: skip

CODE = re.compile(r"[1-9][0-9]{0,8}")

# What others do, of the codes that the catalogue knows.
PLUGIN_COUNTS = frozenset({13, 31, 43, 45, 68, 109})  # NVIDIA's device plugin v0.20.0: all others take a device out
GKE_QUARANTINES = frozenset({48})  # GKE's container-engine-accelerators, commit 992db812: no other does

_REMEDIES = {
    Action.NONE: "no action is published: read the kernel log around it",
    Action.IGNORE: "nothing",
    Action.RESTART_APP: "restart the application; the device may stay in service",
    Action.UPDATE_SOFTWARE: "bring driver, firmware and guest software up to date",
    Action.DRAIN_P2P: "end peer-to-peer work on the device first",
    Action.WORKFLOW_NVLINK: "see in the kernel log which link it is and what it lacks, and look after that",
    Action.RESET_GPU: "reset the GPU before it gets new work",
    Action.RESTART_VM_OR_NODE: "restart the node, or the virtual machine that has the GPU",
    Action.CHECK_MECHANICALS: "check seating, power leads and cables",
    Action.CONTACT_SUPPORT: "contact support; the GPU may have to be replaced (RMA)",
}
_STRICTNESS = {action: rank for rank, action in enumerate(Action)}


class Preset(Word):
    """Whose judgement of the codes is followed."""

    CATALOG = "catalog"
    NVIDIA_PLUGIN = "nvidia-plugin"
    GKE = "gke"


class Treatment(Word):
    """What a code does to a device."""

    QUARANTINE = "quarantine"
    COUNT = "count"


def check_code(key: object) -> object:
    """A code, as the key of a mapping: written in one way only, so that none can stand there twice."""
    match key:
        case int() if key > 0 and not isinstance(key, bool):
            return key
        case str() if CODE.fullmatch(key):
            return int(key)
    raise ValueError("expected the number of an XID, such as 94")


Code = Annotated[int, BeforeValidator(check_code), WithJsonSchema({"type": "string", "pattern": f"^{CODE.pattern}$"})]


class Repeats(Model):
    """When a code that is only counted is too much all the same."""

    count: Annotated[int, Field(ge=0, le=32)] = 5  # no log of ours keeps more of one code
    """After this many events of one code within the window the device is quarantined as well; 0 is never."""

    within: Annotated[Duration, Field(gt=0)] = 600.0
    """The window over which the events are counted."""


class Xids(Model):
    """What the driver's error codes (XIDs) do to a device."""

    preset: Preset = Preset.CATALOG
    """What a known code does: as in NVIDIA's catalogue, as in NVIDIA's device plugin, or as in GKE."""

    unknown: Treatment = Treatment.QUARANTINE
    """What a code does that the catalogue does not know, or for which it names no action."""

    codes: Mapping[Code, Treatment] = Field(default_factory=dict, json_schema_extra={"additionalProperties": False})
    """Exceptions by code, such as {94: quarantine}; they have priority over everything else, also over repeats."""

    repeats: Repeats = Repeats()


class Event(Protocol):
    """One driver error event, as the device's event log has it."""

    @property
    def code(self) -> int:
        """What was reported."""

    @property
    def at(self) -> float:
        """When: uptime in seconds."""

    @property
    def action(self) -> str:
        """What the message of an announced recovery asks for; empty when that is not known, and for all others."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The code that makes a device sick, and why."""

    code: int
    why: str


def row(code: int) -> Row | None:
    """What the catalogue says of a code, if it knows it."""
    return ROWS.get(code)


def asked(code: int, action: str = "") -> Action:
    """What a code asks for. One only announces it: there the message decides, if it can be read."""
    if code == RECOVERY:
        return _read(action) or Action.NONE
    known = row(code)
    return known.action if known else Action.NONE


def remedy(code: int, action: str = "") -> str:
    """What the catalogue asks for, in words for people."""
    if row(code) is None:
        return "the catalogue does not know it: read the kernel log around it, and ask the vendor"
    if code == RECOVERY and _read(action) is None:
        return "what its message in the kernel log asks for"
    return "nothing" if code == RECOVERY and asked(code, action) is Action.NONE else _REMEDIES[asked(code, action)]


def treatment(rules: Xids, code: int, action: str = "") -> Treatment:
    """What one event with this code does to a device."""
    known = row(code)
    if code in rules.codes:
        return rules.codes[code]
    if known is None:
        return rules.unknown
    if known.application:
        return Treatment.COUNT
    match rules.preset:
        case Preset.CATALOG:
            return _as_asked(rules, code, action)
        case Preset.NVIDIA_PLUGIN:
            return Treatment.COUNT if code in PLUGIN_COUNTS else Treatment.QUARANTINE
        case Preset.GKE:
            return Treatment.QUARANTINE if code in GKE_QUARANTINES else Treatment.COUNT


def limit(rules: Xids, code: int) -> Repeats | None:
    """How many of a code are too many where it is only counted; of what one process can bring about, none are."""
    known = row(code)
    if not rules.repeats.count or code in rules.codes or (known is not None and known.scope is Scope.APP):
        return None
    return rules.repeats


def told(code: int) -> str:
    """A code with its name."""
    known = row(code)
    return f"xid {code} ({known.mnemonic if known else 'not in the catalogue'})"


def verdict(rules: Xids, log: Sequence[Event], new: Sequence[Event]) -> Finding | None:
    """What makes a device sick: only ``new`` events can; those of the log that are known already help to count."""
    if not new:
        return None
    fatal = [event for event in new if treatment(rules, event.code, event.action) is Treatment.QUARANTINE]
    if fatal:  # of the strictest the first: what follows is often a consequence
        worst = max(fatal, key=lambda event: _STRICTNESS[asked(event.code, event.action)])
        asks = f" and asks: {remedy(RECOVERY, worst.action)}" if _announces(worst) else ""
        return Finding(worst.code, f"{told(worst.code)} was reported{asks}")
    count, code = max(_repeated(rules, log, new), default=(0, 0))
    if count < rules.repeats.count or not count:
        return None
    return Finding(code, f"{told(code)} was reported {count} times within {format_duration(rules.repeats.within)}")


def _read(action: str) -> Action | None:
    return next((known for known in Action if known.value == action), None)


def _announces(event: Event) -> bool:
    return event.code == RECOVERY and _read(event.action) is not None


def _as_asked(rules: Xids, code: int, action: str) -> Treatment:
    match asked(code, action):
        case Action.NONE if code == RECOVERY and _read(action):  # nothing is needed any more
            return Treatment.COUNT
        case Action.NONE:
            return rules.unknown
        case Action.IGNORE | Action.RESTART_APP:
            return Treatment.COUNT
        case _:
            return Treatment.QUARANTINE


def _repeated(rules: Xids, log: Sequence[Event], new: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """How often a code came within the window that ends with a new event, and which code."""
    for code in dict.fromkeys(event.code for event in new):
        if limit(rules, code) is None:
            continue
        times = sorted(event.at for event in log if event.code == code)
        for event in new:
            if event.code == code:
                yield bisect_right(times, event.at) - bisect_left(times, event.at - rules.repeats.within), code
