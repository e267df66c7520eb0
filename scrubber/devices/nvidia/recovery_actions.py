"""The recovery actions of NVML, by number: releases of ``pynvml`` before 13.615 do not name all of them.

Releases before 13.610 called number 5 a reset of the bus.
"""

from __future__ import annotations

from enum import IntEnum


class RecoveryAction(IntEnum):
    """What the driver asks for before a GPU may be used again."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7
