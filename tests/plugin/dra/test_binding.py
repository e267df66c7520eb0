"""When the scheduler may bind a pod with a claim. The test speaks for the scheduler and the scrub service."""

import asyncio

import pytest

from demo.standins.api_server import CLAIMS
from demo.standins.http_api import on, status
from plugin.cluster.credentials import File
from plugin.cluster.retry_loop import Pace
from plugin.dra import apiserver, binding, config
from plugin.dra.binding import BindingConditions
from plugin.dra.config import DRIVER, DraConfig
from scrubber.ground.errors import FatalError
from tests.patience import WITHIN
from tests.plugin.dra.live_driver import NODE
from tests.plugin.scrub_server import gpu

QUICK = Pace(spacing=0, first=0.001, longest=0.02, slow=0.05)
SCRUBBED, FAILED = f"{DRIVER}/scrubbed", f"{DRIVER}/scrub-failed"
PATCH = "PATCH resourceclaims/status"


def allocate(api, name, *devices, pool=NODE, conditions=(SCRUBBED,), **more):
    """The scheduler gives these devices to a claim, and waits for their conditions."""
    result = {"driver": DRIVER, "pool": pool, "request": "gpus", "bindingConditions": list(conditions), **more}
    results = [{**result, "device": device} for device in devices]
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    allocation = {"devices": {"results": results}}
    api.put(CLAIMS, {"kind": "ResourceClaim", "metadata": metadata, "status": {"allocation": allocation}})


def condition_of(api, name):
    """What the scheduler reads: the condition that is true, by device."""
    entries = (api.find(CLAIMS, name, "default").get("status") or {}).get("devices") or []
    return {entry["device"]: [it["type"] for it in entry["conditions"]] for entry in entries}


@pytest.fixture
async def reporting(api, followed, monkeypatch):
    """The service says what ``door`` says."""
    monkeypatch.setattr(binding, "WATCH_AGAIN", 0.01)
    server = apiserver.connect(File(api.kubeconfig), NODE, 5.0)
    async with followed() as listing:
        task = asyncio.create_task(BindingConditions(server, listing, DRIVER, NODE, QUICK).run())
        yield
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
    await server.close()


async def until(api, name, wanted):
    await api.until(lambda: condition_of(api, name) == wanted, WITHIN)


@pytest.mark.usefixtures("door", "reporting")
async def test_a_pod_is_bound_when_its_claims_gpus_are_scrubbed(api, door):
    door.say(gpu(0, clean=False), gpu(1, clean=False))
    allocate(api, "job", "gpu-0000", "gpu-0001")
    door.say(gpu(0), gpu(1, clean=False))
    await until(api, "job", {"gpu-0000": [SCRUBBED]})
    door.say(gpu(0, clean=False), gpu(1))  # what was said stays
    await until(api, "job", {"gpu-0000": [SCRUBBED], "gpu-0001": [SCRUBBED]})


@pytest.mark.usefixtures("door", "reporting")
async def test_a_gpu_that_is_quarantined_goes_back_to_the_scheduler(api, door):
    door.say(gpu(0, clean=False))
    allocate(api, "job", "gpu-0000")
    door.say(gpu(0, healthy=False, clean=False, quarantined=True, reason="ecc"))
    await until(api, "job", {"gpu-0000": [FAILED]})


@pytest.mark.usefixtures("door", "reporting")
async def test_only_claims_that_wait_for_this_node_are_written(api, door):
    door.say(gpu(0), gpu(1))
    allocate(api, "elsewhere", "gpu-0000", pool="node-2")
    allocate(api, "clean", "gpu-0000", conditions=())
    allocate(api, "job", "gpu-0001")
    await until(api, "job", {"gpu-0001": [SCRUBBED]})
    assert [request.name for request in api.requests if request.about == PATCH] == ["job"]


@pytest.mark.usefixtures("door", "reporting")
async def test_admin_access_waits_for_no_scrub(api, door):
    """Another claim has the device."""
    door.say(gpu(0, clean=False, owner="uid-other"))
    allocate(api, "admin", "gpu-0000", adminAccess=True)
    await until(api, "admin", {"gpu-0000": [SCRUBBED]})


@pytest.mark.usefixtures("door", "reporting")
async def test_a_report_survives_failures_and_the_end_of_a_watch(api, door):
    refusals = iter([status(503, "busy"), status(409, "Conflict")])
    api.fault = on(PATCH, lambda _: next(refusals, None))
    door.say(gpu(0))
    allocate(api, "job", "gpu-0000")
    await until(api, "job", {"gpu-0000": [SCRUBBED]})
    api.end_watches()
    allocate(api, "next", "gpu-0000")
    await until(api, "next", {"gpu-0000": [SCRUBBED]})


def test_slices_of_a_vendor_have_no_binding_conditions(short_tmp):
    chosen = DraConfig(
        plugins_dir=short_tmp, registry_dir=short_tmp, vendor_registry_dir=short_tmp, binding_conditions=True
    )
    with pytest.raises(FatalError, match="the vendor's driver writes the slices"):
        config.check(chosen)
