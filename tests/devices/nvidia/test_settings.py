"""What a device was first seen with is kept once, whole, and for its owner alone."""

from __future__ import annotations

import json
import stat

import pytest

from ground.documents import strict_json
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import settings
from scrubber.devices.nvidia.settings import StoredSettings
from tests.devices.nvidia.bench import captured, kept, touch


def test_the_first_settings_file_is_private_and_never_replaced(rig, tmp_path) -> None:
    file = kept(tmp_path)
    with rig.library.session() as session:
        first = settings.first_seen(file, session, rig.gpu(0).uuid)
    assert first == captured(rig)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    with rig.library.session() as session:
        rig.gpu(0).set(persistence_mode=0)
        assert settings.first_seen(file, session, rig.gpu(0).uuid) == first


def test_two_first_readers_keep_the_same_settings(rig, tmp_path, monkeypatch) -> None:
    file, capture, first = kept(tmp_path), settings.capture, list[StoredSettings]()

    def overtaken(session, uuid) -> StoredSettings:
        with monkeypatch.context() as patch:
            patch.setattr(settings, "capture", capture)
            first.append(settings.first_seen(file, session, uuid))
        return StoredSettings(persistence=False)

    monkeypatch.setattr(settings, "capture", overtaken)
    with rig.library.session() as session:
        assert [settings.first_seen(file, session, rig.gpu(0).uuid)] == first
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_file_of_a_killed_writer_does_not_disturb(rig, tmp_path, monkeypatch) -> None:
    file = kept(tmp_path)
    monkeypatch.setattr("threading.get_native_id", lambda: 1)
    monkeypatch.setattr("os.getpid", lambda: 1)
    file.parent.mkdir(parents=True)
    (file.parent / f".{file.name}.1.1").write_text("hal")
    with rig.library.session() as session:
        assert settings.first_seen(file, session, rig.gpu(0).uuid) == captured(rig)


def spoilt(rig) -> dict[str, str]:
    values = json.loads(strict_json.encode(captured(rig)))
    return {
        "cut": json.dumps(values)[:-5],
        "more": json.dumps(values | {"fan": 3}),
        "kind": json.dumps(values | {"ecc": 1}),
    }


@pytest.mark.parametrize("how", ["cut", "more", "kind"])
def test_a_changed_settings_file_is_an_error_and_stays(rig, tmp_path, how: str) -> None:
    file = kept(tmp_path)
    file.parent.mkdir(parents=True)
    file.write_text(spoilt(rig)[how])
    with pytest.raises(
        DeviceError, match=r"cannot read the settings that .* was first seen with: .* remove .*gpu.json"
    ):
        touch(rig, 0, first_seen=str(file)).restore_settings()
    assert file.read_text() == spoilt(rig)[how]
