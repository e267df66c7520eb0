"""The files of our sockets: whose they are, and what is said when they cannot be."""

import os
import socket
import stat

import pytest

from plugin.registration import sockets
from scrubber.ground import unix_sockets
from scrubber.ground.errors import FatalError


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


def test_a_missing_kubelet_directory_is_said_with_a_remedy(short_tmp):
    missing = short_tmp / "device-plugins"
    with pytest.raises(FatalError, match="it does not exist; start the kubelet first"), sockets.sole_instance(missing):
        pass


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
    assert sockets.endpoint("nvidia.com/mig-1g.10gb.me") == "autoclave/nvidia.com_mig-1g.10gb.me.sock"


def test_the_hidden_name_is_short_and_ignored_by_kubelets(short_tmp):
    path = short_tmp / "nvidia.com_mig-1g.10gb.sock"
    assert sockets.hidden(path).name.startswith(".")
    assert len(os.fspath(sockets.hidden(path))) == len(os.fspath(path))


def test_a_path_longer_than_107_bytes_is_refused(short_tmp):
    longest = short_tmp / ("x" * (107 - len(os.fspath(short_tmp)) - 1))
    sockets.claim(longest)
    with pytest.raises(FatalError, match="longer than 107 bytes"):
        sockets.claim(longest.with_name(longest.name + "x"))


def test_a_missing_directory_is_named(short_tmp):
    with pytest.raises(FatalError, match=f"there is no directory {short_tmp}/gone"):
        sockets.claim(short_tmp / "gone" / "x.sock")


@pytest.mark.parametrize("make", ["file", "directory", "dangling link"])
def test_what_is_not_a_socket_is_left_alone(short_tmp, make):
    path = short_tmp / "x.sock"
    {"file": path.touch, "directory": path.mkdir, "dangling link": lambda: path.symlink_to("nowhere")}[make]()
    with pytest.raises(FatalError, match="it is not a socket; remove it"):
        sockets.claim(path)
    assert os.path.lexists(path)


def test_only_a_live_socket_is_refused(short_tmp):
    path = short_tmp / "x.sock"
    with bound(path, listen=True), pytest.raises(FatalError, match="another server answers on it"):
        sockets.claim(path)
    sockets.claim(path)


def test_a_busy_socket_is_not_claimed_and_does_not_answer(short_tmp):
    path = short_tmp / "x.sock"
    with bound(path, listen=True, backlog=0), socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(os.fspath(path))
        assert isinstance(unix_sockets.connect_error(path), BlockingIOError)
        with pytest.raises(FatalError, match="another server answers on it"):
            sockets.claim(path)


def test_connect_error_distinguishes_absent_refusing_and_live(short_tmp):
    path = short_tmp / "x.sock"
    assert isinstance(unix_sockets.connect_error(path), FileNotFoundError)
    raw = bound(path)
    assert isinstance(unix_sockets.connect_error(path), ConnectionRefusedError)
    raw.listen()
    assert unix_sockets.connect_error(path) is None
    raw.close()
    assert isinstance(unix_sockets.connect_error(path), ConnectionRefusedError)


def test_only_a_socket_has_an_identity(short_tmp):
    (short_tmp / "file").touch()
    assert sockets.identity(short_tmp / "file") is None
    assert sockets.identity(short_tmp / "absent") is None
    assert sockets.identity(short_tmp / "file" / "below") is None


def test_a_published_socket_is_private_and_withdrawn(short_tmp):
    path = short_tmp / "x.sock"
    with bound(sockets.hidden(path), listen=True):
        ours = sockets.publish(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o660)  # a relabelling changes ctime, not whose it is
        assert sockets.same(sockets.identity(path), ours)
        sockets.withdraw(path, ours)
        assert list(short_tmp.iterdir()) == []
        sockets.withdraw(path, ours)


def test_anothers_socket_is_not_withdrawn(short_tmp):
    path = short_tmp / "x.sock"
    with bound(sockets.hidden(path)):
        ours = sockets.publish(path)
        path.unlink()
        with bound(path):
            sockets.withdraw(path, ours)
            assert path.is_socket()


def test_an_announcement_leaves_the_same_socket_in_its_place(short_tmp):
    path = short_tmp / "x.sock"
    with bound(sockets.hidden(path)):
        ours = sockets.publish(path)
        sockets.show_again(path)
        assert sockets.same(sockets.identity(path), ours)
