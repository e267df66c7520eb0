"""The files of the sockets: whose they are, what is said when they cannot be, and how changes of files are seen."""

import asyncio
import os
import re
import socket
import stat
from contextlib import asynccontextmanager

import pytest
from asyncinotify import Mask
from structlog.testing import capture_logs

from ground import unix_sockets
from ground.errors import FatalError
from plugin.registration import sockets
from tests.patience import WITHIN


def bound(path, *, listen=False, backlog=8):
    raw = socket.socket(socket.AF_UNIX)
    raw.bind(os.fspath(path))
    if listen:
        raw.listen(backlog)
    return raw


def test_a_second_instance_is_refused_until_the_first_is_gone(short_tmp):
    with sockets.sole_instance(short_tmp):
        with pytest.raises(FatalError, match="cannot start: another autoclave plugin runs in"):
            sockets.sole_instance(short_tmp).__enter__()
        with pytest.raises(FatalError, match="another"), sockets.sole_instance(short_tmp):
            pass
    with sockets.sole_instance(short_tmp):
        pass


def test_our_directory_is_closed_to_others(short_tmp):
    with sockets.sole_instance(short_tmp):
        assert stat.S_IMODE((short_tmp / "autoclave").stat().st_mode) & 0o027 == 0


def test_an_error_inside_is_not_a_second_instance(short_tmp):
    with pytest.raises(BlockingIOError), sockets.sole_instance(short_tmp):
        raise BlockingIOError


@pytest.mark.parametrize("spoil", ["file", "open to all", "link"])
def test_a_directory_that_is_not_ours_alone_is_refused(short_tmp, spoil):
    own = short_tmp / "autoclave"
    if spoil == "file":
        own.write_text("")
    elif spoil == "link":
        (short_tmp / "elsewhere").mkdir()
        own.symlink_to(short_tmp / "elsewhere")
    else:
        own.mkdir()
        own.chmod(0o777)
    with pytest.raises(FatalError, match=f"cannot use directory {own}: "), sockets.sole_instance(short_tmp):
        pass


def test_a_resource_is_served_one_level_below_the_kubelets_directory():
    assert re.fullmatch(
        r"autoclave/nvidia\.com_mig-1g\.10gb\.me-[\w-]{4}\.sock", sockets.endpoint("nvidia.com/mig-1g.10gb.me")
    )


def test_the_hidden_name_is_short_and_ignored_by_kubelets(short_tmp):
    path = short_tmp / "nvidia.com_mig-1g.10gb.sock"
    assert sockets.hidden(path).name.startswith(".")
    assert len(os.fspath(sockets.hidden(path))) == len(os.fspath(path))


def test_a_missing_directory_is_named(short_tmp):
    with pytest.raises(FatalError, match=f"there is no directory {short_tmp}/gone"):
        sockets.claim(short_tmp / "gone" / "x.sock")


def test_a_busy_socket_is_not_claimed_and_does_not_answer(short_tmp):
    path = short_tmp / "x.sock"
    with bound(path, listen=True, backlog=0), socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(os.fspath(path))
        assert isinstance(unix_sockets.connect_error(path), BlockingIOError)
        with pytest.raises(FatalError, match="another server answers on it"):
            sockets.claim(path)


def test_only_a_socket_has_an_identity(short_tmp):
    (short_tmp / "file").touch()
    assert sockets.identity(short_tmp / "file") is None
    assert sockets.identity(short_tmp / "absent") is None
    assert sockets.identity(short_tmp / "file" / "below") is None


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
async def test_a_file_created_removed_or_moved_is_seen_immediately(short_tmp):
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
    assert [line["event"] for line in logs] == ["cannot watch files: polling every few seconds instead"]


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
