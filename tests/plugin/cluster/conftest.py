"""A reporter between a scrub service that the test speaks for and an API server that does as it is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from plugin.cluster import apiserver
from plugin.cluster.reporter import ClusterReporter
from plugin.cluster.retry_loop import Pace
from plugin.listing import Listing
from tests.plugin.cluster.api_server import NODE, ApiServer

QUICK = Pace(heartbeat=3600, spacing=0, first=0.001, longest=0.02, slow=0.05, first_list_within=10, stop_within=1)


@pytest.fixture
async def api(short_tmp):
    """Open, and well."""
    api = ApiServer(short_tmp)
    await api.open()
    yield api
    await api.leave()


@pytest.fixture
def reporting(api, followed):
    """A listing, and the reporter that tells of it, which runs as long as the context does."""

    @asynccontextmanager
    async def reporting(*, pace=QUICK, within=5.0, annotates=False) -> AsyncIterator[Listing]:
        server = apiserver.ApiServer(api.kubeconfig, NODE, within)
        async with followed() as listing:
            task = asyncio.create_task(ClusterReporter(server, NODE, pace=pace, annotates=annotates).run(listing))
            try:
                yield listing
            finally:
                task.cancel()
                await asyncio.wait({task})
            assert task.cancelled()

    return reporting
