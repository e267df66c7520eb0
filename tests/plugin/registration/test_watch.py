"""Changes of files are seen at once, or at the next poll if events are missed."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from asyncinotify import Mask
from structlog.testing import capture_logs

from plugin.registration import sockets
from tests.patience import WITHIN


@asynccontextmanager
async def watching(*directories):
    watched = sockets.FileWatch(*directories)
    task = asyncio.create_task(watched.run())
    try:
        await asyncio.sleep(0.02)  # the watch is in place
        yield watched
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def sees(watched, holds):
    """A waiting task sees the change."""
    async with asyncio.timeout(WITHIN):
        await watched.until(holds)


@pytest.mark.usefixtures("long_waits")
async def test_a_new_removed_or_moved_file_is_seen_at_once(short_tmp):
    a, b = short_tmp / "a", short_tmp / "b"
    a.mkdir()
    b.mkdir()
    loop = asyncio.get_running_loop()
    async with watching(a, b) as watched:
        loop.call_later(0.01, (a / "x").touch)
        await sees(watched, (a / "x").exists)
        loop.call_later(0.01, (a / "x").rename, b / "y")
        await sees(watched, (b / "y").exists)
        loop.call_later(0.01, (b / "y").unlink)
        await sees(watched, lambda: not (b / "y").exists())


async def test_a_missed_event_is_seen_at_the_next_poll(short_tmp, monkeypatch):
    monkeypatch.setattr(sockets, "CHANGES", Mask.CLOSE_NOWRITE)  # hears of no file that comes or goes
    monkeypatch.setattr(sockets, "POLL_EVERY", 0.2)
    async with watching(short_tmp) as watched:
        (short_tmp / "x").mkdir()
        await sees(watched, (short_tmp / "x").exists)
        asyncio.get_running_loop().call_later(0.01, (short_tmp / "y").mkdir)
        await sees(watched, (short_tmp / "y").exists)


async def test_without_watches_files_are_polled_and_logged_once(short_tmp, monkeypatch):
    def none_left() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(sockets, "Inotify", none_left)
    monkeypatch.setattr(sockets, "POLL_EVERY", 0.02)
    with capture_logs() as logs:
        async with watching(short_tmp) as watched:
            for name in ("x", "y", "z"):
                asyncio.get_running_loop().call_later(0.01, (short_tmp / name).touch)
                await sees(watched, (short_tmp / name).exists)
    assert [line["event"] for line in logs] == ["cannot watch files, polling every few seconds instead"]


async def test_a_directory_that_is_replaced_is_watched_again(short_tmp, monkeypatch):
    monkeypatch.setattr(sockets, "POLL_EVERY", 0.05)
    directory = short_tmp / "a"
    directory.mkdir()
    async with watching(directory) as watched:
        directory.rmdir()
        await asyncio.sleep(0.1)
        directory.mkdir()
        monkeypatch.setattr(sockets, "POLL_EVERY", 60.0)
        await asyncio.sleep(0.2)  # the last quick look is over: from here on only the watch can tell
        asyncio.get_running_loop().call_later(0.01, (directory / "x").touch)
        await sees(watched, (directory / "x").exists)


@pytest.mark.usefixtures("long_waits")
async def test_a_missing_directory_does_not_blind_us_for_the_other(short_tmp):
    async with watching(short_tmp / "missing", short_tmp) as watched:
        asyncio.get_running_loop().call_later(0.01, (short_tmp / "x").touch)
        await sees(watched, (short_tmp / "x").exists)
