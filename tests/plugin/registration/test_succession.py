"""The turns of two plugins. tests/plugin/test_app.py shows a whole update."""

import asyncio

import pytest

from plugin.registration import succession
from plugin.registration.succession import Turn
from tests.patience import WITHIN


@pytest.fixture
def turns(short_tmp):
    turns = [Turn(short_tmp), Turn(short_tmp)]
    yield turns
    for turn in turns:
        turn.end()


async def test_a_plugin_that_never_registers_holds_up_no_stop(turns, monkeypatch):
    monkeypatch.setattr(succession, "WITHIN", 0.05)
    last, following = turns
    await last.begin(lambda: None)
    waits = asyncio.Event()
    begun = asyncio.create_task(following.begin(waits.set))
    async with asyncio.timeout(WITHIN):
        await waits.wait()
        await last.hand_over()
        await begun  # it has the turn, although the last one still serves


async def test_a_plugin_has_its_turn_until_it_hands_over(turns):
    last, following = turns
    await last.begin(lambda: None)
    waits = asyncio.Event()
    begun = asyncio.create_task(following.begin(waits.set))
    async with asyncio.timeout(WITHIN):
        await waits.wait()
    await asyncio.sleep(5 * succession.TRIES_EVERY)  # what is counted is what does not happen meanwhile
    assert not begun.done()
    leaving = asyncio.create_task(last.hand_over())
    async with asyncio.timeout(WITHIN):
        await begun
        assert not leaving.done(), "the last plugin serves until the next one has registered"
        following.registered()
        await leaving
