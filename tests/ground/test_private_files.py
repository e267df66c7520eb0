"""A file or directory of a program is its own, or is not opened."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ground import private_files
from ground.private_files import ForeignFileError


def to_link(path: Path) -> None:
    path.symlink_to(path.with_name("precious"))


def to_hard_link(path: Path) -> None:
    path.hardlink_to(path.with_name("precious"))


def to_shared(path: Path) -> None:
    path.touch()
    path.chmod(0o620)


CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a link": (to_link, "it is a link"),
    "a pipe": (os.mkfifo, "it is not a regular file"),
    "a directory": (Path.mkdir, "it is not a regular file"),
    "a file with two names": (to_hard_link, "it has another name"),
    "a file that others may write": (to_shared, "other users may write to it"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_foreign_file_is_neither_opened_nor_changed(tmp_path, case):
    make, why = CASES[case]
    precious, path = tmp_path / "precious", tmp_path / "file"
    precious.write_text("precious")
    precious.chmod(0o600)
    make(path)
    for attempt in (
        lambda: private_files.opened(path, os.O_RDWR | os.O_CREAT),
        lambda: private_files.demand_own(path),
    ):
        with pytest.raises(ForeignFileError, match=why) as refused:
            attempt()
        assert refused.value.filename == str(path)
    assert precious.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="a file of another user takes root")
def test_a_file_of_another_user_is_refused(tmp_path):
    path = tmp_path / "file"
    path.touch(mode=0o600)
    os.chown(path, 4711, 4711)
    with pytest.raises(ForeignFileError, match=r"it belongs to another user \(uid 4711\)"):
        private_files.content(path)
    os.chown(tmp_path, 4711, -1)
    with pytest.raises(ForeignFileError, match=r"it belongs to another user \(uid 4711\)"):
        private_files.make_folder(tmp_path)


def test_a_file_of_the_same_user_is_made_private(tmp_path):
    path = tmp_path / "file"
    private_files.demand_own(path)  # absent
    descriptor = private_files.opened(path, os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"mine")
    os.close(descriptor)
    assert private_files.content(path) == b"mine"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_of_others_is_refused(tmp_path):
    private_files.make_folder(tmp_path / "new")
    (tmp_path / "link").symlink_to(tmp_path / "new")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    for name, why in {"link": "it is a link", "shared": "other users may write to it"}.items():
        with pytest.raises(ForeignFileError, match=why):
            private_files.make_folder(tmp_path / name)


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_synced_before_it_gets_its_name(tmp_path, monkeypatch, durable):
    path, calls = tmp_path / "file", []
    path.write_bytes(b"old")

    def fsync(handle: int) -> None:
        calls.append(("directory" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file", path.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    private_files.replace(path, b"new", 0o640, durable=durable)
    assert calls == ([("file", b"old"), ("directory", b"new")] if durable else [])
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_keeps_the_old_file_and_leaves_no_other(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        private_files.replace(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_written_into_a_folder_of_others(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(ForeignFileError, match="other users may write to it"):
        private_files.replace(tmp_path / "shared/file", b"new")
    assert list((tmp_path / "shared").iterdir()) == []


def test_leftovers_of_killed_writers_are_removed(tmp_path):
    for name in ("file", ".file.new", ".file.1.1", ".other.1.1"):
        (tmp_path / name).touch()
    private_files.remove_leftovers(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.1.1", "file"]


def test_the_holder_of_a_lock_is_named(tmp_path):
    lock = private_files.try_lock(tmp_path / "lock")
    (tmp_path / "free").touch()
    holders = [private_files.lock_holder(tmp_path / name) for name in ("lock", "free", "missing")]
    assert lock is not None
    os.close(lock)
    assert holders == [os.getpid(), None, None]


def test_a_wait_ends_with_the_lock_of_the_present_file(tmp_path, monkeypatch):
    """The file is replaced while the caller waits for its lock, which then keeps nobody out."""
    path, flock = tmp_path / "lock", fcntl.flock

    def replaced_meanwhile(lock: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        path.touch(0o600)
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", replaced_meanwhile)
    lock = private_files.await_lock(path)
    assert private_files.try_lock(path) is None
    os.close(lock)
