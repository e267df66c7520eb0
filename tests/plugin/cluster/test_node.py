"""The node that is told of: when its status changed, and whether it is still the same."""

from dataclasses import replace

import pytest

from plugin.cluster import apiserver, node_report
from plugin.cluster.reporter import ClusterReporter
from tests.plugin.cluster.api_server import CONDITION, NODE, on, status
from tests.plugin.cluster.conftest import QUICK
from tests.plugin.cluster.devices import IDLE, out
from tests.plugin.scrub_server import gpu


@pytest.fixture
def clock():
    """A clock of the wall that the test sets."""
    return [1_000_000.0]


@pytest.fixture
async def reporter(api, clock):
    """One that looks and writes when it is told to."""
    server = apiserver.ApiServer(api.kubeconfig, NODE, 5.0)
    yield ClusterReporter(server, NODE, pace=QUICK, clock=lambda: clock[0])
    await server.close()


async def test_the_transition_time_is_that_of_the_observation(api, clock, reporter):
    """Three looks while the API server is away: the second changes the status, the third only the words."""
    sick = replace(IDLE, reason="xid", sick=True)
    for seen in [(IDLE,), (sick,), (sick, replace(sick, uuid="GPU-1", index=1))]:
        reporter._update(seen)
        clock[0] += 100
    await reporter._write_condition()
    assert api.says("False", "AllDevicesOut")
    assert api.condition()["lastTransitionTime"] == node_report.api_time(1_000_100)
    assert api.condition()["lastHeartbeatTime"] == node_report.api_time(1_000_300)


async def test_a_new_node_keeps_no_times_of_the_old_one(api, door, reporting):
    long_ago = "2020-01-01T00:00:00Z"
    ours = {"type": node_report.CONDITION, "status": "False", "reason": "Old", "message": "old"}
    api.node["status"]["conditions"].append({**ours, "lastTransitionTime": long_ago, "lastHeartbeatTime": long_ago})
    door.say(out(0), gpu(1))
    async with reporting():
        await api.until(lambda: api.says("False", "SomeDevicesOut"))
        assert api.condition()["lastTransitionTime"] == long_ago
        api.node["metadata"]["uid"], api.node["status"]["conditions"] = "uid-2", []
        api.fault = on(CONDITION, lambda _request: status(404, "NotFound"), times=1)
        door.say(out(0, "ecc"), gpu(1))
        await api.until(lambda: api.says("False", "SomeDevicesOut") and len(api.events) == 2)
        assert api.condition()["lastTransitionTime"] > long_ago
    assert len(api.bodies("GET nodes")) == 2
