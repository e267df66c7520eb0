"""NVLinks that were up and are down. One that never was up since the node was started may have no wire.

Their error counters are not read: NVML calls none of them fatal, and a recovery that failed leaves its link down.
"""

from __future__ import annotations

from dataclasses import dataclass

from scrubber.core.model import Ailment, Sign
from scrubber.devices.nvidia import links
from scrubber.devices.nvidia.library import Handle, Session


@dataclass(frozen=True, slots=True)
class Reading:
    """The numbers of those that are told of."""

    up: frozenset[int] = frozenset()
    down: frozenset[int] = frozenset()


def read(nvml: Session, gpu: Handle) -> Reading:
    """A GPU that has none tells of none."""
    states = tuple(links.states(nvml, gpu))
    return Reading(frozenset(it for it, up in states if up), frozenset(it for it, up in states if not up))


def judge(before: frozenset[int], now: Reading) -> Sign | None:
    """``before``: all that were ever up since the node was started."""
    down = sorted(before & now.down)
    if not down:
        return None
    detail = f"{len(down)} of {len(before)} NVLinks that were up are down: {', '.join(map(str, down))}"
    return Sign(Ailment.LINKS, detail)
