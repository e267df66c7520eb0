"""What the kubelet's checkpoint says of the devices that it knows."""

import pytest

from autoclave.doctor import gathering
from autoclave.doctor.node_facts import CheckFault
from demo.standins import checkpoint
from ground import paths
from ground.errors import FatalError
from scrubber import daemon
from scrubber.devices.base import DeviceError
from scrubber.receipts import key


def test_each_resource_has_its_devices(tmp_path):
    checkpoint.write(tmp_path, [], {"nvidia.com/gpu": ["GPU-1", "GPU-2"], "example.com/port": []})
    assert gathering._registered(tmp_path) == {
        "nvidia.com/gpu": frozenset({"GPU-1", "GPU-2"}),
        "example.com/port": frozenset(),
    }


def test_null_for_an_empty_list_is_read_as_empty(tmp_path):
    (tmp_path / checkpoint.NAME).write_text('{"Data": {"RegisteredDevices": null}}')
    assert gathering._registered(tmp_path) == {}
    (tmp_path / checkpoint.NAME).write_text('{"Data": {"RegisteredDevices": {"a.b/c": null}}}')
    assert gathering._registered(tmp_path) == {"a.b/c": frozenset()}


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"Data": {"RegisteredDevices": [1]}}', '{"Data": {"RegisteredDevices": {"a": [1]}}}',
             '{"Data": {"RegisteredDevices": {"a": 1}}}', '{"Data": {"RegisteredDevices": {"a": [[]]}}}'],
)  # fmt: skip
def test_an_invalid_checkpoint_names_no_devices(tmp_path, text):
    (tmp_path / checkpoint.NAME).write_text(text)
    assert isinstance(gathering._registered(tmp_path), CheckFault)


def test_a_checkpoint_that_is_not_there_is_absent(tmp_path):
    found = gathering._registered(tmp_path)
    assert isinstance(found, CheckFault)
    assert found.absent


def test_a_key_that_others_can_read_is_named(tmp_path, monkeypatch):
    made = key.open_key(tmp_path)
    assert made is not None
    assert gathering._receipt_key(tmp_path) == made.key_id
    file = paths.receipt_key(tmp_path) / key.KEY
    file.chmod(0o640)
    found = gathering._receipt_key(tmp_path)
    assert isinstance(found, CheckFault)
    assert found.text.endswith(f"{file}: its mode is 0640, other users may have read it")
    assert found.remedy.startswith(f"chmod 600 {file}, ")
    monkeypatch.setattr(key, "can_sign", lambda: False)
    assert gathering._receipt_key(tmp_path) is None


@pytest.mark.parametrize(
    ("error", "text", "remedy"),
    [
        (FatalError("cannot: it; is so", "end it", "wait; or not"), "cannot: it; is so", "end it; wait; or not"),
        (DeviceError("no driver; load it"), "no driver; load it", ""),
        (KeyError("x"), "unexpected error: KeyError: 'x'", ""),
    ],
)
def test_the_last_error_of_the_service_keeps_its_remedies_apart(tmp_path, error, text, remedy):
    daemon._leave(error, tmp_path / "last-error")
    found = gathering._last_error(tmp_path / "last-error")
    assert found is not None
    assert (found.text, found.remedy) == (text, remedy)


def test_the_last_error_of_an_older_service_is_shown(tmp_path):
    (tmp_path / "last-error").write_text("no driver; load it\n")
    found = gathering._last_error(tmp_path / "last-error")
    assert found is not None
    assert (found.text, found.remedy) == ("no driver; load it", "")
