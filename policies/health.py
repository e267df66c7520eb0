"""Which problems quarantine a device, how it returns to service, and when idle devices are tested.

Operators read the text under a field, as in ``model``.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from policies.base import Duration, Model, Word, impossible
from policies.xids import Xids
from scrubber.ground.documents.units import format_duration


class DeviceSign(Word):
    """The signs that may quarantine a device while the driver reports them. Other signs always do."""

    SRAM = "sram"
    LINKS = "links"
    FABRIC = "fabric"
    SWITCH = "switch"
    REBOOT_REQUIRED = "reboot-required"
    PCIE = "pcie"
    HEAT = "heat"


class Probation(Model):
    """How a quarantined device is tested again."""

    first: Annotated[Duration, Field(gt=0)] = 60.0
    """The pause before the first probation."""

    longest: Annotated[Duration, Field(gt=0)] = 3600.0
    """The longest pause, however often a probation failed."""

    factor: Annotated[float, Field(ge=1)] = 2.0
    """The factor by which each pause is longer than the one before."""

    flap_limit: Annotated[int, Field(ge=1, le=10)] = 3
    """After this many returns from quarantine within flap_window, the next quarantine waits for an operator."""

    flap_window: Annotated[Duration, Field(gt=0)] = 86400.0
    """The time over which returns from quarantine are counted."""

    @model_validator(mode="after")
    def pauses_grow(self) -> Self:
        """The first pause must not be longer than the longest one."""
        if self.first > self.longest:
            raise impossible(
                f"first {format_duration(self.first)} with longest {format_duration(self.longest)}",
                "first to be at most longest, as pauses only grow",
                "first",
                "longest",
            )
        return self


class QuarantinePolicy(Model):
    """Which problems quarantine a device, and how it returns to service."""

    xids: Xids = Xids()

    signs: tuple[DeviceSign, ...] = (
        DeviceSign.SRAM,
        DeviceSign.LINKS,
        DeviceSign.FABRIC,
        DeviceSign.SWITCH,
        DeviceSign.REBOOT_REQUIRED,
    )
    """Which signs quarantine a device: sram, links, fabric, switch, reboot-required, pcie, heat."""

    probation: Probation = Probation()


class Periodic(Model):
    """Tests of idle devices (burn-in)."""

    every: Annotated[Duration, Field(ge=0)] = 0.0
    """How long after its last self-test an idle device takes the slow path, one device at a time; 0s is never."""

    keep_free: Annotated[int, Field(ge=0)] = 1
    """How many clean devices of the resource, outside the reset domain, are left alone; with 1 also a lone device."""
