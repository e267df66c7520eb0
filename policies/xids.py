"""What driver error codes (XIDs) mean for a device: which action each code requires, and which codes quarantine it.

Pure. ``xidtable`` has the facts of NVIDIA's catalogue; the policy (``Xids``) decides what a code does.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from ground.documents.units import format_duration
from policies.base_model import Model
from policies.values import Word, Xid
from policies.xidtable import DATE, RECOVERY, ROWS, RequiredAction, XidRow, XidScope

__all__ = [
    "DATE", "PROGRAM_FAULTS", "RECOVERY", "REPEATS", "REPEATS_WITHIN", "ROWS", "Preset", "RequiredAction", "Treatment",
    "XidFinding", "XidRow", "XidScope", "Xids", "label", "remedy", "repeats_count", "required_action", "treatment",
    "worst_finding",
]  # fmt: skip

CODE = re.compile(r"[1-9][0-9]{0,8}")

# A code that is only counted may still announce a defect: so many events of it within so many seconds quarantine.
REPEATS, REPEATS_WITHIN = 5, 600.0

# The presets of other tools, for codes of the catalogue.
PLUGIN_COUNTS = frozenset(
    {13, 31, 43, 45, 68, 109}
)  # NVIDIA's device plugin v0.20.0: all other codes make a device Unhealthy
GKE_QUARANTINES = frozenset({48})  # GKE's container-engine-accelerators, commit 992db812: no other code does

# What the driver logs of a program that fails on the device by its own fault, and of the end of such a program: by
# NVIDIA's catalogue an exception, a fault of the memory management, a stopped program and the cleanup after it.
PROGRAM_FAULTS = frozenset({13, 31, 43, 45})

_REMEDIES = {
    RequiredAction.NONE: "the catalogue names no action: read the kernel log around it",
    RequiredAction.IGNORE: "nothing",
    RequiredAction.RESTART_APP: "restart the application; the device may stay in service",
    RequiredAction.UPDATE_SOFTWARE: "update driver, firmware and guest software",
    RequiredAction.DRAIN_P2P: "end peer-to-peer work on the device first",
    RequiredAction.WORKFLOW_NVLINK: "find the link and its fault in the kernel log, and repair the link",
    RequiredAction.RESET_GPU: "reset the GPU before new work uses it",
    RequiredAction.RESTART_VM_OR_NODE: "drain and restart the node, or the virtual machine that has the GPU",
    RequiredAction.CHECK_MECHANICALS: "check seating, power leads and cables",
    RequiredAction.CONTACT_SUPPORT: "contact support; the GPU may have to be replaced (RMA)",
}


class Preset(Word):
    """The rules by which codes are judged."""

    CATALOG = "catalog"
    NVIDIA_PLUGIN = "nvidia-plugin"
    GKE = "gke"


class Treatment(Word):
    """What a code does to a device."""

    QUARANTINE = "quarantine"
    COUNT = "count"


def check_code(key: object) -> object:
    """A code as the key of a mapping. It has one notation only, so that no code appears twice."""
    match key:
        case int() if key > 0 and not isinstance(key, bool):
            return key
        case str() if CODE.fullmatch(key):
            return int(key)
    raise ValueError("the number of an XID, such as 94")


Code = Annotated[int, BeforeValidator(check_code), WithJsonSchema({"type": "string", "pattern": f"^{CODE.pattern}$"})]


class Xids(Model):
    """What driver error codes (XIDs) do to a device."""

    preset: Preset = Preset.CATALOG
    """What a known code does: as in NVIDIA's catalogue, as in NVIDIA's device plugin, or as in GKE."""

    unknown: Treatment = Treatment.QUARANTINE
    """What a code does that the catalogue does not know, or for which it names no action."""

    codes: Mapping[Code, Treatment] = Field(default_factory=dict, json_schema_extra={"additionalProperties": False})
    """Exceptions by code, such as {94: quarantine}; they have priority over everything else."""


@dataclass(frozen=True, slots=True)
class XidFinding:
    """The code that quarantines a device, and why."""

    code: int
    why: str


def required_action(code: int, action: str = "") -> RequiredAction:
    """The action that a code requires. For the recovery code, its message names the action if it can be read."""
    if code == RECOVERY:
        return _read(action) or RequiredAction.NONE
    row = ROWS.get(code)
    return row.action if row else RequiredAction.NONE


def remedy(code: int, action: str = "") -> str:
    """The action that the catalogue requires, in words."""
    if ROWS.get(code) is None:
        return "the catalogue does not know it: read the kernel log around it, and ask the vendor"
    if code == RECOVERY and _read(action) is None:
        return "the action that its message in the kernel log names"
    asked = required_action(code, action)
    return "nothing" if code == RECOVERY and asked is RequiredAction.NONE else _REMEDIES[asked]


def treatment(rules: Xids, code: int, action: str = "") -> Treatment:
    """What one event with this code does to a device."""
    row = ROWS.get(code)
    if code in rules.codes:
        return rules.codes[code]
    if row is None:
        return rules.unknown
    if row.application:
        return Treatment.COUNT
    match rules.preset:
        case Preset.CATALOG:
            return _as_asked(rules, code, action)
        case Preset.NVIDIA_PLUGIN:
            return Treatment.COUNT if code in PLUGIN_COUNTS else Treatment.QUARANTINE
        case Preset.GKE:
            return Treatment.QUARANTINE if code in GKE_QUARANTINES else Treatment.COUNT


def repeats_count(rules: Xids, code: int) -> bool:
    """Whether repeated events of a counted code quarantine the device; False for codes that one process can cause."""
    row = ROWS.get(code)
    return code not in rules.codes and (row is None or row.scope is not XidScope.APP)


def label(code: int) -> str:
    """A code with its name."""
    row = ROWS.get(code)
    return f"xid {code} ({row.mnemonic if row else 'not in the catalogue'})"


def worst_finding(rules: Xids, log: Sequence[Xid], new: Sequence[Xid]) -> XidFinding | None:
    """The finding that quarantines a device, or None. Only ``new`` events can; known events only add to the count."""
    if not new:
        return None
    fatal = [event for event in new if treatment(rules, event.code, event.action) is Treatment.QUARANTINE]
    if fatal:  # the first of the strictest: later codes are often consequences
        worst = max(fatal, key=lambda event: list(RequiredAction).index(required_action(event.code, event.action)))
        announces = worst.code == RECOVERY and _read(worst.action) is not None
        asks = f" and asks: {remedy(RECOVERY, worst.action)}" if announces else ""
        return XidFinding(worst.code, f"{label(worst.code)} was reported{asks}")
    count, code = max(_repeated(rules, log, new), default=(0, 0))
    if count < REPEATS:
        return None
    return XidFinding(code, f"{label(code)} was reported {count} times within {format_duration(REPEATS_WITHIN)}")


def _read(action: str) -> RequiredAction | None:
    return next((known for known in RequiredAction if known.value == action), None)


def _as_asked(rules: Xids, code: int, action: str) -> Treatment:
    match required_action(code, action):
        case RequiredAction.NONE if code == RECOVERY and _read(action):  # no action is needed any more
            return Treatment.COUNT
        case RequiredAction.NONE:
            return rules.unknown
        case RequiredAction.IGNORE | RequiredAction.RESTART_APP:
            return Treatment.COUNT
        case _:
            return Treatment.QUARANTINE


def _repeated(rules: Xids, log: Sequence[Xid], new: Sequence[Xid]) -> Iterator[tuple[int, int]]:
    """The highest count of a code within the window that ends with a new event, and the code."""
    for code in dict.fromkeys(event.code for event in new):
        if not repeats_count(rules, code):
            continue
        times = sorted(event.at for event in log if event.code == code)
        for event in new:
            if event.code == code:
                yield bisect_right(times, event.at) - bisect_left(times, event.at - REPEATS_WITHIN), code
