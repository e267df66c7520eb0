"""The last list of devices is valid in the boot in which it was made, for a while."""

import asyncio
import os
from typing import Never

import pytest
from google.protobuf.message import DecodeError

from ground import boot, paths
from scrub_api import last_list, scrub_pb2
from tests.patience import WITHIN
from tests.plugin.live_plugin import until_files


@pytest.fixture(name="file")
def written(tmp_path):
    """A file whose list is valid for 40 seconds."""
    tmp_path.chmod(0o700)
    response = scrub_pb2.WatchResponse(
        devices=[scrub_pb2.ReportedDevice(uuid="GPU-1", healthy=True)], silence_seconds=40.0
    )
    last_list.write(file := tmp_path / "last-list", last_list.stamped(response))
    return file


def read(file):
    """A list that must be valid."""
    response = last_list.read(file)
    assert response is not None
    return response


def passed(monkeypatch, seconds):
    """So much time has passed."""
    now = boot.uptime()
    monkeypatch.setattr(boot, "uptime", lambda: now + seconds)


@pytest.mark.parametrize("seconds", [0.0, 39.0])
def test_a_list_is_valid_for_the_rest_of_its_time(file, monkeypatch, seconds):
    passed(monkeypatch, seconds)
    response = read(file)
    assert [device.uuid for device in response.devices] == ["GPU-1"]
    assert response.silence_seconds == pytest.approx(40.0 - seconds, abs=0.9)


@pytest.mark.parametrize("seconds", [40.0, -1.0])
def test_an_old_list_and_a_future_one_are_not_valid(file, monkeypatch, seconds):
    passed(monkeypatch, seconds)
    assert last_list.read(file) is None


def test_no_list_is_valid_for_more_than_a_minute(file, monkeypatch):
    last_list.write(file, last_list.stamped(scrub_pb2.WatchResponse(silence_seconds=3600.0)))
    assert read(file).silence_seconds == pytest.approx(60.0, abs=0.9)
    passed(monkeypatch, 60.0)
    assert last_list.read(file) is None


def test_a_list_of_another_boot_is_not_valid(file, monkeypatch):
    monkeypatch.setattr(boot, "boot_id", lambda: "another")
    assert last_list.read(file) is None


@pytest.mark.parametrize("fault", ["damaged", "link", "others"])
def test_a_file_that_cannot_be_trusted_is_not_read(file, fault):
    match fault:
        case "damaged":
            file.write_bytes(b"\xff")
        case "link":
            file.rename(file.with_name("elsewhere"))
            file.symlink_to("elsewhere")
        case "others":
            file.chmod(0o622)
    with pytest.raises((OSError, DecodeError)):
        last_list.read(file)


def test_a_list_that_cannot_be_replaced_is_removed(file, monkeypatch):
    def full(_descriptor, _mode) -> Never:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(OSError, match="no space left"):
        last_list.write(file, b"")
    assert not list(file.parent.iterdir())


async def test_the_service_leaves_what_it_tells_the_plugin(house):
    file = paths.last_list(house.config.run_dir)
    keeping = asyncio.create_task(house.doors.keep_last_list())
    async with house.scrubber() as scrubber:
        await until_files(file.exists, file.parent)
        left = scrubber.last_list()
        response = await anext(scrubber.watch())
        assert (left.devices, left.silence_seconds) == (
            response.devices,
            pytest.approx(response.silence_seconds, abs=WITHIN),
        )
        await scrubber.acquire([house.uuids[0]])
        await until_files(lambda: not scrubber.last_list().devices[0].clean, file.parent)
    keeping.cancel()
