"""Find the processes that have a GPU open, for ``autoclave doctor``: each of them prevents a reset."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from autoclave.doctor.facts import safe_read
from scrubber.core.model import Holder
from scrubber.node.cgroups import Containers
from scrubber.node.processes import Processes

_MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)
_WITHIN = 5.0  # seconds: a doctor that finds nothing in time says nothing
_CLOSES_ITSELF = "nvidia-persistenced"[:15]  # at the request of the reset


def openers(
    root: Path, proc: Path, addresses: Mapping[str, str], ours: Collection[int]
) -> dict[str, tuple[Holder, ...]]:
    """The processes that have each GPU open, by its UUID. ``addresses``: the PCI address of each GPU.

    Without the service (``ours``) and its workers, which close the GPU for a reset, and without the persistence daemon.
    GPUs whose holders cannot be found are missing.
    """
    files = {uuid: (str(node),) for uuid, address in addresses.items() if (node := _node(root, address)) is not None}
    if not files:
        return {}
    search = Processes(proc, Containers(proc).of, whole_node=False)
    found = search.holders(files, ours, within=_WITHIN)
    return {
        uuid: tuple(it for it in holders if it.command != _CLOSES_ITSELF and not search.descends(it.pid, ours))
        for uuid, holders in found.items()
        if holders is not None
    }


def _node(root: Path, address: str) -> Path | None:
    said = safe_read.text(root / "proc/driver/nvidia/gpus" / address / "information")
    minor = _MINOR.search(said) if isinstance(said, str) else None
    return root / f"dev/nvidia{minor[1]}" if minor else None
