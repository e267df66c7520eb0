"""NVLinks that were up and are not. One that never was up since the node was started may have no wire.

One of which nothing more is told counts as down: that it was there is known. Their error counters are not read: NVML
calls none of them fatal, and a recovery that failed leaves its link down.
"""

from __future__ import annotations

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.nvidia.inventory import nvlinks
from scrubber.devices.nvidia.nvml import Handle, Session


def read(nvml: Session, gpu: Handle) -> frozenset[int]:
    """The numbers of those that are up."""
    return frozenset(link for link, up in nvlinks.states(nvml, gpu) if up)


def judge(before: frozenset[int], up: frozenset[int]) -> Sign | None:
    """``before``: all that were ever up since the node was started."""
    down = sorted(before - up)
    if not down:
        return None
    detail = f"{len(down)} of {len(before)} NVLinks that were up are down: {', '.join(map(str, down))}"
    return Sign(AilmentKind.LINKS, detail)
