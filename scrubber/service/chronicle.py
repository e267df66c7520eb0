"""What happens to the whole node, as rows of the ledger: standstills, a clock that was set, another policy.

``Ledger`` records when it could not be written, and ``daemon`` records the start and the stop of the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ground.errors import LedgerUnavailable
from scrubber.core import events as ev
from scrubber.core import standstills
from scrubber.core.standstills import PAUSE, Clocks, Seen
from scrubber.ledger import ledger_rows
from scrubber.ledger.entry_queries import Window
from scrubber.ledger.ledger import Ledger
from scrubber.policy import ActivePolicy

OF_POLICY = Window(kinds=frozenset({ledger_rows.KINDS[ev.PolicyInForce]}))


class Chronicle:
    """Writes what happens to the whole node. It writes later what it cannot write now."""

    def __init__(self, ledger: Ledger, active_policy: ActivePolicy, clocks: Callable[[], Clocks]) -> None:
        self._ledger = ledger
        self._active_policy = active_policy
        self._clocks = clocks
        self._seen = Seen(clocks().boot)
        self._unwritten: list[ev.NodeEvent] = []
        self._policy: ev.Event | None = None  # the newest row about the policy

    async def run(self) -> None:
        """Watch the clocks and the policy until cancelled. A disk that hangs does not count as a standstill."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_clocks())
            tasks.create_task(self._write_again_and_again())

    async def _watch_clocks(self) -> None:
        ended = self._clocks()
        while True:
            await asyncio.sleep(PAUSE)
            began, ended = ended, self._clocks()  # a standstill between two pauses counts as well
            self._seen, events = standstills.after_pause(self._seen, began, ended)
            self._unwritten += events

    async def _write_again_and_again(self) -> None:
        while True:
            await self.write()
            await asyncio.sleep(PAUSE)

    async def write(self) -> None:
        """Write what no row says yet, unless the ledger has a fault."""
        if self._ledger.fault is not None:
            return
        with suppress(LedgerUnavailable):  # the next time: each row is forgotten only when it is written
            while self._unwritten:
                await self._ledger.append_of_node(self._unwritten[0])
                del self._unwritten[0]
            await self._write_policy()

    async def _write_policy(self) -> None:
        in_force = ev.PolicyInForce(*self._active_policy.name_and_digest)
        if self._policy is None:
            rows = (await self._ledger.history(None, None, 1, OF_POLICY)).entries
            self._policy = rows[0].event if rows else None
        if in_force != self._policy:
            await self._ledger.append_of_node(in_force)
            self._policy = in_force
