"""What is asked of the scrub service, and what is not even asked."""

import asyncio
import time

import pytest

from ground.errors import InvalidRequest, LedgerUnavailable, NotReady, Reason, Refused, Unreachable
from plugin import hooks as module
from plugin.hooks import Hooks
from tests.patience import WITHIN
from tests.plugin.scrub_server import gpu, hang, no

GPU = "nvidia.com/gpu"
A, B = "GPU-0000", "GPU-0001"
IN_USE = Refused(Reason.IN_USE, "cannot hand out GPU-0000: a process is still on it")


def all_well(shown):
    return shown == {A: True, B: True}


@pytest.fixture
async def listing(door, followed):
    """Two devices, known."""
    door.say(gpu(0), gpu(1), gpu(7, mig=True, resource="nvidia.com/mig-1g.10gb"))
    async with followed() as listing:
        async with asyncio.timeout(WITHIN):
            await listing.until_known()
        yield listing


@pytest.fixture
def hooks(listing):
    """Asks the service of the test."""
    return Hooks(listing._scrubber, listing)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "no device was named"),
        ([[]], "no device was named"),
        ([[A], []], "no device was named"),
        ([[A, A]], "a device was named twice"),
        ([[A], [A]], "a device was named twice"),
        ([["GPU-0000\n"]], "holds a character"),  # and the other rules of tests/scrub_api/test_request_limits.py
        ([["GPU-0009"]], "GPU-0009 is not a device of nvidia.com/gpu"),
        ([["GPU-0007"]], "GPU-0007 is not a device of nvidia.com/gpu"),
        ([[A, "all"]], "all is not a device of nvidia.com/gpu"),
        ([[f"GPU-{it}" for it in range(257)]], "257 devices were named"),
    ],
)
def test_an_invalid_request_is_refused_without_a_request(hooks, door, groups, message):
    with pytest.raises(InvalidRequest, match=message):
        hooks.find(GPU, groups)
    assert door.asked == []


def devices(hooks, *names):
    return hooks.find(GPU, [list(names)])[0]


async def test_all_devices_are_asked_for_together_and_once(hooks, door):
    await hooks.acquire(GPU, devices(hooks, B, A))
    await hooks.start(devices(hooks, A), 30.0)
    assert door.asked == [("acquire", (B, A)), ("start", (A,))]
    assert door.announced == [True]


@pytest.mark.parametrize("kind", [Refused, NotReady])
async def test_a_no_is_passed_on_and_not_asked_again(hooks, door, kind):
    door.answer = no(kind(Reason.IN_USE, "cannot hand out GPU-0000: a process is still on it"))
    with pytest.raises(kind) as refused:
        await hooks.acquire(GPU, devices(hooks, A))
    assert refused.value.reason is Reason.IN_USE
    with pytest.raises(kind):
        await hooks.start(devices(hooks, A), 30.0)
    assert [what for what, _ in door.asked] == ["acquire", "start"]


async def test_the_list_is_unhealthy_before_the_refusal(hooks, door, listing, read):
    door.answer = no(IN_USE, lambda: door.say(gpu(0, healthy=False), gpu(1)))
    reader = read(listing)
    await reader.until(all_well)
    with pytest.raises(Refused):
        await hooks.acquire(GPU, devices(hooks, A))
    assert reader.lists[-1] == {A: False, B: True}


async def test_a_refusal_is_sent_after_the_unhealthy_list(hooks, door, listing, read):
    door.answer = no(IN_USE)
    reader = read(listing)
    await reader.until(all_well)
    begun = time.monotonic()
    with pytest.raises(Refused):
        await hooks.acquire(GPU, devices(hooks, A))
    assert module.SHOWN_WITHIN + module.SETTLING <= time.monotonic() - begun + 0.01 < 2


async def test_an_unreachable_service_makes_all_unhealthy_at_allocate(hooks, door, listing, read):
    door.silence = 60.0
    door.say(*door.devices)
    reader = read(listing)
    await reader.until(all_well)
    wanted = devices(hooks, A)
    await door.close()
    with pytest.raises(Unreachable):
        await hooks.acquire(GPU, wanted)
    assert reader.lists[-1] == {A: False, B: False}


async def test_a_grant_waits_until_its_device_is_shown_healthy(hooks, door, listing, read, monkeypatch):
    """Or the kubelet would refuse the next pod."""
    monkeypatch.setattr(module, "SHOWN_WITHIN", WITHIN)
    monkeypatch.setattr(module, "ALLOCATE_WITHIN", 3 * WITHIN)
    door.say(gpu(0, healthy=False), gpu(1))
    reader = read(listing)
    await reader.until(lambda shown: shown == {A: False, B: True})
    asking = asyncio.create_task(hooks.acquire(GPU, devices(hooks, A)))
    await door.until(lambda door: door.asked)
    await asyncio.wait({asking}, timeout=0.5)  # what is counted is what does not happen meanwhile
    assert not asking.done()
    door.say(gpu(0), gpu(1))
    await asking
    assert all_well(reader.lists[-1])


