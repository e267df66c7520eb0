"""The service under measurement: a process of its own, in a directory of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from demo.containers import ContainerRunner
from demo.installation import ByPlugin, Installation
from demo.stage import Stage


@asynccontextmanager
async def service(
    gpus: int,
    memory: str = "1MiB",
    policy: str = "fast",
    runs: type[ContainerRunner] = ContainerRunner,
    installed_as: type[Installation] = ByPlugin,
    *,
    fenced: bool = True,
) -> AsyncIterator[Stage]:
    """A running service whose GPUs are all clean. ``fenced``: behind a fence, where this user can have one."""
    stage = Stage(gpus, memory=memory, policy=policy, runs=runs, installed_as=installed_as, fenced=fenced)
    stage.service.module = "benchmarks.whole_node"
    try:
        await stage.start()
        await all_clean(stage)
        yield stage
    finally:
        await stage.clear_away(keep=False)


async def all_clean(stage: Stage, within: float = 300.0) -> None:
    """Wait until every GPU is clean."""
    ends = asyncio.get_running_loop().time() + within
    async with stage.admin() as admin:
        seen = 0
        while asyncio.get_running_loop().time() < ends:
            status = await admin.status(newer_than=seen, wait=0.5 if seen else 0.0)
            if all(device.state == "clean" for device in status.devices):
                return
            seen = status.service.ledger_rows
    raise TimeoutError(f"not every GPU was clean within {within:g} s")
