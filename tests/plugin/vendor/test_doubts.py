"""What a vendor's Unhealthy does to the proof of a device."""

import pytest
from structlog.testing import capture_logs

from ground.errors import Reason, Refused
from plugin.vendor import directory
from scrubber.core import events as ev
from scrubber.core.model import State
from tests.plugin.sides import DirectClient
from tests.plugin.vendor.vendor_world import HEALTHY, UNHEALTHY, VendorWorld
from tests.service.asking import rows, scrubs
from tests.service.virtual import VirtualLoop


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Two GPUs that are clean, and that vendor and service call healthy."""
    loop = VirtualLoop()
    world = VendorWorld(loop, tmp_path, monkeypatch, gpus=2, interval=2.0)
    loop.run_until_complete(world.start())
    world.write_down()
    world.start_gate()
    world.start_vendor()
    loop.advance(10.0)
    yield world
    world.leave()
    loop.close()


def say(world, device, health, seconds=10.0):
    """What the vendor's plugin calls a device, for some seconds."""
    world.vendor.devices[device] = health
    world.vendor.show()
    world.loop.advance(seconds)


def test_a_vendors_unhealthy_ends_the_proof_without_a_tenancy(world):
    device, other = world.uuids
    before = scrubs(world, device)
    say(world, device, UNHEALTHY, 60.0)
    (distrusted,) = rows(world, ev.Distrusted)
    assert distrusted.why == directory.DOUBT
    assert (scrubs(world, device), world.state(device)) == (before + 1, State.CLEAN)
    assert rows(world, (ev.Granted, ev.GrantedUnproven, ev.PutInUse, ev.Released)) == []
    assert world.shown["nvidia.com/gpu"] == {device: UNHEALTHY, other: HEALTHY}
    say(world, device, HEALTHY)
    assert world.shown["nvidia.com/gpu"] == dict.fromkeys(world.uuids, HEALTHY)


def test_a_granted_pod_starts_on_a_device_scrubbed_since(world):
    device, _ = world.uuids
    admission = world.on("kubelet", world.admit("pod", 1))
    world.loop.advance(0.5)
    assert admission.result()
    ((_, [device]),) = world.holding.values()
    say(world, device, UNHEALTHY, 0.5)
    assert world.record(device).grant is None
    start = world.on("kubelet", world.run_pod("pod", 1))
    world.loop.advance(60.0)
    assert start.done()
    assert world.wrong == []
    assert world.record(device).owner.container == "pod"


def test_an_older_service_keeps_a_doubted_device_out(world, monkeypatch):
    """An update of both programs runs a new plugin beside an old service for a moment."""
    device, other = world.uuids

    async def older(_self, _device, _why, **_) -> None:
        raise Refused(Reason.INTERNAL, "the scrub service is older than this program")

    with monkeypatch.context() as patch, capture_logs() as lines:
        patch.setattr(DirectClient, "distrust", older)
        say(world, device, UNHEALTHY)
        say(world, device, HEALTHY)
    (said,) = [line for line in lines if line["event"] == "cannot end the proof of a device"]
    assert (said["device"], said["error"]) == (device, "the scrub service is older than this program")
    assert world.shown["nvidia.com/gpu"] == {device: UNHEALTHY, other: HEALTHY}
    world.loop.advance(60.0)
    assert len(rows(world, ev.Distrusted)) == 1
    assert world.shown["nvidia.com/gpu"] == dict.fromkeys(world.uuids, HEALTHY)
