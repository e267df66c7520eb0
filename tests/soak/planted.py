"""Faults of the product that a short history of the campaign must find."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIPES_SEED = 1  # of a history about wipes alone, half a minute
WATCHES, REFUSES = 1, 2  # seeds of histories with a fence, for root


@dataclass(frozen=True)
class Planted:
    """A place in a file and what stands there instead, and which history finds it in which words."""

    file: str
    old: str
    new: str
    finding: str
    seed: int = REFUSES
    about: str = "asks"

    def text(self) -> str:
        """The file with the fault. ValueError: the place does not read so exactly once."""
        before, after = (ROOT / self.file).read_text().split(self.old)
        return before + self.new + after


CARELESS = {  # each lets a scrub overwrite memory that a live process uses
    "no holder stops a step": Planted(
        "scrubber/core/verdict.py",
        "    if facts.holders:\n        names",
        "    if False:\n        names",
        "wipe:",
        WIPES_SEED,
        "wipes",
    ),
    "nobody looks before a step": Planted(
        "scrubber/jobs/path_run.py",
        "facts, veto = await self.vetoes.look(step)\n        if veto is not None:",
        "facts, veto = await self.vetoes.look(step)\n        if False:",
        "wipe:",
        WIPES_SEED,
        "wipes",
    ),
}
_KEPT_OFF = "which refuses others"
OPEN = {  # each leaves the fence open, or lets it forget
    "it opens before a start is admitted": Planted(
        "scrubber/core/fencing.py",
        "return OpenTo.SERVICE if announced else _tenant(record)",
        "return OpenTo.ALL",
        _KEPT_OFF,
    ),
    "it closes after the search": Planted(
        "scrubber/service/fence_upkeep.py",
        "        open_to = fencing.open_to(record)\n        guard",
        "        open_to, job = fencing.open_to(record), record.scrubs.job\n"
        "        if record.state in (State.DIRTY, State.SCRUBBING) and not (job and job.results):\n"
        "            return\n"
        "        guard",
        _KEPT_OFF,
    ),
    "it stays open to earlier owners": Planted(
        "scrubber/fence/kernel/fence.py",
        "            self._members.remove(key + _TIME.pack(group))\n            del",
        "            del",
        _KEPT_OFF,
    ),
    "a restart does not ask what it has counted": Planted(
        "scrubber/fence/count.py",
        "uses = proofs.uses(self._fence, numbers, proof)",
        "uses = sum(it.passed for it in [self._read(uuid)])",
        "by a proof from before",
        WATCHES,
    ),
}
