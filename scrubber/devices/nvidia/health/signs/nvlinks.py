"""The sign of NVLinks that were up and are down. A link that was never up since the node booted may have no cable.

A link that the driver does not report any more counts as down. Error counters are not read: NVML calls none of them
fatal, and a failed recovery leaves the link down.
"""

from __future__ import annotations

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.nvidia.inventory import nvlinks
from scrubber.devices.nvidia.nvml import Handle, Session


def read(nvml: Session, gpu: Handle) -> frozenset[int]:
    """The numbers of the links that are up."""
    return frozenset(link for link, up in nvlinks.states(nvml, gpu) if up)


def judge(before: frozenset[int], up: frozenset[int]) -> Sign | None:
    """``before``: all links that were up since the node booted."""
    down = sorted(before - up)
    if not down:
        return None
    detail = f"{len(down)} of {len(before)} NVLinks that were up are down: {', '.join(map(str, down))}"
    return Sign(AilmentKind.LINKS, detail)
