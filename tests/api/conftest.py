"""The real service behind real doors, in the loop of the test."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from ground import paths, unix_sockets
from scrub_api import admin_client, client
from scrubber import assembly
from scrubber.api import server
from scrubber.config import BackendChoice, ScrubberConfig
from scrubber.metrics.counters import ServiceCounters
from scrubber.policy import ActivePolicy


class House:
    """A service with two simulated GPUs, and the ways in."""

    def __init__(self, root: Path) -> None:
        self.config = ScrubberConfig(
            BackendChoice.SIMULATED,
            policy="fast",
            state_dir=root / "state",
            run_dir=root / "run",
            kubelet_dir=root,
            pod_logs_dir=root / "pods",
            simulated_gpus=2,
            simulated_memory=2**20,
        )
        unix_sockets.lock_run_dir(self.config.run_dir)
        self.backend = assembly.build_backend(self.config)
        counters = ServiceCounters(CollectorRegistry())
        ledger, pool = assembly.open_ledger(self.config, counters), assembly.build_pool(self.config)
        self.built = assembly.build(self.config, self.backend, ActivePolicy("fast"), ledger, counters, pool)
        self.doors = server.GrpcServers(self.built.service, self.built.reporter, counters, self.config.run_dir)

    async def open(self):
        await self.built.monitor.round()
        await self.doors.open()
        self.uuids = sorted(self.built.ledger.records)
        for uuid in self.uuids:
            await self.clean(uuid)

    async def clean(self, uuid):
        while (running := self.built.service.context.jobs.of(uuid)) is not None:
            await running.finished.wait()

    async def close(self):
        await self.built.service.stop()
        await self.built.pool.close()
        await self.doors.close(0)
        await self.built.ledger.close()
        self.backend.close()  # all programs of a user share few inotify instances

    def scrubber(self):
        return client.ScrubberClient(paths.scrubber_socket(self.config.run_dir))

    def admin(self):
        return admin_client.AdminClient(paths.admin_socket(self.config.run_dir))


@pytest.fixture
async def house(short_tmp):
    house = House(short_tmp)
    await house.open()
    yield house
    await house.close()
