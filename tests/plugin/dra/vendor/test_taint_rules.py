"""The taints of a vendor's devices, over real HTTP. The test speaks for the API server and the scrub service."""

import asyncio
import math
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import structlog

from demo.standins.api_server import NODES, RULES, SLICES, ApiServer
from demo.standins.http_api import status
from plugin.cluster import apiserver
from plugin.cluster.retry_loop import Pace
from plugin.dra.resource_slices import Pool
from plugin.dra.vendor import taint_rules
from plugin.dra.vendor.taint_rules import TaintRules
from tests.patience import WITHIN
from tests.plugin.scrub_server import gpu

NODE, DRIVER = "node-1", "gpu.nvidia.com"
QUICK = Pace(spacing=0, first=0.001, longest=0.02, slow=0.05)
ILL = {"healthy": False, "clean": False, "quarantined": True, "reason": "ecc"}


class Server(ApiServer):
    """The API server of a cluster with one node, whose vendor's driver lists these devices."""

    async def until(self, predicate, within=WITHIN):
        await super().until(predicate, within)

    def list_devices(self, *uuids, pool=NODE):
        devices = [{"name": f"gpu-{number}", "attributes": {"uuid": {"string": it}}} for number, it in enumerate(uuids)]
        about = {"name": pool, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": about, "devices": devices}
        self.put(SLICES, {"metadata": {"name": f"{pool}-slice"}, "spec": spec})

    def tainted(self):
        """The devices that have a rule, by pool, and why."""
        rules = [rule["spec"] for rule in self.objects(RULES)]
        return {
            f"{it['deviceSelector']['pool']}/{it['deviceSelector']['device']}": it["taint"]["value"] for it in rules
        }


@pytest.fixture
async def api(short_tmp):
    api = Server(short_tmp, NODE)
    await api.open()
    api.list_devices("GPU-0000", "GPU-0001")
    yield api
    await api.leave()


@pytest.fixture
def tainting(api, followed):
    @asynccontextmanager
    async def tainting() -> AsyncIterator[None]:
        server = apiserver.ApiServer(api.kubeconfig, NODE, 5.0)
        async with followed() as listing:
            task = asyncio.create_task(TaintRules(server, listing, DRIVER, NODE, QUICK).run())
            yield
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()
        await server.close()

    return tainting


async def looks(api, number):
    """Wait until the rules were looked at so many times more, and all that follows from a look before the last."""
    asked = len(api.requests)
    await api.until(lambda: [it.about for it in api.requests[asked:]].count("GET devicetaintrules") >= number)


async def test_a_quarantined_device_is_tainted_until_it_is_well(api, door, tainting):
    door.say(gpu(0), gpu(1, **ILL))
    async with tainting():
        await api.until(lambda: api.tainted() == {"node-1/gpu-1": "ecc"})
        [rule] = api.objects(RULES)
        assert rule["metadata"]["name"] == "node-1-gpu-1-gpu.nvidia.com"
        assert rule["spec"]["deviceSelector"]["driver"] == DRIVER
        assert rule["spec"]["taint"] == {
            "key": "gpu.autoclave.internal/unhealthy",
            "value": "ecc",
            "effect": "NoSchedule",
        }
        # A node that is deleted takes its rules with it.
        assert rule["metadata"]["ownerReferences"][0]["uid"] == api.find(NODES, NODE)["metadata"]["uid"]
        door.say(gpu(0), gpu(1))
        await api.until(lambda: api.tainted() == {})


async def test_a_device_that_waits_for_its_scrub_has_no_taint(api, door, tainting, monkeypatch):
    monkeypatch.setattr(taint_rules, "AGAIN", 0.01)
    api.list_devices("GPU-2", "GPU-3", "GPU-0001", pool="another-pool")  # a rule of this node would not concern it
    door.say(gpu(0, healthy=False, clean=False), gpu(1, healthy=False, sick=True, reason="xid"))
    async with tainting():
        await looks(api, 2)
        assert api.tainted() == {"node-1/gpu-1": "xid"}


async def test_old_rules_go_and_those_of_others_stay(api, door, tainting):
    def rule(device, driver=DRIVER, node=NODE, **labels) -> None:
        selector = {"driver": driver, "pool": node, "device": device}
        labels = labels or taint_rules.rule_labels(node)
        name = f"{len(api.objects(RULES))}"
        api.create(RULES, {"metadata": {"name": name, "labels": labels}, "spec": {
            "deviceSelector": selector, "taint": {"key": "a", "value": name, "effect": "NoSchedule"}}})  # fmt: skip

    rule("gpu-0")
    rule("gpu-0", node="node-2")
    rule("gpu-0", driver="gpu.site.example")
    rule("gpu-0", owner="a-person")
    door.say(gpu(0), gpu(1))
    async with tainting():
        await api.until(lambda: len(api.objects(RULES)) == 3)
        assert sorted(it["metadata"]["name"] for it in api.objects(RULES)) == ["1", "2", "3"]


@pytest.mark.parametrize("node", [NODE, f"{'n' * 60}.site.example"], ids=["short", "long"])
async def test_a_node_lists_only_its_own_rules(api, node):
    """Otherwise each of N nodes would read the rules of all N, each minute."""
    for pool in (node, f"{node}-2"):
        rule = taint_rules.taint_rule(Pool(DRIVER, pool, "uid"), "gpu-0", {"key": "a", "value": "b"})
        assert all(len(value) <= 63 for value in rule["metadata"]["labels"].values())
        api.create(RULES, rule)
    server = apiserver.ApiServer(api.kubeconfig, node, 5.0)
    [only] = await server.taint_rules(taint_rules.rule_labels(node))
    assert only["spec"]["deviceSelector"]["pool"] == node
    await server.close()


async def test_a_silent_service_changes_no_taint(api, door, tainting):
    """Nothing is known of the devices: a quarantine has not ended, and a healthy device is no sicker."""
    door.silence = 0.05
    door.say(gpu(0), gpu(1, **ILL))
    async with tainting():
        await api.until(lambda: api.tainted() == {"node-1/gpu-1": "ecc"})
        asked = len(api.requests)
        await door.close()
        door.say(gpu(0, **ILL), gpu(1))  # what it says when it is back
        await door.open()
        await api.until(lambda: api.tainted() == {"node-1/gpu-0": "ecc"})
    writes = [it.about for it in api.requests[asked:] if it.method in ("PATCH", "DELETE")]
    assert writes == ["PATCH devicetaintrules", "DELETE devicetaintrules"]


async def test_a_taint_follows_its_gpu_to_another_name(api, door, tainting, monkeypatch):
    """The vendor's names are numbers: after a repair another GPU may have the name."""
    monkeypatch.setattr(taint_rules, "AGAIN", 0.01)
    door.say(gpu(0), gpu(1, **ILL))
    async with tainting():
        await api.until(lambda: api.tainted() == {"node-1/gpu-1": "ecc"})
        api.list_devices("GPU-0001", "GPU-0000")
        await api.until(lambda: api.tainted() == {"node-1/gpu-0": "ecc"})
        api.list_devices()  # as after a restart of the kubelet, which deletes the slices
        await looks(api, 2)
        assert api.tainted() == {"node-1/gpu-0": "ecc"}


async def test_a_rule_that_somebody_deleted_is_written_again(api, door, tainting, monkeypatch):
    monkeypatch.setattr(taint_rules, "AGAIN", 0.01)
    door.say(gpu(0), gpu(1, **ILL))
    async with tainting():
        await api.until(lambda: api.tainted() == {"node-1/gpu-1": "ecc"})
        api.delete(RULES, "node-1-gpu-1-gpu.nvidia.com")
        await api.until(lambda: api.tainted() == {"node-1/gpu-1": "ecc"})


async def test_without_a_sick_device_the_api_server_is_asked_once(api, door, tainting, monkeypatch):
    monkeypatch.setattr(taint_rules, "AGAIN", 0.0)
    door.say(gpu(0), gpu(1))
    async with tainting():
        await api.until(lambda: api.requests)
        door.say(gpu(0, healthy=False, clean=False), gpu(1))
        door.say(gpu(0), gpu(1, **ILL))
        await api.until(lambda: api.tainted() == {"node-1/gpu-1": "ecc"})
    first = [it.about for it in api.requests][:2]
    assert first == ["GET devicetaintrules", "GET resourceslices"]


async def test_a_list_without_the_device_ends_no_taint(api, door, tainting):
    """A service whose ledger is new and whose driver does not answer yet knows no device."""
    door.say(gpu(0), gpu(1, **ILL))
    async with tainting():
        await api.until(lambda: api.tainted() == {"node-1/gpu-1": "ecc"})
    door.say()
    asked = len(api.requests)
    async with tainting():
        await asyncio.sleep(0.1)
        door.say(gpu(0, **ILL), gpu(1, **ILL))
        await api.until(lambda: len(api.tainted()) == 2)
        door.say()
        await asyncio.sleep(0.1)
        door.say(gpu(0), gpu(1, **ILL))
        await api.until(lambda: api.tainted() == {"node-1/gpu-1": "ecc"})
    writes = [it.about for it in api.requests[asked:] if it.method in ("PATCH", "DELETE")]
    assert writes == ["PATCH devicetaintrules", "DELETE devicetaintrules"]


async def test_a_taint_that_an_older_process_writes_too_late_goes(api, door, tainting, monkeypatch):
    """In a rolling update two processes write rules: the older one may end before it hears of a recovery."""
    monkeypatch.setattr(taint_rules, "AGAIN", 0.05)
    door.say(gpu(0), gpu(1, **ILL))
    async with tainting():
        await api.until(lambda: api.tainted() == {"node-1/gpu-1": "ecc"})
        [rule] = api.objects(RULES)
        door.say(gpu(0), gpu(1))
        await api.until(lambda: api.tainted() == {})
        api.create(RULES, rule)
        await api.until(lambda: api.tainted() == {})


@pytest.mark.parametrize("code", [403, 422])
async def test_a_refused_rule_holds_up_no_other(api, door, tainting, monkeypatch, code):
    """The usual pause after a refusal never ends here."""
    monkeypatch.setattr(taint_rules, "AGAIN", 0.01)
    monkeypatch.setattr(sys.modules[__name__], "QUICK", replace(QUICK, slow=math.inf))
    refused = {"node-1-gpu-0-gpu.nvidia.com"}
    api.fault = lambda asked: (
        status(code, "Invalid", "not this one")
        if asked.method != "GET" and asked.path.rpartition("/")[2] in refused
        else None
    )
    door.say(gpu(0, **ILL), gpu(1, **ILL))
    with structlog.testing.capture_logs() as logs:
        async with tainting():
            await api.until(lambda: api.tainted() == {"node-1/gpu-1": "ecc"})
            door.say(gpu(0, **ILL), gpu(1))
            await api.until(lambda: api.tainted() == {})
            refused.clear()
            await api.until(lambda: api.tainted() == {"node-1/gpu-0": "ecc"})
            refused.add("node-1-gpu-0-gpu.nvidia.com")
            door.say(gpu(0), gpu(1))
            await looks(api, 3)
            refused.clear()
            await api.until(lambda: api.tainted() == {})
    lines = [line for line in logs if line["event"] == "cannot change the taint of a device"]
    assert [(line["device"], line["log_level"]) for line in lines] == [("gpu-0", "error")] * 2
    assert all("not this one" in line["error"] for line in lines)


async def test_the_driver_taints_by_choice(api, scrub_server, live_driver, short_tmp):
    (short_tmp / "vendor").mkdir()
    scrub_server.say(gpu(0), gpu(1, **ILL))
    await live_driver("--vendor-registry-dir", short_tmp / "vendor", "--taint-rules")
    await api.until(lambda: api.tainted() == {"node-1/gpu-1": "ecc"})


def test_a_long_node_name_gives_a_rule_its_own_name():
    """Kubernetes takes 253 characters, which the name of a node alone may have."""
    nodes = [f"{'a.' * 125}a-{end}" for end in "bc"]
    made = [
        taint_rules.taint_rule(Pool("gpu.nvidia.com", node, "uid"), "gpu-0", {})["metadata"]["name"] for node in nodes
    ]
    assert len(nodes[0]) == 253
    assert max(map(len, made)) <= 253
    assert len(set(made)) == 2
    assert all(name.endswith("-gpu-0-gpu.nvidia.com") for name in made)
