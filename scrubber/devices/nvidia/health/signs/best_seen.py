"""The best that was seen of each GPU since the node was started: what is less than that has been lost.

It is kept on the disk, so that a service that is started anew does not take what is broken for what should be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scrubber.devices.nvidia import durable_files
from scrubber.ground import log

logger = log.get("signs")


@dataclass(frozen=True, slots=True)
class Best:
    """Nothing was seen yet."""

    links: frozenset[int] = frozenset()  # NVLinks that were up
    lanes: int = 0  # of PCIe
    joined: bool = False  # to a fabric

    def with_(self, other: Best) -> Best:
        """What either has seen."""
        return Best(self.links | other.links, max(self.lanes, other.lanes), self.joined or other.joined)


class BestSeenFile:
    """The best of every GPU, in a file each."""

    def __init__(self, folder: Path, boot_id: Callable[[], str]) -> None:
        """``boot_id`` names this start of the node; what was kept under another one is forgotten."""
        self._folder = folder
        self._boot_id = boot_id
        self._known: dict[str, Best] = {}

    def of(self, gpu: str) -> Best:
        """What is known of it."""
        if gpu not in self._known:
            self._known[gpu] = self._kept(gpu)
        return self._known[gpu]

    def learn(self, gpu: str, seen: Best) -> Best:
        """The best with this look taken into account."""
        before = self.of(gpu)
        best = before.with_(seen)
        if best != before:
            self._known[gpu] = best
            self._keep(gpu, best)
        return best

    def _file(self, gpu: str) -> Path:
        return self._folder / f"{gpu}.json"

    def _kept(self, gpu: str) -> Best:
        try:
            return decode(self._file(gpu).read_bytes(), self._boot_id())
        except (FileNotFoundError, NotADirectoryError):
            return Best()
        except (OSError, ValueError) as error:
            logger.warning("cannot tell how a GPU was before: as it is now counts", gpu=gpu, error=str(error))
            return Best()

    def _keep(self, gpu: str, best: Best) -> None:
        try:
            with durable_files.beside(self._file(gpu), encode(best, self._boot_id())) as aside:
                aside.replace(self._file(gpu))
        except OSError as error:
            logger.warning("cannot keep how a GPU is: it is forgotten with the service", gpu=gpu, error=str(error))


def encode(best: Best, boot_id: str) -> bytes:
    """As a document of this start of the node."""
    seen = {"links": sorted(best.links), "lanes": best.lanes, "joined": best.joined}
    return json.dumps({"boot": boot_id, "seen": seen}).encode() + b"\n"


def decode(text: bytes, boot_id: str) -> Best:
    """Nothing when it is of another start. ValueError for what ``encode`` would not have written."""
    said = json.loads(text)
    if not isinstance(said, dict) or said.keys() != {"boot", "seen"}:
        raise ValueError("it is no such document")
    if said["boot"] != boot_id:
        return Best()
    match said["seen"]:
        case {"links": [*links], "lanes": int(lanes), "joined": bool(joined), **more} if not more:
            if all(type(link) is int for link in links):
                return Best(frozenset(links), lanes, joined)
    raise ValueError("it is not what is kept")
