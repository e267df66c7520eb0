"""The best values seen of each GPU since the node booted: a lower value means a fault.

They are stored on disk, so that a restarted service does not take a broken GPU for a normal one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scrubber.devices import shortage
from scrubber.ground import log, private_files
from scrubber.ground.documents import strict_json

logger = log.get("signs")


@dataclass(frozen=True, slots=True)
class Best:
    """The best link speed and width that were seen on a GPU."""

    links: frozenset[int] = frozenset()  # NVLinks that were up
    lanes: int = 0  # of the PCIe link
    joined: bool = False  # a fabric

    def with_(self, other: Best) -> Best:
        """The better of both in each value."""
        return Best(self.links | other.links, max(self.lanes, other.lanes), self.joined or other.joined)


@dataclass(frozen=True, slots=True)
class _Stored:
    """The document of one GPU."""

    boot: str
    seen: Best


class BestSeenFile:
    """The best values of every GPU, in one file per GPU."""

    def __init__(self, folder: Path, boot_id: Callable[[], str]) -> None:
        """``boot_id`` returns the ID of this boot; values of another boot are ignored."""
        self._folder = folder
        self._boot_id = boot_id
        self._known: dict[str, Best] = {}

    def of(self, gpu: str) -> Best:
        """The best link speed and width that were seen on a GPU."""
        if gpu not in self._known:
            self._known[gpu] = self._kept(gpu)
        return self._known[gpu]

    def learn(self, gpu: str, seen: Best) -> Best:
        """Update the best values with a reading, and return them."""
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
            return decode(private_files.content(self._file(gpu)), self._boot_id())
        except (FileNotFoundError, NotADirectoryError):
            return Best()
        except (OSError, ValueError) as error:
            shortage.demand_none(error)  # the file is well: without its values a fault would not show
            logger.warning("cannot read the best values of a GPU: its values now count", gpu=gpu, error=str(error))
            return Best()

    def _keep(self, gpu: str, best: Best) -> None:
        try:
            with private_files.beside(self._file(gpu), encode(best, self._boot_id())) as aside:
                aside.replace(self._file(gpu))
        except OSError as error:
            logger.warning("cannot store the best values of a GPU: a restart forgets them", gpu=gpu, error=str(error))


def encode(best: Best, boot_id: str) -> bytes:
    """The document to store."""
    return strict_json.encode(_Stored(boot_id, best))


def decode(text: bytes, boot_id: str) -> Best:
    """The stored values; empty if from another boot. ValueError for what ``encode`` would not write."""
    stored = strict_json.decode(_Stored, text)
    return stored.seen if stored.boot == boot_id else Best()
