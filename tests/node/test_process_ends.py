"""The end of a process is reported at once, and of no other."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog.testing

from scrubber.node.process_ends import ProcessEnds
from tests.patience import WITHIN


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture
async def ends():
    it = ProcessEnds()
    yield it
    it.close()


@pytest.fixture
def born():
    """Processes that stay until they are ended."""
    made: list[subprocess.Popen[bytes]] = []

    def one() -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        return made[-1]

    yield one
    for process in made:
        process.kill()
        process.communicate()


async def reported(ends) -> frozenset[str]:
    async with asyncio.timeout(WITHIN):
        found: frozenset[str] = await ends.next()
        return found


def yes() -> bool:
    return True


async def test_the_end_of_a_process_is_reported_once(ends, born):
    one, other = born(), born()
    ends.follow("one", one.pid, yes)
    ends.follow("other", other.pid, yes)
    waiting = asyncio.create_task(reported(ends))
    await asyncio.sleep(0)
    one.kill()
    assert await waiting == {"one"}
    assert one.returncode is None, "its parent may take its time to collect it"
    other.kill()
    assert await reported(ends) == {"other"}


async def test_an_ended_or_replaced_process_is_reported_at_once(ends, born):
    one, other = born(), born()
    one.kill()
    one.communicate()
    ends.follow("gone", one.pid, yes)
    ends.follow("another", other.pid, lambda: False)
    assert await reported(ends) == {"gone", "another"}


async def test_only_the_last_one_is_waited_for_under_a_name(ends, born):
    before, after = born(), born()
    ends.follow("it", before.pid, yes)
    ends.follow("it", after.pid, yes)
    ends.follow("it", after.pid, lambda: pytest.fail("it is known already"))
    before.kill()
    before.communicate()
    waiting = asyncio.create_task(reported(ends))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    after.kill()
    assert await waiting == {"it"}


@pytest.mark.parametrize(
    ("asked", "number"),
    [("pidfd_open", errno.EPERM), ("pidfd_open", errno.EMFILE), ("same", errno.EMFILE)],
    ids=["no right to it", "no more files", "none to read it with"],
)
async def test_a_process_that_cannot_be_followed_is_reported_once(ends, born, monkeypatch, asked, number):
    """An old seccomp profile knows no pidfds: the process must be searched each time."""
    one = born()
    before = open_files()

    def refused(*_pid: int) -> int:
        raise OSError(number, os.strerror(number))

    with structlog.testing.capture_logs() as lines, monkeypatch.context() as patch:
        if asked == "pidfd_open":
            patch.setattr(os, asked, refused)
        for _ in range(3):
            ends.follow("one", one.pid, refused)
    assert [it["log_level"] for it in lines] == ["warning"]
    assert open_files() == before
    ends.follow("one", one.pid, yes)  # another look, which may
    one.kill()
    assert await reported(ends) == {"one"}


async def test_no_descriptor_stays_open(born):
    before = open_files()
    ends = ProcessEnds()
    one, other, another = born(), born(), born()
    opened = open_files()
    ends.follow("one", one.pid, yes)
    ends.follow("other", other.pid, yes)
    ends.follow("another", another.pid, lambda: False)
    assert open_files() == opened + 2
    another.kill()
    ends.follow("another", another.pid, yes)
    assert {"another"} <= await reported(ends)
    while "another" in ends._followed:
        await reported(ends)
    assert open_files() == opened + 2
    ends.forget("one")
    ends.forget("one")
    ends.close()
    assert open_files() == opened
    assert opened > before  # of the two processes
