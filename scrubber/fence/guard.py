"""Guards the devices whose numbers it knows, as long as the service runs: rules, attempts and counts, and their thread.

Two locks. While attempts are judged, only a reading waits, and not for long. The rules and the counts have a lock of
their own (``Rules.turn``), under which nothing is looked up for an attempt.
"""

from __future__ import annotations

import select
import threading
import time

from ground import log
from scrubber.fence.attempt_reader import AttemptReader
from scrubber.fence.count import Count
from scrubber.fence.ignored import Sources
from scrubber.fence.kernel.fence import Fence
from scrubber.fence.live_openers import LiveOpeners
from scrubber.fence.opener_places import Places
from scrubber.fence.rules import Rules
from scrubber.node import clock
from scrubber.node.new_groups import NewGroups

logger = log.get("fence")

_GROUPS_EVERY = 0.05  # seconds between two readings of the groups of the node, at least
_POLL_MS = 500  # the thread that reads the attempts looks this often whether it must end


class Guard:
    """What the service has of the fence."""

    def __init__(
        self,
        fence: Fence,
        service: int,
        sources: Sources,
        *,
        knows_processes: bool = True,
        new_groups: NewGroups | None = None,
    ) -> None:
        """``service``, ``knows_processes``: as for ``Rules``.

        ``new_groups``: tells at once of a group that may be exempt; without it, the rounds notice it.
        """
        self.openers = LiveOpeners(lambda: clock.now().wall)
        self.rules = Rules(fence, service, sources, self.note_gap, knows_processes=knows_processes)
        self.places = Places(sources, service)
        self._reader = AttemptReader(fence, service, sources, self.rules, self.openers)
        self.count = Count(fence, sources, self.rules, self._reader)
        self._fence = fence
        self._sources = sources
        self._new_groups = new_groups
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._read, name="fence", daemon=True)
        sources.read()  # who is exempt, before the first rule is set

    def start(self) -> None:
        """Read each attempt as soon as it is asked: its process may end at once."""
        self._thread.start()

    @property
    def below(self) -> str:
        """The control group outside of which it sees nobody; empty: it sees all."""
        return self._sources.below

    def note_gap(self, uuid: str, why: str) -> None:
        """Somebody may have opened a device uncounted, for this reason."""
        self.openers.missed(uuid, why)
        logger.warning("the fence may have missed somebody", device=uuid, why=why)

    def _read(self) -> None:
        attempts, everything = select.poll(), select.poll()
        for poll in (attempts, everything):
            poll.register(self._fence.attempts.descriptor, select.POLLIN)
        if self._new_groups is not None and self._new_groups.descriptor is not None:
            everything.register(self._new_groups.descriptor, select.POLLIN)
        pause = 0.0  # until this time new groups wait: who may make groups may make many
        while not self._ending.is_set():
            is_due = time.monotonic() >= pause
            look = 1000 * max(self._reader.looks_again - time.monotonic(), 0.0)
            wait = min(look, _POLL_MS) if self._reader.waits else _POLL_MS
            asked = everything.poll(wait) if is_due else attempts.poll(min(wait, _GROUPS_EVERY * 1000))
            try:
                if asked and is_due and self._new_groups is not None and self._new_groups.any():
                    self.rules.read_sources()
                    pause = time.monotonic() + _GROUPS_EVERY
                if asked:
                    with self._reader.judging:
                        self._reader.judge()
                self._reader.look_up_refused()
            except Exception as error:  # noqa: BLE001 - the thread goes on: what it does not read counts as a use
                logger.warning("cannot read who asked for a GPU", error=repr(error))
                self._ending.wait(_POLL_MS / 1000)
            if not self.rules.device_of:
                self._ending.wait(_POLL_MS / 1000)

    def close(self) -> None:
        """Read no more attempts, and let go of the fence. It stands on."""
        self._ending.set()
        self.rules.ended = True
        if self._thread.is_alive():
            self._thread.join()
        with self._reader.judging:
            self._reader.close()
            with self.rules.turn:
                self._fence.close()
        if self._new_groups is not None:
            self._new_groups.close()
