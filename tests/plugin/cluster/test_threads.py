"""Look-ups never hold up an end."""

import asyncio
import subprocess
import sys

import pytest

from plugin.cluster.threads import Forgetful

HUNG = """
import asyncio, threading
from plugin.cluster.threads import Forgetful

async def main():
    loop = asyncio.get_running_loop()
    loop.set_default_executor(Forgetful())
    begun = asyncio.Event()
    def hang():
        loop.call_soon_threadsafe(begun.set)
        threading.Event().wait()
    loop.run_in_executor(None, hang)
    await begun.wait()

asyncio.run(main())
print("ended")
"""


def test_a_process_ends_while_a_look_up_hangs():
    ended = subprocess.run([sys.executable, "-c", HUNG], capture_output=True, text=True, timeout=20, check=True)
    assert ended.stdout == "ended\n"


async def test_results_and_errors_come_back():
    loop = asyncio.get_running_loop()
    executor = Forgetful()
    assert await loop.run_in_executor(executor, max, 1, 2) == 2
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(executor, divmod, 1, 0)
