"""The claims of the pods of one node: their preparation before the first container, and their end.

Copies ``PK/cm/dra/manager.go``, with its order of steps and its texts. D1 is here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from demo.standins import claim_checkpoint
from demo.standins.claim_checkpoint import ClaimInfo, PreparedDevice
from demo.standins.cluster import Cluster
from demo.standins.dra_plugins import DraPlugin, DraPlugins, NoDriver
from demo.standins.endpoint import PluginError
from demo.standins.http_api import ServerAway
from demo.standins.journal import Journal
from demo.standins.pods import Container, Pod
from demo.standins.timing import Timing
from plugin.kubelet_api import dra_pb2

_OK = 200


class ClaimError(Exception):
    """A claim cannot be prepared or given back; the message is the kubelet's."""


class Claims:
    """The cache of claims of one kubelet process."""

    def __init__(self, directory: Path, cluster: Cluster, journal: Journal, timing: Timing) -> None:
        """Read the checkpoint; with a corrupt one the kubelet does not start. No claim counts as prepared."""
        self.plugins = DraPlugins(cluster, journal, timing)
        self._directory, self._cluster = directory, cluster
        self._known = {(info.namespace, info.name): info for info in claim_checkpoint.read(directory)}
        self._save()

    # -- PrepareResources

    async def prepare(self, pod: Pod) -> None:
        """Prepare the claims of a pod, or raise a ClaimError."""
        read = [self._read(pod, name) for name in pod.claims]  # an error changes nothing
        plugins: dict[str, DraPlugin] = {}
        for info in read:
            for driver in info.drivers:
                plugins[driver] = self._plugin(driver)
        batches: dict[str, list[ClaimInfo]] = {}
        for claim in read:
            info = self._known.setdefault((claim.namespace, claim.name), claim)
            if info.uid != claim.uid:
                raise ClaimError(
                    f"old ResourceClaim with same name {claim.name} and different UID {info.uid} still exists"
                    " (previous pod force-deleted?!)"
                )
            info.pods.add(pod.uid)
            self._save()
            if not info.prepared:
                for driver in info.drivers:
                    batches.setdefault(driver, []).append(info)
        for driver, infos in batches.items():
            await self._prepare(plugins[driver], infos)
        for info in {id(info): info for infos in batches.values() for info in infos}.values():
            self._entry(info).prepared = True
        self._save()

    def _read(self, pod: Pod, name: str) -> ClaimInfo:
        try:
            answer = self._cluster.read_claim(pod.namespace, name)
        except ServerAway as error:
            raise ClaimError(f"fetch ResourceClaim {name}: {error}") from error
        claim: dict[str, Any] = answer.body
        if answer.code != _OK:
            raise ClaimError(f"fetch ResourceClaim {name}: {claim['message']}")
        owners = [owner["uid"] for owner in claim["metadata"].get("ownerReferences") or () if owner["kind"] == "Pod"]
        if owners and pod.uid not in owners:
            raise ClaimError(
                f"ResourceClaim {pod.namespace}/{name} was not created for Pod {pod.namespace}/{pod.name}"
                " (Pod is not owner)"
            )
        status, uid = claim.get("status") or {}, claim["metadata"]["uid"]
        if pod.uid not in [entry["uid"] for entry in status.get("reservedFor") or ()]:
            raise ClaimError(f"pod {pod.name} ({pod.uid}) is not allowed to use ResourceClaim {name} ({uid})")
        if not status.get("allocation"):
            raise ClaimError(f"ResourceClaim {name}: not allocated")
        results = status["allocation"]["devices"]["results"]
        return ClaimInfo(uid, name, pod.namespace, drivers={result["driver"]: [] for result in results})

    async def _prepare(self, plugin: DraPlugin, infos: Collection[ClaimInfo]) -> None:
        by_uid = {info.uid: info for info in infos}
        try:
            response = await plugin.prepare(_messages(infos))
        except PluginError as error:
            raise ClaimError(f"NodePrepareResources: {error}") from error
        for uid, result in response.claims.items():
            _check("NodePrepareResources", uid, by_uid, result.error)
            # Appended to devices of an earlier call: after a restart the kubelet lists a device twice.
            devices = self._entry(by_uid[uid]).drivers.setdefault(plugin.driver, [])
            devices += map(PreparedDevice.of, result.devices)
        if missing := len(infos) - len(response.claims):
            raise ClaimError(f"NodePrepareResources skipped {missing} ResourceClaims")

    def _entry(self, info: ClaimInfo) -> ClaimInfo:
        """The entry for the name of a claim. It may have ended during the call."""
        entry = self._known.get((info.namespace, info.name))
        if entry is None:
            raise ClaimError(
                f"internal error: unable to get claim info for ResourceClaim {info.name} in namespace {info.namespace}"
            )
        return entry

    # -- UnprepareResources

    async def unprepare(self, pod: Pod) -> None:
        """The pod's containers have ended: give back the claims that no other pod has, or raise a ClaimError."""
        await self._unprepare(pod.uid, [(pod.namespace, name) for name in pod.claims])

    async def reconcile(self, active: Collection[str]) -> list[str]:
        """Give back the claims of pods that are not active; an error is retried by the next call. Returns errors."""
        errors = []
        for pod in sorted({uid for info in self._known.values() for uid in info.pods} - set(active)):
            keys = [key for key, info in self._known.items() if pod in info.pods]
            try:
                await self._unprepare(pod, keys)
            except ClaimError as error:
                errors.append(str(error))
        return errors

    async def _unprepare(self, pod: str, keys: Iterable[tuple[str, str]]) -> None:
        """D1: the end of a pod that never had a claim ends it, too."""
        last: list[ClaimInfo] = []
        for info in filter(None, map(self._known.get, keys)):
            if len(info.pods) > 1:
                info.pods.discard(pod)  # saved after all calls
            else:
                last.append(info)
        batches: dict[str, list[ClaimInfo]] = {}
        for info in last:
            for driver in info.drivers:
                batches.setdefault(driver, []).append(info)
        for driver, infos in batches.items():
            by_uid = {info.uid: info for info in infos}
            try:
                response = await self._plugin(driver).unprepare(_messages(infos))
            except PluginError as error:
                raise ClaimError(f"NodeUnprepareResources: {error}") from error
            for uid, result in response.claims.items():
                _check("NodeUnprepareResources", uid, by_uid, result.error)
            if missing := len(infos) - len(response.claims):
                raise ClaimError(f"NodeUnprepareResources skipped {missing} ResourceClaims")
        for info in last:
            self._known.pop((info.namespace, info.name), None)
        self._save()

    # -- what is known

    def cdi_devices(self, pod: Pod, container: Container) -> dict[str, tuple[str, ...]]:
        """The CDI device ids for a container, by ``claim:NAME``."""
        return {
            f"claim:{name}": tuple(dict.fromkeys(one for _, device in self._devices(pod, name) for one in device.cdi))
            for name in container.claims
        }

    def uids(self) -> dict[str, str]:
        """The UIDs of the claims in the cache, by ``NAMESPACE/NAME``."""
        return {f"{namespace}/{name}": info.uid for (namespace, name), info in self._known.items()}

    def _devices(self, pod: Pod, name: str) -> Iterable[tuple[str, PreparedDevice]]:
        info = self._known.get((pod.namespace, name))
        drivers = info.drivers if info is not None else {}
        return [(driver, device) for driver, devices in drivers.items() for device in devices]

    def _plugin(self, driver: str) -> DraPlugin:
        try:
            return self.plugins.plugin(driver)
        except NoDriver as error:
            raise ClaimError(str(error)) from error

    def _save(self) -> None:
        claim_checkpoint.write(self._directory, self._known.values())


def _check(method: str, uid: str, asked: Mapping[str, ClaimInfo], error: str) -> None:
    if uid not in asked:
        raise ClaimError(f"{method} returned result for unknown claim UID {uid}")
    if error:
        raise ClaimError(f"{method} failed for ResourceClaim {asked[uid].name}: {error}")


def _messages(infos: Iterable[ClaimInfo]) -> list[dra_pb2.Claim]:
    return [dra_pb2.Claim(namespace=info.namespace, uid=info.uid, name=info.name) for info in infos]
