"""Which GPUs ``status`` shows, and in which order. Pure: devices in, devices out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from scrubber.core import views

_NAME = re.compile(r"\d+(:\d+)?")
_WILD = re.compile(r"[*?\[]")
_COMMA = re.compile(r",(?![^()]*\))")  # not between parentheses
_TERM = re.compile(r"(\w+)(?:\s*(==?|!=)\s*([^=!(),]+)|\s+(in|notin)\s*\(([^()]+)\))")


def _has_model(device: views.DeviceStatus, value: str) -> bool:
    """Without a wildcard, whole words of the model are enough: H100, but not H200 for a GH200."""
    if _WILD.search(value):
        return fnmatchcase(device.model, value)
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", device.model, re.IGNORECASE) is not None


KEYS: Mapping[str, Callable[[views.DeviceStatus, str], bool]] = {
    "index": lambda device, value: value in {device.name, str(device.index)},
    "model": _has_model,
    "resource": lambda device, value: fnmatchcase(device.resource, value),
}


@dataclass(frozen=True, slots=True)
class Term:
    """One condition of a selector: the key has one of the values, or none of them."""

    key: str
    values: tuple[str, ...]
    wanted: bool

    def fits(self, device: views.DeviceStatus) -> bool:
        """Whether the condition holds for the device."""
        return any(KEYS[self.key](device, value) for value in self.values) is self.wanted


def selector(text: str) -> tuple[Term, ...]:
    """Parse ``model=H100,index notin (0,3)``, the form of kubectl's selectors. All conditions must hold.

    An empty text has no condition.
    """
    return tuple(_term(part.strip()) for part in _COMMA.split(text) if text.strip())


def _term(text: str) -> Term:
    match = _TERM.fullmatch(text)
    keys = ", ".join(KEYS)
    if match is None:
        raise ValueError(f"expected KEY=VALUE, KEY!=VALUE, KEY in (A,B) or KEY notin (A,B); the keys are {keys}")
    key, sign, value, word, several = match.groups()
    if key not in KEYS:
        raise ValueError(f"{key} is no key of a selector; the keys are {keys}")
    values = tuple(it.strip() for it in (value or several).split(","))
    if not all(values):
        raise ValueError(f"a value of {key} is missing")
    if key == "index" and (wrong := [it for it in values if not _NAME.fullmatch(it)]):
        raise ValueError(f"{wrong[0]} is no index; an index is a number, or GPU:SLICE for a MIG slice")
    return Term(key, values, wanted=(sign or word) in {"=", "==", "in"})


def in_trouble(device: views.DeviceStatus) -> bool:
    """Whether the device is unhealthy, and not only because of a scrub."""
    return not device.healthy and (device.quarantine is not None or device.job is None)


def _trouble(device: views.DeviceStatus) -> tuple[int, int]:
    """Quarantined GPUs, then others in trouble, then those that are unhealthy only because of a scrub."""
    if in_trouble(device):
        return (0 if device.quarantine is not None else 1), 0
    return (3, 0) if device.healthy or device.job is None else (2, device.job.queue_place or 0)


ORDERS: Mapping[str, Callable[[views.DeviceStatus], Any]] = {
    "trouble": _trouble,
    "gpu": lambda _: 0,
    "state": lambda device: device.state,
    "for": lambda device: -device.since,
    "memory": lambda device: device.memory_bytes,
    "pci": lambda device: device.pci_address,
    "owner": lambda device: device.pod or device.owner,
    "model": lambda device: device.model,
}
"""What ``--sort-by`` can name. GPUs that are equal keep their order: the service sorts by index."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The filters of ``status``, and its order."""

    states: frozenset[str] = frozenset()  # empty: any state
    unhealthy: bool = False
    terms: tuple[Term, ...] = ()
    order: str = "gpu"

    def of(self, devices: Sequence[views.DeviceStatus]) -> tuple[views.DeviceStatus, ...]:
        """The devices that pass all filters, in order."""
        return tuple(sorted(filter(self._wants, devices), key=ORDERS[self.order]))

    def _wants(self, device: views.DeviceStatus) -> bool:
        return (
            (not self.states or device.state in self.states)
            and not (self.unhealthy and device.healthy)
            and all(term.fits(device) for term in self.terms)
        )
