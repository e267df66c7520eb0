"""Every test of the service runs on virtual time, in worlds that are held against the truth when the test is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest

from tests.service.virtual import VirtualLoop
from tests.service.world import World

Builder = Callable[..., World]
Beginner = Callable[..., Awaitable[World]]


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
def begin(build, tmp_path) -> Beginner:
    """Worlds whose devices are clean. ``policy`` is the name of a policy, or what its file says."""

    async def one(*, policy: str = "default", **kwargs) -> World:
        file = tmp_path / "policy.yaml"
        if ":" in policy:
            file.write_text(f"name: of-this-test\n{policy}\n")
        world: World = build(policy=str(file) if ":" in policy else policy, **kwargs)
        await world.start()
        await world.clean()
        return world

    return one


@pytest.fixture
async def world(begin) -> World:
    """Two clean devices under policy ``default``."""
    it: World = await begin()
    return it
