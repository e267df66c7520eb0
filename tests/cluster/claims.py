"""ResourceClaims on the real node: templates, pods with claims, and a driver beside ours that does nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lightkube.resources.core_v1 import Event, Node, Pod
from lightkube.resources.resource_v1 import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice

from plugin.dra import registration, resource_slices
from plugin.dra.config import DRIVER, PLUGINS_DIR, REGISTRY_DIR
from plugin.dra.dra_driver import handlers
from plugin.kubelet_api import dra_pb2 as wire
from plugin.registration.registration_state import NotRegistered
from tests.cluster.cluster import Cluster, container
from tests.cluster.programs import KUBECONFIG, NODE, Program
from tests.patience import WITHIN

SLICE = resource_slices.slice_name(DRIVER, NODE)
EXTENDED = "claims.example/gpu"  # the resource by which pods get claims of our class
FAILED_PREPARE = "FailedPrepareDynamicResources"  # the kubelet's Event


def dra_driver(logs: Path, *flags: str) -> Program:
    """Our DRA driver; it is not started."""
    ours = ("env", f"KUBECONFIG={KUBECONFIG}", f"NODE_NAME={NODE}", sys.executable, "-m", "autoclave", "dra")
    return Program("autoclave-dra", [*ours, *flags], logs)


def request(count: int = 1, name: str = "gpus", of: str = DRIVER, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    """A request for so many devices of a class."""
    return {"name": name, "exactly": {"deviceClassName": of, "count": count, **more}}


def device_class(of: str) -> Any:  # noqa: ANN401 - objects made of fields have no types
    """The class of all devices of a driver; pods may ask for ours by a resource, too."""
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": f'device.driver == "{of}"'}}]}
    if of == DRIVER:
        spec["extendedResourceName"] = EXTENDED  # the API server drops it where it does not know it
    return DeviceClass.from_dict({"metadata": {"name": of}, "spec": spec})


def claiming(*flags: str, claim: str = "", template: str = "", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    """The specification of a pod whose container has a claim, or one of a template."""
    source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
    its = container(*flags) | {"resources": {"claims": [{"name": "gpus"}]}}
    return {"containers": (its,), "resourceClaims": [{"name": "gpus", **source}], **more}


class Claims:
    """Pods with claims of our driver."""

    def __init__(self, cluster: Cluster) -> None:
        """There are no claims."""
        self.cluster = cluster

    async def offer(self, *counts: int) -> None:
        """Create templates for so many GPUs."""
        for count in counts:
            await self.template(f"gpus-{count}", request(count))

    async def template(self, name: str, *requests: dict[str, Any]) -> None:
        """Create a template of claims."""
        spec = {"spec": {"devices": {"requests": list(requests)}}}
        created: Any = ResourceClaimTemplate.from_dict({"metadata": {"name": name}, "spec": spec})
        await self.cluster.client.create(created)

    async def claim(self, name: str, *requests: dict[str, Any]) -> None:
        """Create a claim that outlives its pods."""
        spec = {"devices": {"requests": list(requests)}}
        created: Any = ResourceClaim.from_dict({"metadata": {"name": name}, "spec": spec})
        await self.cluster.client.create(created)

    async def create(self, name: str, count: int, *flags: str, **more: Any) -> None:  # noqa: ANN401 - any field
        """Create a pod that has a claim for so many GPUs."""
        await self.put(name, claiming(*flags, template=f"gpus-{count}", **more))

    async def put(self, name: str, spec: dict[str, Any]) -> None:
        """Create a pod with the specification that ``claiming`` has made."""
        rest = dict(spec)
        await self.cluster.create(name, *rest.pop("containers"), **rest)

    async def hold(self, name: str, count: int, *flags: str) -> None:
        """Create a pod, and return when it has filled its GPUs with its secret."""
        await self.create(name, count, *flags)
        await self.holds(name)

    async def holds(self, name: str, more: int = 0) -> None:
        """Return when a pod has filled its GPUs with its secret; ``more``: so many times more."""
        holds = asyncio.create_task(self.cluster.said(name, "HOLDING", more=more))
        ended = asyncio.create_task(self.cluster.ended(name))
        await asyncio.wait({holds, ended}, return_when=asyncio.FIRST_COMPLETED)
        failed = ended.done() and not holds.done()
        for task in (holds, ended):
            task.cancel()
        await asyncio.wait({holds, ended})
        assert not failed, self.cluster.story()
        if not holds.cancelled():
            holds.result()

    async def end(self, name: str) -> None:
        """Delete a pod, and return when nothing is left of it."""
        await self.cluster.delete(name)
        await self.cluster.gone(name)

    async def sliced(self, wanted: Callable[[list[Any]], bool]) -> None:
        """Return when the devices of the slice are as wanted."""
        await self.cluster.until(
            ResourceSlice, SLICE, lambda found: found is not None and wanted(found.spec.devices or [])
        )

    async def refusals(self) -> list[str]:
        """What the kubelet says of claims that were not prepared."""
        listed = self.cluster.client.list(Event, fields={"reason": FAILED_PREPARE})
        return [str(event.message) async for event in listed]

    async def refused(self, pod: str) -> str:
        """What the kubelet says of a pod's claims, as soon as it says that they are not prepared."""
        return await self.event(pod, FAILED_PREPARE)

    async def event(self, pod: str, reason: str) -> str:
        """What the Event of a pod with this reason says, as soon as there is one."""
        about: Any = {"reason": reason, "involvedObject.name": pod}
        async with asyncio.timeout(WITHIN):
            async for change, event in self.cluster.client.watch(Event, fields=about):
                if change != "DELETED":
                    return str(event.message)
        raise AssertionError

    async def clear(self) -> None:
        """Delete all pods, and what ``offer`` and the tests have made."""
        client = self.cluster.client
        names = await self.cluster.names()
        await client.deletecollection(Pod, grace_period=1)  # one of them may just have ended
        for name in names:
            await self.cluster.gone(name)
        await client.deletecollection(ResourceClaim)
        await client.deletecollection(ResourceClaimTemplate)
        await client.deletecollection(Event)


