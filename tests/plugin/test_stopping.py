"""At the end the plugin waits for the calls of the kubelet, and for no look-up."""

import asyncio
import subprocess
import sys

import pytest

from plugin import stopping
from plugin.stopping import DaemonThreadExecutor, InFlight
from tests.patience import WITHIN

HUNG = """
import asyncio, os, signal, sys, threading
from pathlib import Path
from functools import partial
from plugin import config, plugin_process, stopping

class Reporter:
    async def run(self, source):
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        def hang():
            loop.call_soon_threadsafe(begun.set)
            threading.Event().wait()
        loop.run_in_executor(None, hang)
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

stopping.run(partial(plugin_process._work, config.Config(run_dir=Path(sys.argv[1])), [Reporter()]))
print("ended")
"""


def test_a_plugin_stops_while_a_dns_lookup_hangs(short_tmp):
    command = [sys.executable, "-c", HUNG, str(short_tmp)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=True)
    assert ended.stdout.endswith("ended\n")


async def test_results_and_errors_come_back():
    loop = asyncio.get_running_loop()
    executor = DaemonThreadExecutor()
    assert await loop.run_in_executor(executor, max, 1, 2) == 2
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(executor, divmod, 1, 0)


async def test_a_stop_waits_for_the_next_call_of_a_pod(monkeypatch):
    """The kubelet asks for a preference, and then for the devices."""
    monkeypatch.setattr(stopping, "QUIET", WITHIN)
    in_flight = InFlight()
    with in_flight.one():
        drained = asyncio.create_task(in_flight.none(WITHIN))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not drained.done()
    drained.cancel()
