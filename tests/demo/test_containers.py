"""The stage's containers: whoever is cut off while one starts leaves no process behind."""

import asyncio

import pytest

from demo import containers
from scrubber.devices.simulated import containers as simulated
from tests.patience import WITHIN

CUT_OFF = "a-pod-that-is-cut-off"


async def test_a_start_that_is_cut_off_ends_its_process():
    starting = asyncio.create_task(containers.started(CUT_OFF, "read -r _"))  # never says its line
    async with asyncio.timeout(WITHIN):
        while CUT_OFF not in simulated.living():  # noqa: ASYNC110 - /proc tells nobody
            await asyncio.sleep(0.005)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    async with asyncio.timeout(WITHIN):
        while CUT_OFF in simulated.living():  # noqa: ASYNC110 - /proc tells nobody
            await asyncio.sleep(0.005)
