"""The end of a process or of a container is reported at once, and of no other."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
import structlog.testing

from scrubber.node import group_places
from scrubber.observe.owner_ends import Ends
from tests.node.control_groups import ID, INNER, UID, Process, pod
from tests.patience import WITHIN
from tests.pod_groups import roots


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture
async def ends():
    it = Ends()
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
    ends.watch("one", one.pid, yes)
    ends.watch("other", other.pid, yes)
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
    ends.watch("gone", one.pid, yes)
    ends.watch("another", other.pid, lambda: False)
    assert await reported(ends) == {"gone", "another"}


async def test_only_the_last_one_is_waited_for_under_a_name(ends, born):
    before, after = born(), born()
    ends.watch("it", before.pid, yes)
    ends.watch("it", after.pid, yes)
    ends.watch("it", after.pid, lambda: pytest.fail("it is known already"))
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
            ends.watch("one", one.pid, refused)
    assert [it["log_level"] for it in lines] == ["warning"]
    assert open_files() == before
    ends.watch("one", one.pid, yes)  # another look, which may
    one.kill()
    assert await reported(ends) == {"one"}


# Each process of the chain starts the next one and ends; the last one waits, and can be told by its line.
CHAIN = """
import os, sys
for _ in range(20):
    if os.fork():
        os._exit(0)
print(os.getpid(), flush=True)
input()
"""


@pytest.fixture
def chain():
    """Starts a chain of forks in a group, and waits until its last process is there."""
    started: list[subprocess.Popen[bytes]] = []

    def run(place: Path) -> subprocess.Popen[bytes]:
        code = f"open('{place}/cgroup.procs', 'w').write('0')\n{CHAIN}"
        words = [sys.executable, "-S", "-c", code]
        started.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert started[-1].stdout is not None
        started[-1].stdout.readline()
        return started[-1]

    yield run
    for process in started:
        process.communicate()


def ended(process: Process, place: Path) -> None:
    """The last process of a group has ended, and the kernel has reported it: up to 10 ms later, if it has just come."""
    with (place / "cgroup.events").open() as events:
        change = select.poll()
        change.register(events, select.POLLPRI)
        assert events.read().startswith("populated 1")
        process.collect()
        change.poll()


@pytest.fixture
async def groups():
    """Follows containers by their control groups."""
    it = Ends(roots().get("second"))
    yield it
    it.close()


@pytest.mark.parametrize("group", ["second"], indirect=True)
async def test_a_container_has_ended_with_its_last_process(group, enter, groups):
    place = pod("systemd, burstable")
    sandbox, other = enter(group(f"{place}/{ID}")), enter(group(f"{place}/{INNER}"))
    groups.watch("it", sandbox.pid, yes, UID)
    sandbox.collect()
    other.collect()
    assert await reported(groups) == {"it"}
    late = enter(group(f"{place}/{INNER}"))
    groups.watch("it", late.pid, yes, UID)
    waiting = asyncio.create_task(reported(groups))
    joined = enter(group(f"{place}/{ID}"))
    late.collect()
    groups.watch("it", joined.pid, lambda: pytest.fail("it is watched already"), UID)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.05)
    joined.collect()
    assert await waiting == {"it"}


@pytest.mark.parametrize("group", ["second"], indirect=True)
async def test_a_chain_of_forks_has_not_ended(group, enter, groups, chain):
    """No process of it can be watched: each has ended before it can be looked at."""
    place = group(pod("cgroupfs, guaranteed"))
    sandbox = enter(place)
    groups.watch("it", sandbox.pid, yes, UID)
    forks = chain(place)
    sandbox.collect()
    waiting = asyncio.create_task(reported(groups))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.05)
    forks.communicate()
    assert await waiting == {"it"}


@pytest.mark.parametrize("group", ["second"], indirect=True)
@pytest.mark.parametrize("removed", [False, True], ids=["empty", "removed"])
async def test_an_ended_container_is_reported_at_once(group, enter, groups, monkeypatch, removed):
    """It ends after one of its processes was seen, and before it is watched."""
    place = group(pod("cgroupfs, guaranteed"))
    process = enter(place)
    find = group_places.unified_group

    def find_just_before_the_end(at: Path, name: str, process_at: str) -> Path | None:
        found = find(at, name, process_at)
        ended(process, place)
        return found / "gone" if removed and found is not None else found

    monkeypatch.setattr(group_places, "unified_group", find_just_before_the_end)
    before = open_files()
    groups.watch("it", process.pid, yes, UID)
    assert await reported(groups) == {"it"}
    assert open_files() == before


@pytest.mark.parametrize("group", ["second"], indirect=True)
async def test_a_group_may_be_gone_when_its_end_is_read(group, enter, groups):
    place = group(pod("cgroupfs, guaranteed"))
    process = enter(place)
    groups.watch("it", process.pid, yes, UID)
    ended(process, place)
    place.rmdir()
    assert await reported(groups) == {"it"}
    place.mkdir()


@pytest.mark.parametrize("group", ["first"], indirect=True)
async def test_without_a_unified_group_a_process_is_followed(group, enter, groups):
    place = pod("cgroupfs, guaranteed")
    sandbox, _other = enter(group(f"{place}/{ID}")), enter(group(f"{place}/{INNER}"))
    groups.watch("it", sandbox.pid, yes, UID)
    sandbox.collect()
    assert await reported(groups) == {"it"}


@pytest.mark.parametrize("group", ["second"], indirect=True)
async def test_a_process_gives_way_to_its_container(group, enter, groups):
    before, process = open_files(), enter(group(pod("cgroupfs, guaranteed")))
    groups.watch("it", process.pid, yes)
    groups.watch("it", process.pid, lambda: pytest.fail("the process is watched already"))
    groups.watch("it", process.pid, lambda: pytest.fail("its container is to be watched"), UID)
    assert open_files() == before + 2
    groups.watch("it", process.pid, yes)
    assert open_files() == before + 1
    groups.close()
    assert open_files() == before


async def test_no_descriptor_stays_open(born):
    before = open_files()
    ends = Ends()
    one, other, another = born(), born(), born()
    opened = open_files()
    ends.watch("one", one.pid, yes)
    ends.watch("other", other.pid, yes)
    ends.watch("another", another.pid, lambda: False)
    assert open_files() == opened + 2
    another.kill()
    ends.watch("another", another.pid, yes)
    assert {"another"} <= await reported(ends)
    while "another" in ends._watched:
        await reported(ends)
    assert open_files() == opened + 2
    ends.forget("one")
    ends.forget("one")
    ends.close()
    assert open_files() == opened
    assert opened > before  # of the two processes
