"""Islands and reset domains of the GPUs of a node, remembered for one instance of the driver.

A lost GPU stays in its island, so that the other GPUs keep the name of theirs. A GPU that was once in a reset domain
stays in it, because a link that is down may come up again.
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
    """The links of a GPU at the last reading."""

    read_at: float
    place: str
    links: Links


class Neighbours:
    """The links between the GPUs of a node."""

    def __init__(self) -> None:
        self._known: dict[str, _KnownBoard] = {}
        self._domains: dict[str, str] = {}

    def observe(self, nvml: Session, handle: Handle, board: Board, *, sliced: bool) -> None:
        """Read the links of a GPU. A sliced GPU does not use its links, but a reset may follow them."""
        if sliced and nvlinks.resets_alone(board.architecture):
            return
        known = self._known.get(board.uuid)
        if known is None or time.monotonic() - known.read_at > LINKS_HOLD:
            self._known[board.uuid] = _KnownBoard(time.monotonic(), board.pci_address, nvlinks.of(nvml, handle))

    def islands(self) -> dict[str, str]:
        """The island of each GPU that is connected to another."""
        return nvlinks.islands({uuid: (known.place, known.links) for uuid, known in self._known.items()})

    def domain(self, board: Board, island: str | None) -> str | None:
        """The reset domain of a GPU; call this after all GPUs were observed."""
        switches = any(known.links.switched for known in self._known.values())
        domain = nvlinks.reset_domain(board.architecture, island, switches=switches)
        if domain is not None and board.uuid not in self._domains:
            self._domains[board.uuid] = self._name_of_island(board.uuid, domain)
        return self._domains.get(board.uuid)

    def _name_of_island(self, gpu: str, domain: str) -> str:
        """The domain name that GPUs of the same island have already, or ``domain``."""
        islands = self.islands()
        others = sorted(other for other in self._domains if gpu in islands and islands.get(other) == islands[gpu])
        return self._domains[others[0]] if others else domain

    def down_with(self, gpu: str) -> frozenset[str]:
        """Every GPU that a reset of it takes down, itself included, and the name of the domain."""
        known = dict(self._domains)  # a copy: another thread may observe meanwhile
        domain = known.get(gpu, gpu)
        return frozenset({gpu, domain, *(other for other, theirs in known.items() if theirs == domain)})

    def of(self, gpu: str) -> frozenset[str]:
        """The GPU and the name of its domain."""
        return frozenset({gpu, self._domains.get(gpu, gpu)})