class OtherDriver:
    """A driver with one device that does nothing: the edits of its CDI specification are none."""

    NAME = "other.example"

    def __init__(self) -> None:
        """It refuses nothing."""
        self.refuses_prepare = False
        self.unprepare_refusals = 0  # that are still to come
        self.unprepared = 0

    async def NodePrepareResources(self, request: wire.NodePrepareResourcesRequest, _context: object):  # noqa: N802 - the proto's
        """Nothing, or an error."""
        device = wire.Device(request_names=["other"], pool_name=NODE, device_name="thing")
        answer = wire.NodePrepareResourceResponse(devices=[device])
        if self.refuses_prepare:
            answer = wire.NodePrepareResourceResponse(error="the other driver refuses")
        return wire.NodePrepareResourcesResponse(claims=dict.fromkeys((it.uid for it in request.claims), answer))

    async def NodeUnprepareResources(self, request: wire.NodeUnprepareResourcesRequest, _context: object):  # noqa: N802 - the proto's
        """Nothing, or an error."""
        self.unprepared += 1
        answer = wire.NodeUnprepareResourceResponse()
        if self.unprepare_refusals:
            self.unprepare_refusals -= 1
            answer = wire.NodeUnprepareResourceResponse(error="the other driver refuses")
        return wire.NodeUnprepareResourcesResponse(claims=dict.fromkeys((it.uid for it in request.claims), answer))

    async def NodeWatchResources(self, _request: object, _context: object) -> None:  # noqa: N802 - the proto's
        """Nothing is known of the health."""
        await asyncio.Event().wait()

    @asynccontextmanager
    async def serving(self, cluster: Cluster) -> AsyncIterator[None]:
        """Its class, its slice, and the registration with the kubelet."""
        registered = asyncio.Event()

        def record(_name: str, failure: NotRegistered | None) -> None:
            if failure is None:
                registered.set()

        folder = Path(PLUGINS_DIR) / self.NAME
        folder.mkdir(parents=True, exist_ok=True)
        sockets = folder / "dra.sock", Path(REGISTRY_DIR) / f"{self.NAME}-reg.sock"
        whole: Any = self
        work = registration.stay_registered(
            self.NAME, lambda server: server.add_generic_rpc_handlers(tuple(handlers(whole))), *sockets, record
        )
        task = asyncio.create_task(work)
        async with asyncio.timeout(WITHIN):
            await registered.wait()
        node = await cluster.client.get(Node, NODE)
        pool = resource_slices.Pool(self.NAME, NODE, str(node.to_dict()["metadata"]["uid"]))
        its = resource_slices.resource_slice(pool, (), taints=False)
        its["spec"]["devices"] = [{"name": "thing"}]
        created: Any = ResourceSlice.from_dict(its)
        await cluster.client.create(created)
        await cluster.client.create(device_class(self.NAME))
        yield
        await cluster.client.delete(DeviceClass, self.NAME)
        await cluster.client.delete(ResourceSlice, resource_slices.slice_name(self.NAME, NODE))
        task.cancel()
        await asyncio.wait({task})
