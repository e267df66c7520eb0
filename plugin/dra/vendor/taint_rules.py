"""Writes DeviceTaintRules: they keep the scheduler off a vendor's devices that no claim may get.

The slices are the vendor's, and only their owner can write a taint into them. So each such device has a
DeviceTaintRule, which is deleted when the device is healthy again. While the scrub service does not answer, the rules
stay as they are. A rule belongs to the Node: it is deleted with the Node.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ground import log
from ground.aio import Changed
from plugin.cluster.retry_loop import NEVER, Failure, FailureKind, Pace, RetryLoop
from plugin.devices import Device
from plugin.dra.config import DRIVER
from plugin.dra.resource_slices import API_VERSION, LONGEST_VALUE, Pool, covers, device_name, owner, taint
from plugin.dra.vendor import listed_devices
from plugin.listing import Listing

if TYPE_CHECKING:
    from plugin.cluster.apiserver import ApiServer

logger = log.get("taints")

PACE = Pace(spacing=1.0)
LONGEST_NAME = 253  # characters in the name of an object, and in that of a node
# Seconds: while a device is tainted, the vendor's driver may list it anew, or somebody may delete a rule. A change that
# was refused may be accepted.
AGAIN = 60.0
_OF_ONE_RULE = (FailureKind.REFUSED, FailureKind.FORBIDDEN)  # an admission policy says either

Taints = Mapping[str, Mapping[str, str]]  # by UUID, in lower case


def taints(devices: Iterable[Device]) -> Taints:
    """The taints of sick and quarantined devices.

    A device that only waits for its scrub has none, because a claim may wait for it. A device that the service no
    longer lists keeps its taint, because nothing says that it is healthy.
    """
    return {
        device_name(device.uuid): taint(DRIVER, device)
        for device in devices
        if (device.quarantined or device.sick) and not device.replaced
    }


def rule_labels(node: str) -> dict[str, str]:
    """The labels of a node's taint rules, by which the node lists its own rules: a fleet has many."""
    short = node if len(node) <= LONGEST_VALUE else hashlib.sha256(node.encode()).hexdigest()[:16]
    return {"app.kubernetes.io/managed-by": "autoclave", "app.kubernetes.io/instance": short}


def taint_rule(pool: Pool, device: str, taint: Mapping[str, str]) -> dict[str, Any]:
    """The rule that taints one device of a vendor's driver."""
    node, of_device = pool.node, f"-{device}-{pool.driver}"
    if len(node + of_device) > LONGEST_NAME:
        digest = hashlib.sha256(node.encode()).hexdigest()[:16]
        node = f"{node[: LONGEST_NAME - len(of_device) - len(digest) - 1].rstrip('-.')}-{digest}"
    return {
        "apiVersion": API_VERSION,
        "kind": "DeviceTaintRule",
        "metadata": {"name": f"{node}{of_device}", "labels": rule_labels(pool.node), "ownerReferences": [owner(pool)]},
        "spec": {"deviceSelector": {"driver": pool.driver, "pool": pool.node, "device": device}, "taint": taint},
    }


class TaintRules:
    """The rules for the devices of one node."""

    def __init__(self, server: ApiServer, listing: Listing, driver: str, node: str, pace: Pace = PACE) -> None:
        """``driver`` is the vendor's."""
        self._server = server
        self._listing = listing
        self._driver = driver
        self._node = node
        self._pace = pace
        self._changed = Changed()
        self._taints: Taints | None = None  # None: the service has not answered yet
        self._written: Taints | None = None  # for which the rules were last brought up to date
        self._again = NEVER  # when they are looked at again, on the clock of the loop
        self._refused: dict[str, str] = {}  # the changes that were refused at the last look: why, by device

    async def run(self) -> None:
        """Follow the devices until cancelled. The rules stay: the next process takes them over."""
        loop = RetryLoop("taints of devices", self._due, self._write, self._changed, self._pace)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(loop.run(), name="taint rules")
            tasks.create_task(self._follow(), name="devices for the taint rules")

    async def _follow(self) -> None:
        await self._listing.until_known()
        while True:
            shown = self._listing.current()
            if shown:  # a service that has just started may know no device yet
                self._taints = taints(shown)
                self._changed.notify()
            await self._listing.until_differs(shown)

    def _due(self) -> float:
        if self._taints is None:
            return NEVER
        return 0.0 if self._taints != self._written else self._again - asyncio.get_running_loop().time()

    async def _write(self) -> None:
        taints = self._taints or {}
        listed = await self._listed() if taints else {}
        pool = Pool(self._driver, self._node, (await self._server.read()).uid if taints else "")
        wanted = {name: taint_rule(pool, name, taints[uuid]) for name, uuid in listed.items() if uuid in taints}
        rules = await self._server.taint_rules(rule_labels(self._node))
        present = {rule["spec"]["deviceSelector"]["device"]: rule for rule in rules if self._is_own(rule)}
        refused, self._refused = self._refused, {}
        for device, rule in wanted.items():
            applied = not covers(present.get(device), rule)
            if applied and await self._change(device, self._server.apply_taint_rule(rule), refused):
                logger.info("device tainted", device=device, reason=rule["spec"]["taint"]["value"])
        for device, existing in present.items():
            # A device that is not listed keeps its rule: after a restart of the kubelet the vendor's driver lists anew.
            deleted = device not in wanted and (device in listed or not taints)
            name = existing["metadata"]["name"]
            if deleted and await self._change(device, self._server.delete_taint_rule(name), refused):
                logger.info("taint removed", device=device)
        # Once more after the last taint: another process of a rolling update may have written a rule at the same time.
        again = taints or self._written or self._refused
        self._again = asyncio.get_running_loop().time() + AGAIN if again else NEVER
        self._written = taints

    async def _change(self, device: str, change: Awaitable[None], refused: Mapping[str, str]) -> bool:
        """Whether the API server accepts the change. If it does not, the changes for other devices still follow.

        Each refusal is logged once. ``refused``: what was refused at the last look.
        """
        try:
            await change
        except Failure as failure:
            if failure.kind not in _OF_ONE_RULE:
                raise
            self._refused[device] = failure.message
            if refused.get(device) != failure.message:
                logger.error("cannot change the taint of a device", device=device, error=failure.message)  # noqa: TRY400 - expected
            return False
        return True

    async def _listed(self) -> dict[str, str]:
        """The UUIDs of the devices that the vendor's driver lists in the pool of the node, by name."""
        listed = listed_devices.listed(await self._server.slices_of(self._driver))
        return {entry.name: device_name(entry.uuid) for (pool, _), entry in listed.items() if pool == self._node}

    def _is_own(self, rule: Mapping[str, Any]) -> bool:
        selector = rule["spec"].get("deviceSelector") or {}
        return (selector.get("driver"), selector.get("pool")) == (self._driver, self._node) and "device" in selector
