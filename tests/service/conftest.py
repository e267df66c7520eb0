"""Every test of the service runs on virtual time, in worlds that are held against the truth when the test is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from tests.service.virtual import VirtualLoop
from tests.service.world import World

Builder = Callable[..., World]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    """No test of this room ever waits for a real clock."""
    return {"virtual": VirtualLoop}


@pytest.fixture
async def build() -> AsyncIterator[Builder]:
    """Worlds whose service is not up yet; what they saw must be in order at the end, unless ``guilty``."""
    made: list[tuple[World, bool]] = []

    def one(*, guilty: bool = False, **kwargs) -> World:
        made.append((World(**kwargs), guilty))
        return made[-1][0]

    yield one
    for world, guilty in made:
        await asyncio.sleep(0.001)  # what takes no time is over
        if not guilty:
            world.check()
        if world.up:
            await world.die()
        world.close()


@pytest.fixture
async def world(build) -> World:
    """Two clean devices under policy ``default``."""
    it: World = build()
    await it.start()
    await it.clean()
    return it
