"""Every reason to register again and every rule of how, over real sockets, the kubelet's side in the same loop."""

import asyncio
import gc
import os
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import tenacity
from structlog.testing import capture_logs

from ground import unix_sockets
from plugin.kubelet_api import deviceplugin_pb2, deviceplugin_pb2_grpc
from plugin.registration import endpoint, kubelet, registration_state, sockets
from plugin.registration.kubelet import KubeletRegistration
from plugin.registration.registration_state import Cause
from tests.patience import WITHIN
from tests.plugin.kubelet_server import RESOURCE, Kubelet, Plugin, SeenEvents, hears, running

ENDPOINT = re.compile(r"autoclave/example\.com_gpu-[\w-]{4}\.sock")
GRPC_PAUSES = 1.0  # seconds, about, after a connection that failed

pytestmark = pytest.mark.usefixtures("long_waits")


@pytest.fixture
def seen_events():
    return SeenEvents()


@pytest.fixture
def plugin():
    return Plugin()


@pytest.fixture
def home(short_tmp):
    with sockets.sole_instance(short_tmp):
        yield short_tmp


@pytest.fixture
def registration(home, seen_events, plugin):
    return KubeletRegistration(RESOURCE, plugin.add, home, seen_events)


@pytest.fixture
async def door(home) -> AsyncIterator[Kubelet]:
    """A kubelet that is not up yet."""
    it = Kubelet(home)
    yield it
    await it.stop()


async def succeeds(seen_events, times=1):
    """The kubelet opens a stream before its Register returns. Only after that return is the plugin registered."""
    async with asyncio.timeout(WITHIN):
        await seen_events.until(lambda: len(seen_events.registered) >= times)


def own_sockets(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_socket() and path.parent != home)


async def test_a_plugin_registers_with_a_kubelet_that_is_there(registration, door, seen_events):
    await door.start()
    with capture_logs() as logs:
        async with running(registration):
            await door.knows()
            await succeeds(seen_events)
    request = door.registers[0]
    assert (request.version, request.resource_name) == ("v1beta1", RESOURCE)
    assert ENDPOINT.fullmatch(request.endpoint)
    assert request.options.pre_start_required  # what the servicer says of itself
    assert seen_events.registered == [RESOURCE]
    logged = [line for line in logs if line["event"] == "registered"]
    assert [(line["resource"], line["endpoint"]) for line in logged] == [(RESOURCE, request.endpoint)]
    assert 0 < logged[0]["seconds"] < WITHIN
    assert len(door.registers) == 1


async def test_a_replaced_kubelet_socket_is_a_new_kubelet(registration, door, home, seen_events):
    await door.start()
    async with running(registration):
        await door.knows()
        await succeeds(seen_events)
        first = home / "first.sock"
        door.path.rename(first)  # the old one lives on: its stream stays open
        successor = Kubelet(home)
        try:
            await successor.start()
            await successor.knows()
        finally:
            await successor.stop()
    assert seen_events.causes()[0] is Cause.KUBELET_CHANGED
    assert len(successor.registers) == 1


async def test_a_removed_socket_is_made_and_registered_again(registration, door, home, seen_events):
    await door.start()
    async with running(registration):
        for count in range(1, 11):
            await door.knows(count)
            await succeeds(seen_events, count)
            (home / door.registers[-1].endpoint).unlink()
            await hears(seen_events, Cause.SOCKET_GONE, count)
            await door.until(lambda: not door.listening)
        await door.knows(11)
        assert unix_sockets.connect_error(home / door.registers[-1].endpoint) is None
        assert own_sockets(home) == [door.registers[-1].endpoint]


async def test_each_registration_has_a_socket_of_its_own(registration, door, seen_events, monkeypatch):
    """A kubelet from 1.37 on refuses a socket for ever if it has not noticed the end of its last stream."""
    monkeypatch.setattr(kubelet, "SETTLED", 0.0)
    await door.start()
    async with running(registration):
        await door.knows()
        door.hang_up()
        await door.knows(2)
        await door.stop()
        door.refusal = "device plugin already connected"
        await door.start()
        await hears(seen_events, Cause.REFUSED, 3)
    sockets_ = [request.endpoint for request in door.registers]
    assert len(set(sockets_)) == len(sockets_) >= 5


