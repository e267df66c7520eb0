"""Who is joined to whom, and goes down with whom, as far as was ever seen while one instance of the driver stayed.

One that is lost keeps its place, so that the others keep theirs; and whoever is in a reset domain once stays in it, for
links that are down just now come up again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from scrubber.devices.nvidia.inventory import nvlinks
from scrubber.devices.nvidia.inventory.boards import Board
from scrubber.devices.nvidia.inventory.nvlinks import Links
from scrubber.devices.nvidia.nvml import Handle, Session

LINKS_HOLD = 60.0  # seconds; a fabric manager may come up, or a link go down, at any time


@dataclass(frozen=True, slots=True)
class _KnownBoard:
    """What a GPU was joined to when it was last asked."""

    asked: float
    place: str
    links: Links


class Neighbours:
    """The GPUs of a node as links join them."""

    def __init__(self) -> None:
        """None was seen yet."""
        self._known: dict[str, _KnownBoard] = {}
        self._domains: dict[str, str] = {}

    def look(self, nvml: Session, handle: Handle, board: Board, *, sliced: bool) -> None:
        """See what a GPU is joined to. Links of one that is sliced carry nothing, but a reset may go along them."""
        if sliced and nvlinks.resets_alone(board.architecture):
            return
        known = self._known.get(board.uuid)
        if known is None or time.monotonic() - known.asked > LINKS_HOLD:
            self._known[board.uuid] = _KnownBoard(time.monotonic(), board.pci_address, nvlinks.of(nvml, handle))

    def islands(self) -> dict[str, str]:
        """The island of each GPU that is joined to another."""
        return nvlinks.islands({uuid: (known.place, known.links) for uuid, known in self._known.items()})

    def domain(self, board: Board, island: str | None) -> str | None:
        """Whom a reset of the GPU takes down; to be asked when all were looked at."""
        switches = any(known.links.switched for known in self._known.values())
        domain = nvlinks.reset_domain(board.architecture, island, switches=switches)
        if domain is not None and board.uuid not in self._domains:
            self._domains[board.uuid] = self._as_the_others(board.uuid, domain)
        return self._domains.get(board.uuid)

    def _as_the_others(self, gpu: str, domain: str) -> str:
        """The name that its island has had since before it was seen, or that one."""
        islands = self.islands()
        mates = sorted(other for other in self._domains if gpu in islands and islands.get(other) == islands[gpu])
        return self._domains[mates[0]] if mates else domain

    def down_with(self, gpu: str) -> frozenset[str]:
        """Every GPU that a reset of it takes down, itself included, and the name of the domain."""
        known = dict(self._domains)  # at once: others look meanwhile
        domain = known.get(gpu, gpu)
        return frozenset({gpu, domain, *(other for other, its in known.items() if its == domain)})

    def of(self, gpu: str) -> frozenset[str]:
        """The GPU and the name of its domain."""
        return frozenset({gpu, self._domains.get(gpu, gpu)})
