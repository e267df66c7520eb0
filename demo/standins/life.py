"""One kubelet process: the state that is lost when it ends. A restart is a new process that reads the checkpoint."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import grpc

from demo.standins import checkpoint
from demo.standins.allocation import Allocation
from demo.standins.claims import Claims
from demo.standins.clients import Clients
from demo.standins.cluster import Cluster
from demo.standins.holdings import Holdings
from demo.standins.inventory import ShownDevices
from demo.standins.journal import Journal
from demo.standins.registration import RegistrationService
from demo.standins.registry import Registry
from demo.standins.timing import Timing
from plugin.kubelet_api import deviceplugin_pb2_grpc

SOCKET = "kubelet.sock"
LONGEST = 107  # bytes of a socket's path, by the kernel


class Life:
    """The state of one kubelet process."""

    def __init__(
        self,
        directory: Path,
        journal: Journal,
        active: Callable[[], set[str]],
        ran_before: set[tuple[str, str]],
        cluster: Cluster | None,
        *,
        timing: Timing,
    ) -> None:
        """Read the checkpoints. An invalid one of devices is only logged: then all devices are free."""
        self._directory, self._journal = directory, journal
        try:
            held, resources = checkpoint.read(directory)
        except checkpoint.CorruptCheckpoint as error:
            journal.warn(str(error))
            held, resources = {}, []
        self.inventory = ShownDevices(resources)
        self.holdings = Holdings(held)
        self.clients = Clients(resources, self.inventory, self.save, journal, timing=timing)
        self.allocation = Allocation(
            self.holdings,
            self.inventory,
            self.clients,
            self.save,
            active,
            ran_before=ran_before,
        )
        self.claims = Claims(directory, cluster, journal, timing) if cluster is not None else None
        self.sync_loop = asyncio.Lock()  # the node admits one pod at a time
        self.actions: set[asyncio.Task[object]] = set()
        self._server: grpc.aio.Server | None = None
        self._registration = RegistrationService(directory, self.clients, journal)
        self._registry: Registry | None = None
        self._timing = timing

    def has_readmitted(self) -> bool:
        """Whether the pods from before the start have been admitted again."""
        return self.allocation.ready

    def save(self) -> None:
        """Write the checkpoint."""
        checkpoint.write(self._directory, self.holdings, self.inventory.registered())

    async def begin(self, registry: Path | None) -> None:
        """Remove every socket of the directory, then serve on kubelet.sock."""
        socket = self._directory / SOCKET
        if len(os.fsencode(socket)) > LONGEST:
            raise ValueError(f"cannot serve on {socket}: longer than {LONGEST} bytes; give a shorter directory")
        for entry in self._directory.iterdir():
            if stat.S_ISSOCK(entry.lstat().st_mode):
                entry.unlink()
        (self._directory / "DEPRECATION").touch()
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        deviceplugin_pb2_grpc.add_RegistrationServicer_to_server(self._registration, self._server)
        self._bind(self._server)
        await self._server.start()
        drivers = self.claims.plugins if self.claims is not None else None
        if drivers is not None:
            drivers.begin()
        if registry is not None:
            self._registry = Registry(registry, self.clients, drivers, self._journal, self._timing)
            self._registry.open()

    def _bind(self, server: grpc.aio.Server) -> None:
        """Bind under a temporary name: gRPC removes that name when it stops, but a kubelet leaves its socket there."""
        with tempfile.TemporaryDirectory() as aside:
            alias = Path(aside) / "d"
            alias.symlink_to(self._directory.absolute())
            server.add_insecure_port(f"unix:{alias / SOCKET}")

    async def end(self) -> None:
        """Cancel every action, call and stream; the files stay."""
        for action in self.actions:
            action.cancel()
        await asyncio.gather(*self.actions, return_exceptions=True)  # the callers get the result
        if self._registry is not None:
            await self._registry.close()
        await self._registration.close()
        await self.clients.close()
        if self.claims is not None:
            await self.claims.plugins.close()
        if self._server is not None:
            await self._server.stop(None)
