"""The policy for hardware: resets, settings that are left, signs and probation in quarantine.

Operators read the text under a field, as in ``policy_model``.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from policies.base_model import Duration, Model
from policies.values import Word
from policies.xids import Xids

FLAP_WINDOW = (
    604800.0  # seconds; over them returns from quarantine are counted: a GPU that falls sick again is replaced
)


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


class SettingsPolicy(Model):
    """The settings of a device when it is handed out: the driver's defaults, or the values that were first seen."""

    leave: Annotated[tuple[Setting, ...], Field(min_length=1)] | None = None
    """Settings that the service neither restores nor judges, such as power_limit."""


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
    """The pause before the first probation; each further one is twice as long, up to 60 times this one."""

    flap_limit: Annotated[int, Field(ge=1, le=10)] = 3
    """After this many returns from quarantine within a week, the next quarantine waits for an operator."""


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
    """Which signs quarantine a device for as long as it reports them."""

    probation: Probation = Probation()
