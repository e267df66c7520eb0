"""The answer to a request for a device. Field names are those of ``scrub.proto``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Proof:
    """What the owner of a device may read of a receipt: no names of owners and processes."""

    path: str
    finished: float  # seconds since 1970
    covered_bytes: int
    allocatable_bytes: int
    policy: str


@dataclass(frozen=True, slots=True)
class GrantedDevice:
    """A grant for one device. ``receipt`` is empty under policy ``observe`` only."""

    device: str
    grant: str
    receipt: str
    proof: Proof | None = None  # None without a receipt, and if the device was used since the grant