@pytest.mark.parametrize(
    "answer",
    [hang, no(NotReady(Reason.UNRESPONSIVE, "later")), no(LedgerUnavailable("cannot write: the disk is full"))],
    ids=["silent", "busy", "its disk is full"],
)
async def test_where_containers_wait_an_absent_service_fails_no_pod(hooks, door, listing, read, answer):
    door.silence = 60.0
    door.say(gpu(0, waits=True), gpu(1, waits=True))
    reader = read(listing)
    devices = await waited(hooks, listing)
    door.answer = answer
    assert await hooks.acquire(GPU, devices) == ()
    await door.close()
    assert await hooks.acquire(GPU, devices) == ()
    await reader.until(all_well)
    assert {A: False, B: False} not in reader.lists


async def test_where_containers_wait_a_quarantined_device_is_refused(hooks, door, listing):
    door.say(gpu(0, waits=True), gpu(1, waits=True))
    devices = await waited(hooks, listing)
    door.answer = no(Refused(Reason.QUARANTINED, "it is quarantined"))
    with pytest.raises(Refused):
        await hooks.acquire(GPU, devices)


async def test_containers_wait_as_long_as_the_service_says_so(hooks, door, listing):
    """The fence no longer holds the containers, and the plugin does not know it yet."""
    door.say(gpu(0, waits=True), gpu(1, waits=True))
    devices = await waited(hooks, listing)
    door.answer = no(NotReady(Reason.SCRUBBING, "it is being scrubbed"))
    with pytest.raises(NotReady, match="it is being scrubbed"):
        await hooks.acquire(GPU, devices)


async def waited(hooks, listing):
    """The devices, as soon as the plugin knows that containers wait for them."""
    while not all(device.waits for device in listing.shown(GPU)):
        await listing.until_differs(listing.current())
    return hooks.find(GPU, [[A, B]])[0]


@pytest.mark.parametrize("what", ["acquire", "start"])
async def test_a_restarting_service_fails_no_pod(hooks, door, listing, read, what):
    reader = read(listing)
    await reader.until(all_well)
    wanted = devices(hooks, A)
    await door.close()
    asking = asyncio.create_task(hooks.acquire(GPU, wanted) if what == "acquire" else hooks.start(wanted, 30.0))
    await asyncio.sleep(0.2)  # it has found no owner
    assert not asking.done()
    await door.open()
    await asking
    assert door.asked[-1] == (what, (A,))


async def test_an_unreachable_service_at_a_start_keeps_devices_healthy(hooks, door, listing, read, monkeypatch):
    """The kubelet tries the container again by itself; a flap would cost the node its devices for ten seconds."""
    monkeypatch.setattr(module, "START_WAITS", 0.1)
    door.silence = 60.0
    reader = read(listing)
    await reader.until(all_well)
    wanted = devices(hooks, A)
    await door.close()
    with pytest.raises(Unreachable):
        await hooks.start(wanted, 30.0)
    assert all(map(all_well, reader.lists))


async def test_a_hanging_service_means_a_refusal_before_the_deadline(hooks, door, listing, read, monkeypatch):
    monkeypatch.setattr(module, "ALLOCATE_WITHIN", 0.6)
    door.answer, door.mute, door.silence = hang, True, 60.0
    reader = read(listing)
    await reader.until(all_well)
    with pytest.raises(Unreachable) as late:
        await hooks.acquire(GPU, devices(hooks, A))
    assert late.value.reason is Reason.TIMED_OUT
    assert reader.lists[-1] == {A: False, B: False}


async def test_a_start_takes_no_longer_than_the_kubelet_waits(hooks, door):
    door.answer = hang
    begun = time.monotonic()
    with pytest.raises(Unreachable):
        await hooks.start(devices(hooks, A), 0.2)
    assert time.monotonic() - begun < 2


async def test_acquire_and_start_leave_time_for_a_refusal(hooks, door):
    await hooks.acquire(GPU, devices(hooks, A))
    for left in (30.0, 12.0, None):
        await hooks.start(devices(hooks, A), left)
    assert door.left == [pytest.approx(it, abs=0.9) for it in (4.6, 29.0, 12.0, 29.0)]


async def test_a_service_that_restarts_is_asked_again(hooks, door, listing, read):
    """Between its last answers and its end it says no to everybody; a pod must not fail for that."""
    reader = read(listing)
    await reader.until(all_well)
    down = no(NotReady(Reason.SHUTTING_DOWN, "the scrub service is shutting down; try again when it is back"))
    answers = iter([down, down, door.answer])

    async def in_turn(devices: list[str]) -> None:
        await next(answers)(devices)

    door.answer = in_turn
    await hooks.acquire(GPU, devices(hooks, A))
    assert [what for what, _ in door.asked] == ["acquire"] * 3


async def test_a_late_device_does_not_delay_the_others(hooks, door, listing, read):
    reader = read(listing)
    await reader.until(all_well)
    door.answer = no(NotReady(Reason.UNRESPONSIVE, "cannot say in time whether the devices are free; try again"))
    with pytest.raises(NotReady):
        await hooks.acquire(GPU, devices(hooks, A))
    assert all(shown[B] for shown in reader.lists)
