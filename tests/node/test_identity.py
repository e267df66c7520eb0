"""Another boot and another kubelet life have other names."""

from __future__ import annotations

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
    (tmp_path / "other").touch()  # may be given the inode that has just become free
    socket.touch()
    assert identity.kubelet_epoch(tmp_path) not in {first, "none"}
