"""How long to wait: in PreStartContainer, for a scrub, and for the next probation."""

from __future__ import annotations

from scrubber.core.model import Quarantine, Setback

START_WITHIN = 25.0  # seconds for which PreStartContainer may wait: the kubelet gives up after 30, and asks again later
RETRY_FIRST = 1.0  # seconds until a failed scrub is tried again ...
RETRY_LONGEST = 60.0  # ... doubling up to this: a process may stay for days, and each try reads all of /proc
INTERRUPTED_FIRST = 60.0  # seconds until a probation that a crash or a reboot interrupted is tried again ...
INTERRUPTED_LONGEST = 3600.0  # ... doubling up to this: the probation itself may be what brings the node down
PROBATION_GROWS = 60.0  # times: up to an hour by default; a sick device is tried rarely, and comes back the same day


def growing(first: float, longest: float, times: int) -> float:
    """The pause ``first``, doubled ``times`` times up to ``longest``."""
    pause = first
    for _ in range(times):  # step by step: a power overflows after some weeks of tries
        pause = min(pause * 2, longest)
    return pause


def until_probation(first: float, probations: int, chance: float) -> float:
    """How long a quarantined device waits. ``chance`` in [0, 1) spreads the probations of several devices."""
    return growing(first, first * PROBATION_GROWS, probations) * (0.8 + 0.2 * chance)


def after_interruption(quarantine: Quarantine) -> float:
    """How long a device waits after its probation was interrupted."""
    return growing(INTERRUPTED_FIRST, INTERRUPTED_LONGEST, quarantine.probes)


def until_retry(failed: Setback) -> float:
    """How long after its failure a scrub is tried again."""
    return growing(RETRY_FIRST, RETRY_LONGEST, failed.count - 1)
