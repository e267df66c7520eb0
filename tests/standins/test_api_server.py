"""The API server, asked by the client of the DRA driver and by plain requests; the scheduler and claim controller."""

import asyncio

import pytest

from demo.standins.api_server import APPLY, ApiServer
from demo.standins.cluster import Cluster
from demo.standins.do_nothing_driver import NIC, POOL, device_slice
from demo.standins.http_api import Request, ServerAway, status
from demo.standins.pods import Pod
from plugin.cluster import apiserver
from plugin.cluster.retry_loop import Failure, FailureKind
from tests.patience import WITHIN

GROUP = "/apis/resource.k8s.io/v1"
STATUS = f"{GROUP}/namespaces/default/resourceclaims/a/status"


@pytest.fixture
async def server(directory):
    server = ApiServer(directory, POOL)
    await server.open()
    yield server
    await server.leave()


@pytest.fixture
async def client(server):
    client = apiserver.ApiServer(server.kubeconfig, POOL, WITHIN)
    yield client
    await client.close()


@pytest.fixture
def cluster(server):
    return Cluster(server, POOL)


def apply(entries, manager="autoclave", force="", **metadata):
    """A request that applies ``status.devices`` of the claim ``a``."""
    query = {"fieldManager": manager, **({"force": force} if force else {})}
    return Request("PATCH", STATUS, APPLY, {"metadata": metadata, "status": {"devices": entries}}, query)


def entry(device, **more):
    return {"driver": NIC, "pool": POOL, "device": device, **more}


async def test_a_slice_is_applied_watched_and_deleted(server, client):
    assert (await client.read()).uid == server.find("nodes", POOL)["metadata"]["uid"]
    watch = client.slices(f"{POOL}-{NIC}")
    assert await anext(watch) is None
    wanted = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **device_slice(NIC, "nic-0")}
    applied = await client.apply_slice(wanted)
    assert (await anext(watch))["spec"] == wanted["spec"]
    assert (await client.apply_slice(wanted))["metadata"] == applied["metadata"]  # nothing has changed
    server.create("resourceslices", device_slice("other.example.com", "x"))  # not selected
    assert server.ask(Request("DELETE", f"{GROUP}/resourceslices", query={"fieldSelector": f"spec.driver={NIC}"}))
    assert await anext(watch) is None
    assert [found["spec"]["driver"] for found in server.objects("resourceslices")] == ["other.example.com"]


async def test_a_watch_goes_on_after_its_end(server, client):
    watch = client.slices(f"{POOL}-{NIC}")
    await anext(watch)
    following = asyncio.create_task(anext(watch))
    await server.until(lambda: server.requests[-1].query.get("watch"))
    server.end_watches()
    server.create("resourceslices", device_slice(NIC, "nic-0"))
    assert (await following)["spec"]["driver"] == NIC


async def test_a_watch_from_a_forgotten_version_is_gone(server, client):
    """The error is a line of the stream, as from the watch cache of a real API server; the client lists again."""
    watch = client.slices(f"{POOL}-{NIC}")
    await anext(watch)
    server.create("resourceslices", device_slice(NIC, "nic-0"))
    server.compact()
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_a_closed_server_keeps_its_objects(server, client):
    server.create("resourceslices", device_slice(NIC, "nic-0"))
    await server.close()
    with pytest.raises(ServerAway):
        server.ask(Request("GET", f"{GROUP}/resourceslices"))
    with pytest.raises(Failure) as failed:
        await client.read()
    assert failed.value.kind is FailureKind.AWAY
    await server.open()
    server.fault = lambda _: status(403, "Forbidden")
    assert server.ask(Request("GET", f"{GROUP}/resourceslices")).code == 403
    server.fault = lambda _: None
    assert len(server.ask(Request("GET", f"{GROUP}/resourceslices")).body["items"]) == 1


async def test_each_manager_of_a_claim_status_has_its_own_entries(server, cluster):
    server.create("resourceslices", device_slice(NIC, "nic-0", "nic-1"))
    cluster.claim("a", driver=NIC, count=2)
    assert cluster.place(Pod.of("p", None, "a")) == ""
    assert server.ask(apply([entry("nic-0", data={"receipt": "1"})])).code == 200
    assert server.ask(apply([entry("nic-0")], manager="other")).code == 409
    assert server.ask(apply([entry("nic-1")], manager="other")).code == 200
    assert server.ask(apply([entry("nic-0", data={"receipt": "2"})])).code == 200
    listed = {
        found["device"]: found.get("data")
        for found in server.find("resourceclaims", "a", "default")["status"]["devices"]
    }
    assert listed == {"nic-0": {"receipt": "2"}, "nic-1": None}
    assert server.ask(apply([])).code == 200
    assert [found["device"] for found in server.find("resourceclaims", "a", "default")["status"]["devices"]] == [
        "nic-1"
    ]


async def test_a_claim_status_is_for_allocated_devices_of_this_claim(server, cluster):
    server.create("resourceslices", device_slice(NIC, "nic-0"))
    claim = cluster.claim("a", driver=NIC)
    assert server.ask(apply([entry("nic-0")])).code == 422
    cluster.place(pod := Pod.of("p", None, "a"))
    assert server.ask(apply([entry("nic-0")], uid="another")).code == 409
    version = claim["metadata"]["resourceVersion"]
    assert server.ask(apply([entry("nic-0")], resourceVersion=version)).code == 409
    assert server.ask(apply([entry("nic-0")], uid=claim["metadata"]["uid"])).code == 200
    cluster.pod_ended(pod)
    assert server.find("resourceclaims", "a", "default")["status"] == {"reservedFor": [], "devices": []}


async def test_the_scheduler_takes_the_first_devices_without_a_taint(server, cluster):
    server.create("resourceslices", device_slice(NIC, "b", "c", "a", taints=("b",)))
    for name, count, admin in (("two", 2, False), ("one", 1, False), ("watcher", 2, True), ("three", 3, False)):
        cluster.claim(name, driver=NIC, count=count, admin=admin)
    assert cluster.offered(NIC) == {"b": False, "c": True, "a": True}
    assert cluster.place(Pod.of("p", None, "one")) == ""
    assert cluster.devices("one") == ["c"]
    assert cluster.place(Pod.of("p", None, "two")) == "cannot allocate all claims"
    assert cluster.place(Pod.of("p", None, "watcher")) == ""
    assert cluster.devices("watcher") == ["c", "a"]
    assert cluster.place(Pod.of("p", None, "missing")) == 'resourceclaim "missing" not found'


async def test_a_claim_is_free_when_its_last_pod_is_gone(server, cluster):
    server.create("resourceslices", device_slice(NIC, "nic-0"))
    pods = [Pod.of(name, None, "a", "mine") for name in ("p", "q")]
    cluster.claim("a", driver=NIC)
    cluster.claim("mine", driver=NIC, count=0, of=pods[0])
    for pod in pods:
        assert cluster.place(pod) == ""
    server.delete("resourceclaims", "a", "default")
    cluster.pod_ended(pods[0])
    assert cluster.devices("a") == ["nic-0"]
    assert cluster.place(Pod.of("r", None, "a")) == 'resourceclaim "a" is being deleted'
    cluster.pod_ended(pods[1])
    assert server.find("resourceclaims", "a", "default") is None