async def test_a_listener_beside_the_kubelet_may_leave(registration, door, home):
    await door.start()
    async with running(registration):
        await door.knows()
        async with endpoint.dial(home / door.registers[-1].endpoint) as channel:
            stream = deviceplugin_pb2_grpc.DevicePluginStub(channel).ListAndWatch(deviceplugin_pb2.Empty())
            assert await stream.read()
            stream.cancel()
        await asyncio.sleep(0.2)  # what is counted is what does not happen meanwhile
        assert len(door.registers) == 1
        door.hang_up()
        await door.knows(2)


async def test_sockets_of_killed_plugins_are_removed(registration, door, home, seen_events):
    for name in ("example.com_gpu.sock", "example.com_gpu-Zk_9.sock"):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.bind(os.fspath(home / "autoclave" / name))
    await door.start()
    async with running(registration):
        await succeeds(seen_events)
        assert own_sockets(home) == [door.registers[-1].endpoint]


async def test_a_kubelet_that_ends_each_stream_gets_growing_pauses(registration, door, seen_events):
    door.drops = True
    await door.start()
    with capture_logs() as logs:
        async with running(registration):
            await hears(seen_events, Cause.STREAM_ENDED, 6)
            await asyncio.sleep(1.0)  # what is counted is what happens in a span of time
            assert len(door.registers) < 30
            door.drops = False
            await door.knows(7)
    warned = [line["cause"] for line in logs if line["log_level"] == "warning"]
    assert warned == ["stream-ended"]


async def test_after_a_long_stream_there_is_no_pause(registration, door, seen_events, monkeypatch):
    monkeypatch.setattr(kubelet, "SETTLED", 0.0)
    await door.start()
    began = time.monotonic()
    async with running(registration):
        for count in range(1, 21):
            await door.knows(count)
            door.hang_up()
            await door.until(lambda: not door.listening)
    assert time.monotonic() - began < WITHIN  # with pauses: minutes
    assert set(seen_events.causes()) == {Cause.STREAM_ENDED}


async def test_a_kubelet_that_accepts_and_never_listens_is_asked_again(registration, door, seen_events, monkeypatch):
    monkeypatch.setattr(kubelet, "ASK", 0.05)
    door.ignores = True
    await door.start()
    async with running(registration):
        await hears(seen_events, Cause.NOT_ASKED, 2)
        door.ignores = False
        await door.knows(3)


async def test_a_refused_registration_is_retried_and_logged_once(registration, door, seen_events):
    door.refusal = "requested API version is not supported by kubelet. Supported versions are [v1beta1]"
    await door.start()
    with capture_logs() as logs:
        async with running(registration):
            await hears(seen_events, Cause.REFUSED, 4)
            door.refusal = ""
            await door.knows(5)
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [line["cause"] for line in warnings] == ["refused"]
    assert "Register failed: UNKNOWN: requested API version is not supported" in warnings[0]["error"]
    assert seen_events.failures[0][0] == RESOURCE


async def test_a_new_kubelet_logs_each_cause_again(registration, door, seen_events):
    door.refusal = "not today"
    with capture_logs() as logs:
        async with running(registration):
            for count in (3, 6):
                await door.start()
                await hears(seen_events, Cause.REFUSED, count)
                await door.stop()
    assert [line["cause"] for line in logs if line["log_level"] == "warning"].count("refused") == 2


async def test_a_long_pause_is_cut_short_by_a_new_kubelet(registration, door, seen_events, monkeypatch):
    monkeypatch.setattr(registration_state, "PAUSES", tenacity.wait_fixed(6 * WITHIN))
    door.refusal = "not today"
    await door.start()
    async with running(registration):
        await hears(seen_events, Cause.REFUSED)
        await door.stop()
        door.refusal = ""
        await door.start()
        await door.knows(2)


