"""The slice in the API server, over real HTTP. The test speaks for the API server and the scrub service."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from plugin.cluster.base import Failure, FailureKind
from plugin.cluster.credentials import File
from plugin.cluster.retry_loop import Pace
from plugin.dra import apiserver, publisher
from plugin.dra.publisher import SlicePublisher
from tests.plugin.cluster.api_server import NODE, Answer, ApiServer, Request, status
from tests.plugin.scrub_server import gpu

DRIVER = "gpu.autoclave.dev"
NAME = f"{NODE}-{DRIVER}"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
QUICK = Pace(spacing=0, first=0.001, longest=0.02, slow=0.05)


class SliceServer(ApiServer):
    """Keeps one slice. Each watch ends at the next change of the slice."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.slice: dict[str, Any] = {}
        self.keeps_taints = True
        self.fault = self._answer_slices

    def devices(self):
        """The names of the devices in the slice, in order; a ``!`` stands for a taint."""
        listed = self.slice["spec"].get("devices", []) if self.slice else []
        return [device["name"] + "!" * bool(device.get("taints")) for device in listed]

    def _answer_slices(self, request: Request) -> Answer | None:
        if not request.path.startswith(SLICES):
            return None
        if request.method == "PATCH":
            assert request.kind == "application/apply-patch+yaml"
            self.slice = json.loads(json.dumps(request.body))
            for device in self.slice["spec"].get("devices", []):
                if not self.keeps_taints:
                    device.pop("taints", None)
            self.slice["metadata"]["uid"] = "added by the API server"
            return Answer(200, self.slice)
        items = [self.slice] if self.slice else []
        return Answer(200, {"kind": "ResourceSliceList", "metadata": {"resourceVersion": "1"}, "items": items})


@pytest.fixture
async def api(short_tmp):
    api = SliceServer(short_tmp)
    await api.open()
    yield api
    await api.leave()


@pytest.fixture
def publishing(api, followed, monkeypatch):
    monkeypatch.setattr(publisher, "WATCH_AGAIN", 0.01)

    @asynccontextmanager
    async def publishing() -> AsyncIterator[None]:
        server = apiserver.connect(File(api.kubeconfig), NODE, 5.0)
        async with followed() as listing:
            task = asyncio.create_task(SlicePublisher(server, listing, DRIVER, NODE, QUICK).run())
            yield
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()
        await server.close()

    return publishing


async def test_the_slice_follows_the_devices(api, door, publishing):
    door.say(gpu(0), gpu(1))
    async with publishing():
        await api.until(lambda: api.devices() == ["gpu-0000", "gpu-0001"])
        owner = api.slice["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", NODE, "uid-1")
        door.say(gpu(0, healthy=False, clean=False), gpu(1))
        await api.until(lambda: api.devices() == ["gpu-0001", "gpu-0000!"])


async def test_a_slice_that_the_kubelet_deleted_is_written_again(api, door, publishing):
    door.say(gpu(0))
    async with publishing():
        await api.until(lambda: api.devices() == ["gpu-0000"])
        api.slice = {}
        await api.until(lambda: api.devices() == ["gpu-0000"])


async def test_an_api_server_without_taints_gets_no_unhealthy_device(api, door, publishing):
    api.keeps_taints = False
    door.say(gpu(0, healthy=False), gpu(1))
    async with publishing():
        await api.until(lambda: api.devices() == ["gpu-0001"])


async def test_no_claim_gets_a_device_while_the_service_does_not_answer(api, door, publishing):
    door.silence = 0.05
    door.say(gpu(0))
    async with publishing():
        await api.until(lambda: api.devices() == ["gpu-0000"])
        await door.close()
        await api.until(lambda: api.devices() == ["gpu-0000!"])


async def test_a_failed_write_is_tried_again(api, door, publishing):
    answers = api.fault
    refusals = iter([status(503, "busy"), status(403, "no right")])
    api.fault = lambda request: (next(refusals, None) if request.method == "PATCH" else None) or answers(request)
    door.say(gpu(0))
    async with publishing():
        await api.until(lambda: api.devices() == ["gpu-0000"])


async def test_a_claim_is_read_from_the_api_server(api):
    claim = {"kind": "ResourceClaim", "metadata": {"name": "a", "namespace": "x", "uid": "1"}, "new": "field"}
    path = "/apis/resource.k8s.io/v1/namespaces/x/resourceclaims/a"
    api.fault = lambda request: Answer(200, claim) if request.path == path else None
    server = apiserver.connect(File(api.kubeconfig), NODE, 5.0)
    found = await server.claim("x", "a")
    assert (found["metadata"]["uid"], found["new"]) == ("1", "field")
    with pytest.raises(Failure) as failed:
        await server.claim("x", "missing")
    assert failed.value.kind is FailureKind.MISSING
    await server.close()
