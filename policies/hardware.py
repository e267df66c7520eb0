"""How a device is reset, and which settings it has before it is handed out."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from policies.base import Model, Word, impossible


class Slices(Word):
    """How a MIG slice is reset."""

    WAIT = "wait"
    RECREATE = "recreate"


class ComputeMode(Word):
    """Which processes may use a device at the same time."""

    DEFAULT = "default"
    EXCLUSIVE_PROCESS = "exclusive-process"
    PROHIBITED = "prohibited"


class Setting(Word):
    """The settings of a device."""

    PERSISTENCE = "persistence"
    ECC = "ecc"
    ACCOUNTING = "accounting"
    COMPUTE_MODE = "compute_mode"
    POWER_LIMIT = "power_limit"
    APPLICATION_CLOCKS = "application_clocks"
    LOCKED_CLOCKS = "locked_clocks"


class WhenReset(Word):
    """When a device is reset."""

    NEEDED = "needed"
    NEVER = "never"


class Reset(Model):
    """When and how a device is reset."""

    when: WhenReset = WhenReset.NEEDED
    """Whether a device is reset if it needs it. With never, such a device stays quarantined, and a person resets it."""

    slices: Slices = Slices.WAIT
    """A MIG slice: wait until all slices are free and reset the GPU, or destroy the slice and create it again."""


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
            raise impossible(f"min {self.min} with max {self.max}", "min to be at most max", "min", "max")
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

    accounting: bool | None = None
    """Whether the driver records statistics of processes (accounting mode)."""

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
        for name in (it.value for it in self.leave or ()):
            if getattr(self, name) not in (None, LockedClocks()):
                raise impossible(f"a value for {name}, which leave lists", "one of the two", name, "leave")
        return self
