"""One server on one socket: appears complete, knows its streams, ends at once and cleans up after itself only."""

import asyncio
import os
import socket
import stat
import time
from functools import partial

import grpc
import pytest

from ground.errors import FatalError
from plugin.kubelet_api import deviceplugin_pb2 as pb
from plugin.kubelet_api import deviceplugin_pb2_grpc, pluginregistration_pb2, pluginregistration_pb2_grpc
from plugin.registration import endpoint, sockets
from plugin.registration.registration_state import Cause, NotRegistered
from tests.patience import WITHIN
from tests.plugin.kubelet_server import Plugin

pytestmark = pytest.mark.usefixtures("long_waits")


@pytest.fixture
def path(short_tmp):
    return short_tmp / "gpu.sock"


def stub(channel):
    return deviceplugin_pb2_grpc.DevicePluginStub(channel)


class Failing(Plugin):
    """A servicer whose stream breaks by itself."""

    async def ListAndWatch(self, _request, _context):  # noqa: N802 - the proto names it
        yield pb.ListAndWatchResponse()
        raise RuntimeError("broken on purpose")


async def test_the_socket_appears_when_it_serves_and_is_private(path):
    seen: list[bool] = []

    def add(server: grpc.aio.Server) -> None:
        seen.append(path.exists())
        Plugin().add(server)

    async with endpoint.serve(path, add) as served:
        assert seen == [False]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (await served.prove()).pre_start_required
        assert [entry.name for entry in path.parent.iterdir()] == ["gpu.sock"]
    assert list(path.parent.iterdir()) == []


async def test_a_socket_of_a_killed_process_is_replaced(path):
    for left in (path, sockets.hidden(path)):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.bind(os.fspath(left))
    async with endpoint.serve(path, Plugin().add) as served:
        await served.prove()
    assert list(path.parent.iterdir()) == []


async def test_an_unwritable_directory_is_named(path):
    sockets.hidden(path).mkdir()
    with pytest.raises(FatalError, match="cannot serve on"):
        async with endpoint.serve(path, Plugin().add):
            pass


async def test_a_socket_of_another_program_is_kept_at_the_stop(path):
    with socket.socket(socket.AF_UNIX) as other:
        async with endpoint.serve(path, Plugin().add) as served:
            path.unlink()
            other.bind(os.fspath(path))
            assert served.gone()
        assert path.is_socket()


async def test_a_socket_with_a_new_label_still_exists(path):
    async with endpoint.serve(path, Plugin().add) as served:
        path.chmod(0o660)
        assert not served.gone()
        path.unlink()
        assert served.gone()


async def test_another_socket_at_our_path_does_not_prove_serving(path, short_tmp):
    async with endpoint.serve(path, Plugin().add) as served, endpoint.serve(short_tmp / "b.sock", Plugin().add):
        (short_tmp / "b.sock").replace(path)
        with pytest.raises(NotRegistered) as error:
            await served.prove()
    assert error.value.cause is Cause.NOT_SERVING


async def test_the_check_of_our_endpoint_fails_with_its_service(path):
    plugin = Plugin()
    plugin.fail["GetDevicePluginOptions"] = "broken on purpose"
    async with endpoint.serve(path, plugin.add) as served:
        with pytest.raises(NotRegistered, match="does not answer: INTERNAL: broken on purpose"):
            await served.prove()


async def test_streams_are_counted_as_they_come_and_go(path):
    async with endpoint.serve(path, Plugin().add) as served, endpoint.dial(path) as channel:
        streams = served.streams
        first, second = stub(channel).ListAndWatch(pb.Empty()), stub(channel).ListAndWatch(pb.Empty())
        for stream in (first, second):
            message = await stream.read()
            assert isinstance(message, pb.ListAndWatchResponse)
            assert [device.ID for device in message.devices] == ["GPU-1"]
        assert (streams.opened, streams.ended, streams.open) == (2, 0, 2)
        first.cancel()
        await asyncio.wait_for(streams.until(lambda: streams.ended == 1), WITHIN)
        assert streams.open == 1


async def test_a_stream_that_breaks_on_our_side_counts_as_ended(path, caplog):
    async with endpoint.serve(path, Failing().add) as served, endpoint.dial(path) as channel:
        stream = stub(channel).ListAndWatch(pb.Empty())
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async for _ in stream:
                pass
        assert error.value.code() is grpc.StatusCode.UNKNOWN
        assert (served.streams.opened, served.streams.ended) == (1, 1)
    assert "broken on purpose" in caplog.text  # grpc tells it


async def test_a_stream_that_opens_during_the_stop_ends_cleanly(path):
    async with endpoint.serve(path, Plugin().add) as served, endpoint.dial(path) as channel:
        served.streams.close()
        call = stub(channel).ListAndWatch(pb.Empty(), timeout=WITHIN)
        assert [message async for message in call] == []  # EOF, not the deadline
        assert served.streams.open == 0


def opened(served, count):
    return served.streams.opened == count


async def test_a_stream_that_stops_inside_a_message_ends_cleanly(path):
    """Many at once, cut off at every moment: some of them while they send."""
    for delay in range(40):
        async with endpoint.dial(path) as channel:
            async with endpoint.serve(path, Plugin().add) as served:
                calls = [stub(channel).ListAndWatch(pb.Empty()) for _ in range(8)]
                async with asyncio.timeout(WITHIN):
                    await served.streams.until(partial(opened, served, 8))
                await asyncio.sleep(delay * 20e-6)
                began = time.monotonic()
            assert time.monotonic() - began < WITHIN
            async with asyncio.timeout(WITHIN):
                for call in calls:
                    assert [len(message.devices) async for message in call] in ([], [1])  # EOF, not an error


async def test_an_answer_in_flight_is_still_given_at_our_end(path):
    plugin = Plugin()
    plugin.hold["Allocate"] = asyncio.Event()
    async with endpoint.dial(path) as channel:
        async with endpoint.serve(path, plugin.add):
            call = stub(channel).Allocate(pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest()]))
            await asyncio.wait_for(plugin.allocating.wait(), WITHIN)
            asyncio.get_running_loop().call_later(0.05, plugin.hold["Allocate"].set)
        assert len((await call).container_responses) == 1


async def test_a_hanging_call_does_not_delay_the_stop(path, monkeypatch):
    monkeypatch.setattr(endpoint, "GRACE", 0.1)
    plugin = Plugin()
    plugin.hold["Allocate"] = asyncio.Event()
    async with endpoint.dial(path) as channel:
        async with endpoint.serve(path, plugin.add):
            call = stub(channel).Allocate(pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest()]))
            await asyncio.wait_for(plugin.allocating.wait(), WITHIN)
            began = time.monotonic()
        assert time.monotonic() - began < WITHIN
        with pytest.raises(grpc.aio.AioRpcError):
            await call


async def test_other_services_on_the_same_socket_are_left_alone(path):
    async with endpoint.serve(path, Plugin().add), endpoint.dial(path) as channel:
        other = pluginregistration_pb2_grpc.RegistrationStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await other.GetInfo(pluginregistration_pb2.InfoRequest())
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
