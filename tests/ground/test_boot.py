"""Another boot has another id."""

import uuid

import pytest

from ground import boot


def test_the_boot_id_is_a_uuid_and_stays_the_same():
    assert uuid.UUID(boot.boot_id()).version == 4
    assert boot.boot_id() == boot.boot_id()


def test_a_missing_boot_id_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        boot.boot_id(tmp_path / "boot_id")
