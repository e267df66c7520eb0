"""Registration through plugins_registry: the kubelet comes to us; over real sockets."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from asyncinotify import Inotify, Mask
from structlog.testing import capture_logs

from plugin.kubelet_api import deviceplugin_pb2 as pb
from plugin.kubelet_api import deviceplugin_pb2_grpc, pluginregistration_pb2, pluginregistration_pb2_grpc
from plugin.registration import endpoint, registry, sockets
from plugin.registration.events import Cause, Registered
from plugin.registration.registry import RegistryRegistration
from scrubber.ground.errors import FatalError
from tests.patience import WITHIN
from tests.plugin.kubelet_server import RESOURCE, hears, running

NAME = "example.com_gpu-reg.sock"

pytestmark = pytest.mark.usefixtures("long_waits")


@pytest.fixture
def home(short_tmp):
    (short_tmp / "device-plugins").mkdir()
    (short_tmp / "registry").mkdir()
    with sockets.sole_instance(short_tmp / "device-plugins"):
        yield short_tmp


@pytest.fixture
def own(home):
    return home / "device-plugins" / "autoclave" / "example.com_gpu.sock"


@pytest.fixture
def door(home):
    return home / "registry" / NAME


@pytest.fixture
def registration(home, seen_events, plugin):
    return RegistryRegistration(RESOURCE, plugin.add, home / "device-plugins", home / "registry", seen_events)


async def appears(path, before=None):
    """The identity of the socket there, as soon as there is one that is not the one of before."""
    async with asyncio.timeout(WITHIN):
        while sockets.identity(path) in (None, before):  # noqa: ASYNC110 - a file has no event here
            await asyncio.sleep(0.001)
    return sockets.identity(path)


@asynccontextmanager
async def connect(door):
    """What the kubelet does with a socket it found; the stream is open inside."""
    async with endpoint.dial(door) as channel:
        registrar = pluginregistration_pb2_grpc.RegistrationStub(channel)
        info = await registrar.GetInfo(pluginregistration_pb2.InfoRequest())
        async with grpc.aio.insecure_channel(f"unix:{info.endpoint}") as back:
            stub = deviceplugin_pb2_grpc.DevicePluginStub(back)
            await stub.GetDevicePluginOptions(pb.Empty())
            stream = stub.ListAndWatch(pb.Empty())
            await stream.read()
            await registrar.NotifyRegistrationStatus(pluginregistration_pb2.RegistrationStatus(plugin_registered=True))
            yield info


async def test_the_kubelet_gets_the_resource_and_its_socket(registration, own, door, seen_events):
    async with running(registration):
        await appears(door)
        async with connect(door) as info:
            assert (info.type, info.name, list(info.supported_versions)) == ("DevicePlugin", RESOURCE, ["v1beta1"])
            assert info.endpoint == str(own)
            assert [event.resource for event in seen_events.kinds(Registered)] == [RESOURCE]
    assert not own.exists()
    assert list(door.parent.iterdir()) == []


async def test_the_second_socket_appears_when_the_first_answers(registration, own, door, plugin, seen_events):
    plugin.broken = True
    async with running(registration):
        await hears(seen_events, Cause.NOT_SERVING, 4)
        assert own.is_socket()
        assert not door.exists()
        plugin.broken = False
        await appears(door)


async def test_a_refusal_is_logged(registration, door, seen_events):
    with capture_logs() as logs:
        async with running(registration):
            await appears(door)
            async with endpoint.dial(door) as channel:
                status = pluginregistration_pb2.RegistrationStatus(plugin_registered=False, error="no such version")
                await pluginregistration_pb2_grpc.RegistrationStub(channel).NotifyRegistrationStatus(status)
            await hears(seen_events, Cause.REFUSED)
    assert [line["error"] for line in logs if line["log_level"] == "warning"] == [
        "the kubelet answers: no such version"
    ]


async def test_the_second_socket_is_recreated_alone(registration, own, door):
    async with running(registration):
        for _ in range(5):
            before = await appears(door)
            mine = sockets.identity(own)
            door.unlink()
            await appears(door, before)
            async with connect(door):
                assert sockets.identity(own) == mine


async def test_a_recreated_first_socket_is_registered_again(registration, own, door):
    async with running(registration):
        for _ in range(5):
            before, shown = await appears(own), await appears(door)
            own.unlink()
            await appears(own, before)
            await appears(door, shown)
            async with connect(door):
                pass


async def test_a_socket_without_streams_is_shown_again(registration, door, seen_events, monkeypatch):
    monkeypatch.setattr(registry, "SHOW_AGAIN_AFTER", 0.05)
    async with running(registration):
        ours = await appears(door)
        async with connect(door):
            with Inotify() as inotify:
                inotify.add_watch(door.parent, Mask.MOVED_TO)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(inotify.get(), 0.3)
        await hears(seen_events, Cause.STREAM_ENDED)
        with Inotify() as inotify:
            inotify.add_watch(door.parent, Mask.MOVED_TO)
            async for event in inotify:
                if event.name is not None and event.name.name == NAME:
                    break
        await appears(door)
        assert sockets.same(sockets.identity(door), ours)  # the same socket, not a new one


async def test_each_loss_of_the_kubelet_is_logged(registration, door, seen_events):
    with capture_logs() as logs:
        async with running(registration):
            await appears(door)
            for count in range(1, 4):
                async with connect(door):
                    pass
                await hears(seen_events, Cause.STREAM_ENDED, count)
    logged = [line["event"] for line in logs]
    assert logged == ["registered", "not registered"] * 3


@pytest.mark.parametrize("moment", [0.0, 0.002, 0.05])
async def test_a_stop_never_waits(registration, own, door, moment):
    async with running(registration):
        await asyncio.sleep(moment)
    assert not own.exists()
    assert not door.exists()


async def test_a_missing_registry_directory_is_said_plainly(registration, home):
    (home / "registry").rmdir()
    with pytest.raises(FatalError, match=f"there is no directory {home}/registry; mount or make it"):
        await registration.run()
