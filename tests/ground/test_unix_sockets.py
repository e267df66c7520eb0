"""A socket is ours alone, fits, and is never taken from somebody who lives."""

import os
import socket
import stat

import pytest

from ground import unix_sockets
from ground.errors import FatalError


def test_the_run_directory_is_private_and_locked(short_tmp):
    lock = unix_sockets.lock_run_dir(short_tmp / "run")
    assert stat.S_IMODE((short_tmp / "run").stat().st_mode) == 0o700
    assert lock is not None
    assert unix_sockets.lock_run_dir(short_tmp / "run") is None
    os.close(lock)
    assert unix_sockets.lock_run_dir(short_tmp / "run") is not None


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o710])
def test_a_directory_open_to_others_is_refused_unchanged(short_tmp, mode):
    (short_tmp / "run").mkdir()
    (short_tmp / "run").chmod(mode)
    with pytest.raises(FatalError, match="other users may enter it"):
        unix_sockets.lock_run_dir(short_tmp / "run")
    assert stat.S_IMODE((short_tmp / "run").stat().st_mode) == mode


def test_a_link_to_a_directory_is_refused(short_tmp):
    (short_tmp / "real").mkdir(mode=0o700)
    (short_tmp / "run").symlink_to(short_tmp / "real")
    with pytest.raises(FatalError, match="it is a link"):
        unix_sockets.lock_run_dir(short_tmp / "run")


def test_an_unusable_run_directory_names_the_flag(short_tmp):
    (short_tmp / "file").write_text("")
    with pytest.raises(FatalError, match="--run-dir"):
        unix_sockets.lock_run_dir(short_tmp / "file" / "run")


def test_a_stale_socket_is_cleared_away(short_tmp):
    path = short_tmp / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(path))
    assert unix_sockets.claim(path) == f"unix:{path}"
    assert not path.exists()


def test_a_socket_that_another_process_serves_is_not_replaced(short_tmp):
    path = short_tmp / "s.sock"
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(os.fspath(path))
        living.listen()
        with pytest.raises(FatalError, match="another server answers"):
            unix_sockets.claim(path)
    assert path.exists()


def test_a_file_that_is_no_socket_stays(short_tmp):
    path = short_tmp / "s.sock"
    path.write_text("precious")
    with pytest.raises(FatalError, match="it is not a socket"):
        unix_sockets.claim(path)
    assert path.read_text() == "precious"


def test_a_path_longer_than_107_bytes_is_refused(short_tmp):
    room = unix_sockets.MAX_PATH_BYTES - len(os.fsencode(short_tmp)) - 1
    assert unix_sockets.claim(short_tmp / ("s" * room)).startswith("unix:")
    with pytest.raises(FatalError, match="longer than 107 bytes"):
        unix_sockets.claim(short_tmp / ("s" * (room + 1)))
