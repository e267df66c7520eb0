"""Another boot and another kubelet life have other names."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from scrubber.node import identity


def test_the_boot_id_is_a_uuid_and_stays_the_same() -> None:
    assert uuid.UUID(identity.boot_id()).version == 4
    assert identity.boot_id() == identity.boot_id()


def test_a_missing_boot_id_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        identity.boot_id(tmp_path / "boot_id")


def test_a_kubelet_that_makes_its_socket_anew_lives_another_life(tmp_path: Path) -> None:
    assert identity.kubelet_epoch(tmp_path) == "none"
    socket = tmp_path / "kubelet.sock"
    socket.touch()
    first = identity.kubelet_epoch(tmp_path)
    assert identity.kubelet_epoch(tmp_path) == first
    socket.unlink()
    assert identity.kubelet_epoch(tmp_path) == "none"
    socket.touch()
    assert identity.kubelet_epoch(tmp_path) not in {first, "none"}


def test_a_socket_that_was_given_the_inode_of_the_last_one_is_still_another(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    socket.touch()
    first, inode = identity.kubelet_epoch(tmp_path), socket.stat().st_ino
    ends = time.monotonic() + 1
    while identity.kubelet_epoch(tmp_path) == first and time.monotonic() < ends:
        socket.chmod(0o600)  # changes nothing but the change time, once the clock of the filesystem has moved on
    assert identity.kubelet_epoch(tmp_path) != first
    assert socket.stat().st_ino == inode
