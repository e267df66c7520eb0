"""Events and process start times are measured on the same clock. Another kubelet has another id."""

from __future__ import annotations

import time
from pathlib import Path

from scrubber.node import clock


def test_both_clocks_are_read() -> None:
    before = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    moment = clock.now()
    after = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before[0] <= moment.wall <= after[0]
    assert before[1] <= moment.uptime <= after[1]


def test_a_new_kubelet_socket_starts_a_new_epoch(tmp_path: Path) -> None:
    assert clock.kubelet_epoch(tmp_path) == "none"
    socket = tmp_path / "kubelet.sock"
    socket.touch()
    first = clock.kubelet_epoch(tmp_path)
    assert clock.kubelet_epoch(tmp_path) == first
    socket.unlink()
    assert clock.kubelet_epoch(tmp_path) == "none"
    socket.touch()
    assert clock.kubelet_epoch(tmp_path) not in {first, "none"}


def test_an_unreadable_kubelet_directory_has_no_epoch(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert clock.kubelet_epoch(tmp_path / "file") != clock.kubelet_epoch(tmp_path / "file")


def test_a_new_socket_with_the_same_inode_is_another(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    socket.touch()
    first, inode = clock.kubelet_epoch(tmp_path), socket.stat().st_ino
    ends = time.monotonic() + 1
    while clock.kubelet_epoch(tmp_path) == first and time.monotonic() < ends:
        socket.chmod(0o600)  # changes nothing but the change time, once the clock of the filesystem has moved on
    assert clock.kubelet_epoch(tmp_path) != first
    assert socket.stat().st_ino == inode
