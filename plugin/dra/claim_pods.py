"""Tells the scrub service which pods each claim of this node is reserved for, whenever that changes.

The kubelet prepares a claim once, for its first pod, and makes no call for another pod of the claim. But the scheduler
writes each pod into the claim before it binds the pod to the node. So this program watches each claim that has a
device, and each claim that an earlier process has prepared. While the API server does not answer, no pod can be added,
and the last list stays valid.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ground import log
from plugin.dra import claims
from plugin.listing import Listing
from scrub_api import client

if TYPE_CHECKING:
    from plugin.cluster.apiserver import ApiServer

logger = log.get("claims")

READ_AGAIN = 300.0  # seconds without a change: the connection may be dead
PAUSES = 0.5, 30.0  # seconds until a claim is watched again: at first, and at most; random, as a node is not alone


class ClaimPods:
    """Follows the claims that have devices of this node."""

    def __init__(self, server: ApiServer, scrubber: client.ScrubberClient, listing: Listing) -> None:
        self._server = server
        self._scrubber = scrubber
        self._listing = listing
        self._places: dict[str, tuple[str, str]] = {}  # by UID: namespace and name, as long as they are needed
        self._finding = asyncio.Lock()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, uid: str) -> asyncio.Lock:
        """Held while a claim is read and its pods are reported: otherwise an older list could replace a newer one."""
        return self._locks.setdefault(uid, asyncio.Lock())

    async def read(self, namespace: str, name: str) -> Mapping[str, Any]:
        """A claim that is about to get devices."""
        claim = await self._server.claim(namespace, name)
        self._places[claims.uid(claim)] = claims.place(claim)
        return claim

    async def run(self) -> None:
        """Follow until cancelled."""
        followed: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                shown = self._listing.current()
                if shown is not None:  # a service that does not answer still has its claims
                    owners = {device.owner for device in shown} - {""}
                    for uid in followed.keys() - owners:
                        followed.pop(uid).cancel()
                    for uid in owners - followed.keys():
                        followed[uid] = tasks.create_task(self._follow(uid), name=f"pods of claim {uid}")
                    known = self._places.items()
                    self._places = {uid: place for uid, place in known if uid in owners or uid in self._locks}
                await self._listing.until_differs(shown)

    async def _follow(self, uid: str) -> None:
        """Tell the service about a claim until cancelled. Returns if the owner is not a claim."""
        sent: tuple[str, ...] | None = None
        warned, pause = "", PAUSES[0]
        while True:
            try:
                await self._find(uid)
                if uid not in self._places:
                    return
                async with aclosing(self._server.claim_changes(*self._places[uid])) as changes:
                    while True:
                        async with asyncio.timeout(READ_AGAIN):
                            claim = await anext(changes)
                        if claim is not None and claims.uid(claim) == uid and claims.pods(claim) != sent:
                            async with self.lock(uid):
                                await self._scrubber.let_in(uid, claims.pods(claim))
                            sent = claims.pods(claim)
                        warned, pause = "", PAUSES[0]
            except (StopAsyncIteration, TimeoutError):
                pass
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one claim, the driver goes on
                if str(error) != warned:  # each cause once, not each attempt
                    warned = str(error)
                    logger.warning("cannot follow the pods of a claim", claim=uid, error=warned)
            await asyncio.sleep(random.uniform(0.0, pause))  # noqa: S311 - jitter
            pause = min(2 * pause, PAUSES[1])

    async def _find(self, uid: str) -> None:
        """Learn the name of a claim that another process has prepared. One list of all claims names all of them."""
        async with self._finding:
            if uid not in self._places:
                owners = {device.owner for device in self._listing.current() or ()}
                self._places |= await self._server.claim_places(owners)
