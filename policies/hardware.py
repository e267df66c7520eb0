"""The policy for hardware: resets, settings (clocks, power limit), signs and probation in quarantine.

Operators read the text under a field, as in ``policy_model``.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from ground.documents.faults import ImpossibleError
from ground.documents.units import format_duration
from policies.base_model import Duration, Model, Word
from policies.xids import Xids


class ComputeMode(Word):
    """Which processes may use a device at the same time."""

    DEFAULT = "default"
    EXCLUSIVE_PROCESS = "exclusive-process"
    PROHIBITED = "prohibited"


class Setting(Word):
    """The settings of a device."""

    PERSISTENCE = "persistence"
    ECC = "ecc"
    COMPUTE_MODE = "compute_mode"
    POWER_LIMIT = "power_limit"
    APPLICATION_CLOCKS = "application_clocks"
    LOCKED_CLOCKS = "locked_clocks"


class WhenReset(Word):
    """When a device is reset."""

    NEEDED = "needed"
    NEVER = "never"


class Reset(Model):
    """When a device is reset."""

    when: WhenReset = WhenReset.NEEDED
    """Whether a device is reset if it needs it. With never, such a device stays quarantined, and a person resets it."""


class Clocks(Model):
    """The application clocks, in MHz."""

    memory: Annotated[int, Field(gt=0)]
    """The memory clock."""

    graphics: Annotated[int, Field(gt=0)]
    """The graphics clock."""


class ClockRange(Model):
    """The clocks that a device may choose from, in MHz."""

    min: Annotated[int, Field(gt=0)]
    """The lowest clock."""

    max: Annotated[int, Field(gt=0)]
    """The highest clock."""

    @model_validator(mode="after")
    def is_a_range(self) -> Self:
        """The lowest clock must not be above the highest one."""
        if self.min > self.max:
            raise ImpossibleError(f"min {self.min} with max {self.max}", "min to be at most max", "min", "max")
        return self


class LockedClocks(Model):
    """The clocks that a device is locked to, as by ``nvidia-smi -lgc`` and ``-lmc``. A missing one is unlocked."""

    graphics: ClockRange | None = None
    """The range of the graphics clock."""

    memory: ClockRange | None = None
    """The range of the memory clock."""


class SettingsPolicy(Model):
    """The settings of a device when it is handed out. Others return to the driver default or to their first value."""

    persistence: bool | None = None
    """Whether the driver keeps the device ready while it is not in use."""

    ecc: bool | None = None
    """Whether the memory corrects errors (ECC). A change takes effect at the next reset."""

    compute_mode: ComputeMode | None = None
    """How many programs may use the device at the same time."""

    power_limit: Annotated[float, Field(gt=0)] | None = None
    """The power limit in watts."""

    application_clocks: Clocks | None = None
    """The application clocks."""

    locked_clocks: LockedClocks = LockedClocks()
    """The clocks that the device is locked to. Every scrub sets or removes the locks, because they cannot be read."""

    leave: Annotated[tuple[Setting, ...], Field(min_length=1)] | None = None
    """Settings that the service neither changes nor judges, such as locked_clocks. None of them may have a value."""

    @model_validator(mode="after")
    def is_left_or_set(self) -> Self:
        """A setting cannot be left as it is and set."""
        for name in (change.value for change in self.leave or ()):
            if getattr(self, name) not in (None, LockedClocks()):
                raise ImpossibleError(f"a value for {name}, which leave lists", "one of the two", name, "leave")
        return self


class DeviceSign(Word):
    """The signs that may quarantine a device while the driver reports them. Other signs always do."""

    SRAM = "sram"
    LINKS = "links"
    FABRIC = "fabric"
    SWITCH = "switch"
    REBOOT_REQUIRED = "reboot-required"
    PCIE = "pcie"
    HEAT = "heat"
    GHOST_LOAD = "ghost-load"


class Probation(Model):
    """How a quarantined device is tested again."""

    first: Annotated[Duration, Field(gt=0)] = 60.0
    """The pause before the first probation; each further one is twice as long."""

    longest: Annotated[Duration, Field(gt=0)] = 3600.0
    """The longest pause, however often a probation failed."""

    flap_limit: Annotated[int, Field(ge=1, le=10)] = 3
    """After this many returns from quarantine within flap_window, the next quarantine waits for an operator."""

    flap_window: Annotated[Duration, Field(gt=0)] = 86400.0
    """The time over which returns from quarantine are counted."""

    @model_validator(mode="after")
    def pauses_grow(self) -> Self:
        """The first pause must not be longer than the longest one."""
        if self.first > self.longest:
            raise ImpossibleError(
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
    """Which signs quarantine a device: sram, links, fabric, switch, reboot-required, pcie, heat, ghost-load."""

    probation: Probation = Probation()
