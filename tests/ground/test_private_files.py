"""A file or directory of a program is its own, or is not opened."""

import os
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
    for name in ("link", "shared"):
        with pytest.raises(ForeignFileError, match="other users may write to it, or it is a link"):
            private_files.make_folder(tmp_path / name)