async def test_nothing_is_registered_while_our_own_socket_does_not_answer(registration, door, seen_events, plugin):
    plugin.fail["GetDevicePluginOptions"] = "broken on purpose"
    await door.start()
    async with running(registration):
        await hears(seen_events, Cause.NOT_SERVING, 4)
        assert door.registers == []
        plugin.fail.clear()
        await door.knows(1)


async def test_a_kubelet_socket_without_a_server_is_not_dialled(registration, home, seen_events, door):
    with socket.socket(socket.AF_UNIX) as raw:
        raw.bind(os.fspath(home / "kubelet.sock"))
        async with running(registration):
            await hears(seen_events, Cause.KUBELET_SILENT, 3)  # bound, and not listening yet
            raw.listen()
            raw.setblocking(False)
            with (await asyncio.wait_for(asyncio.get_running_loop().sock_accept(raw), WITHIN))[0]:
                pass
            await door.start()
            await door.knows(1)


async def test_a_new_kubelet_cancels_a_hanging_register(registration, door, home):
    door.hangs = True
    await door.start()
    async with running(registration):
        await door.until(lambda: len(door.registers) == 1)
        successor = Kubelet(home)
        try:
            await successor.start()
            await successor.knows()
        finally:
            await successor.stop()


@pytest.mark.parametrize("kind", ["absent", "hangs", "deaf", "refuses", "there"])
async def test_a_stop_never_waits_for_the_kubelet(registration, door, home, seen_events, kind):
    deaf = socket.socket(socket.AF_UNIX)
    door.hangs, door.refusal = kind == "hangs", "no" if kind == "refuses" else ""
    if kind == "deaf":  # accepts connections and never says a word
        deaf.bind(os.fspath(home / "kubelet.sock"))
        deaf.listen()
    elif kind != "absent":
        await door.start()
    async with running(registration):
        if kind == "refuses":
            await hears(seen_events, Cause.REFUSED, 5)
        elif kind == "there":
            await door.knows()
        elif kind == "hangs":
            await door.until(lambda: len(door.registers) == 1)
        else:
            await asyncio.sleep(0.05)
    assert own_sockets(home) == []
    deaf.close()


async def test_a_plugin_can_be_started_and_ended_at_any_moment(home, door, plugin):
    await door.start()
    for microseconds in range(0, 12_000, 400):
        task = asyncio.create_task(KubeletRegistration(RESOURCE, plugin.add, home).run())
        await asyncio.sleep(microseconds / 1e6)
        task.cancel()
        async with asyncio.timeout(WITHIN):
            await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert own_sockets(home) == []


async def test_fifty_kubelets_in_a_row_leave_one_socket(registration, door, home):
    await door.start()
    async with running(registration):
        await door.knows()
        await door.stop()
        await door.start()
        await door.knows(2)
        before = await _held()
        took = []
        for count in range(3, 53):
            await door.stop()
            began = time.monotonic()
            await door.start()
            await door.knows(count)
            took.append(time.monotonic() - began)
        assert sorted(took)[len(took) // 2] < GRPC_PAUSES / 2, took
        assert own_sockets(home) == [door.registers[-1].endpoint]
        assert {path.name for path in (home / "autoclave").iterdir()} == {"lock", Path(own_sockets(home)[0]).name}
        after = await _held()
    assert after == before
    assert len(door.registers) == 52


async def _held() -> tuple[int, int]:
    """Descriptors and tasks, once what is ending has ended."""
    found = (0, 0)
    for _ in range(20):
        gc.collect()
        now = (len(list(Path("/proc/self/fd").iterdir())), len(asyncio.all_tasks()))  # noqa: ASYNC240 - not a disk
        if now == found:
            break
        found = now
        await asyncio.sleep(0.05)
    return found


async def test_a_kubelet_socket_behind_a_link_works(registration, door, home, short_tmp):
    elsewhere = short_tmp / "elsewhere"
    elsewhere.mkdir()
    door.path = elsewhere / "kubelet.sock"
    await door.start()
    (home / "kubelet.sock").symlink_to(door.path)
    async with running(registration):
        await door.knows()
