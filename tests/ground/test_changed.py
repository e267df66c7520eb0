"""Every waiting task sees a change."""

import asyncio
from functools import partial

from scrubber.ground.changed import Changed
from tests.patience import WITHIN


async def test_every_waiter_checks_after_each_notification():
    changed = Changed()
    ready: set[int] = set()
    waiting = [asyncio.create_task(changed.until(partial(ready.issuperset, [n]))) for n in range(3)]
    await asyncio.sleep(0)
    for n in range(3):
        ready.add(n)
        changed.notify()
        await asyncio.wait_for(waiting[n], WITHIN)
        assert [task.done() for task in waiting] == [k <= n for k in range(3)]
