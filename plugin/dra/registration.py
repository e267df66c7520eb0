"""Registers the driver with the kubelet: two sockets, and the kubelet finds the second one in its plugin registry.

The sockets of each process have names of their own. The kubelet asks the newest process that it can reach, and so it
knows a driver at each moment of an update or a restart. The sockets of a killed process are removed after that.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from plugin.registration import endpoint, events
from plugin.registration.events import Cause, Listener, RegistrationState
from plugin.registration.registry import Registrar
from plugin.registration.sockets import FileWatch
from scrubber.ground import unix_sockets

KIND = "DRAPlugin"
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")  # the kubelet takes the first it knows


async def stay_registered(
    driver: str, add: endpoint.Add, service_socket: Path, registry_socket: Path, on_event: Listener
) -> None:
    """Serve both sockets until cancelled, and serve them again when one of the files was removed."""

    def note(event: events.Event) -> None:
        if isinstance(event, events.Registered):
            for socket in (service_socket, registry_socket):
                _remove_stale(driver, socket)
        on_event(event)

    state = RegistrationState(driver, str(service_socket), note)
    registrar = Registrar(driver, service_socket, state, KIND, VERSIONS)
    watch = FileWatch(service_socket.parent, registry_socket.parent)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch.run(), name="watch of the sockets")
        while True:
            state.restart()
            # The kubelet calls the driver as soon as it finds the second socket, so the first one serves before.
            async with (
                endpoint.serve(service_socket, add) as served,
                endpoint.serve(registry_socket, registrar.add_to) as shown,
            ):
                await watch.until(lambda: served.gone() or shown.gone())
            state.lost(Cause.SOCKET_GONE, "the file of a socket was removed")


def _remove_stale(driver: str, ours: Path) -> None:
    """Remove the sockets of killed drivers beside ours: the kubelet would call them for ever."""
    for found in (*ours.parent.glob("dra*.sock"), *ours.parent.glob(f"{driver}*-reg.sock")):
        if isinstance(unix_sockets.connect_error(found), ConnectionRefusedError):
            found.unlink(missing_ok=True)
