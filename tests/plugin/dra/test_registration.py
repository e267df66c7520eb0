"""The two sockets of the driver."""

import asyncio
import socket
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from plugin.dra import registration
from plugin.dra.dra_driver import HEALTHS
from plugin.kubelet_api import pluginregistration_pb2 as wire
from plugin.kubelet_api import pluginregistration_pb2_grpc
from plugin.registration.registration_state import Cause, NotRegistered
from tests.patience import WITHIN
from tests.plugin.live_plugin import until_files

DRIVER = "gpu.autoclave.internal"


@pytest.fixture
def places(short_tmp):
    """Where the sockets are."""
    for name in ("plugins", "registry"):
        (short_tmp / name).mkdir()
    return short_tmp / "plugins/dra-2.sock", short_tmp / f"registry/{DRIVER}-2-reg.sock"


@asynccontextmanager
async def registered(places):
    """The driver serves, and a kubelet that knows its name asks."""
    notified: asyncio.Queue[NotRegistered | None] = asyncio.Queue()
    service, shown = places
    work = registration.stay_registered(
        DRIVER, lambda _server: None, service, shown, lambda _, failure: notified.put_nowait(failure)
    )
    task = asyncio.create_task(work)
    await until_files(shown.exists, shown.parent)
    async with grpc.aio.insecure_channel(f"unix:{shown}") as channel:
        yield pluginregistration_pb2_grpc.RegistrationStub(channel), notified
    task.cancel()
    await asyncio.wait({task})


async def test_the_kubelet_gets_name_kind_and_socket(places):
    async with registered(places) as (kubelet, notified):
        info = await kubelet.GetInfo(wire.InfoRequest(), timeout=WITHIN)
        assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(places[0]))
        assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin", *HEALTHS]
        await kubelet.NotifyRegistrationStatus(wire.RegistrationStatus(plugin_registered=True), timeout=WITHIN)
        assert await notified.get() is None


async def test_sockets_of_killed_drivers_are_removed(places, short_tmp):
    """The driver of another pod that still serves keeps its sockets."""
    names = ("plugins/dra-1.sock", f"registry/{DRIVER}-1-reg.sock", f"registry/{DRIVER}-0-reg.sock")
    servers = [socket.socket(socket.AF_UNIX) for _ in names]
    for server, name in zip(servers, names, strict=True):
        server.bind(str(short_tmp / name))
    servers[1].listen()
    servers[0].close()
    servers[2].close()
    async with registered(places) as (kubelet, notified):
        await kubelet.NotifyRegistrationStatus(wire.RegistrationStatus(plugin_registered=True), timeout=WITHIN)
        await notified.get()
        left = {file.name for folder in ("plugins", "registry") for file in (short_tmp / folder).glob("[!.]*")}
    servers[1].close()
    assert left == {"dra-2.sock", f"{DRIVER}-1-reg.sock", f"{DRIVER}-2-reg.sock"}


async def test_a_refusal_of_the_kubelet_is_an_event(places):
    async with registered(places) as (kubelet, notified), asyncio.timeout(WITHIN):
        refusal = wire.RegistrationStatus(plugin_registered=False, error="no such version")
        await kubelet.NotifyRegistrationStatus(refusal)
        failure = await notified.get()
    assert failure is not None
    assert (failure.cause, failure.detail) == (Cause.REFUSED, "the kubelet answers: no such version")


@pytest.mark.parametrize("which", [0, 1], ids=["its own", "the one in the registry"])
async def test_a_removed_socket_is_served_again(places, which):
    async with registered(places) as (kubelet, notified), asyncio.timeout(WITHIN):
        await kubelet.NotifyRegistrationStatus(wire.RegistrationStatus(plugin_registered=True))
        assert await notified.get() is None
        places[which].unlink()
        lost = await notified.get()
        assert lost is not None
        assert lost.cause is Cause.SOCKET_GONE
        await until_files(lambda: all(place.exists() for place in places), *(place.parent for place in places))
