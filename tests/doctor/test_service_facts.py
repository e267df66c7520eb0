"""What the doctor reads of the service beside its answer: the key of its receipts, and its last error."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

from autoclave.doctor.facts import service_facts
from autoclave.doctor.findings import all_checks
from autoclave.doctor.node_facts import CheckFault
from ground import paths
from ground.errors import FatalError
from scrubber import daemon
from scrubber.devices.base import DeviceError
from scrubber.receipts import key
from tests.doctor.nodes import STATUS, at


def test_a_key_that_others_can_read_is_named(tmp_path, monkeypatch):
    made = key.open_key(tmp_path)
    assert made is not None
    assert service_facts.receipt_key(at(tmp_path), str(tmp_path)) == made.key_id
    file = paths.receipt_key(tmp_path) / key.KEY
    file.chmod(0o640)
    found = service_facts.receipt_key(at(tmp_path), str(tmp_path))
    assert isinstance(found, CheckFault)
    assert found.text.endswith(f"{file}: its mode is 0640, other users may have read it")
    assert found.remedy.startswith(f"chmod 600 {file}, ")
    monkeypatch.setattr(key, "can_sign", lambda: False)
    assert service_facts.receipt_key(at(tmp_path), str(tmp_path)) is None


@pytest.mark.parametrize(
    ("error", "text", "remedy"),
    [
        (FatalError("cannot: it; is so", "end it", "wait; or not"), "cannot: it; is so", "end it; wait; or not"),
        (DeviceError("no driver; load it"), "no driver; load it", ""),
        (
            KeyError("x"),
            "unexpected error: KeyError: 'x'",
            "restart the service; report the error: the end of its log has the report, or names its file",
        ),
    ],
)
def test_the_last_error_of_the_service_keeps_its_remedies_apart(tmp_path, error, text, remedy):
    daemon._leave(error, tmp_path / "last-error")
    found = service_facts.last_error(at(tmp_path))
    assert found is not None
    assert (found.text, found.remedy) == (text, remedy)


def test_the_last_error_of_an_older_service_is_shown(tmp_path):
    (tmp_path / "last-error").write_text("no driver; load it\n")
    found = service_facts.last_error(at(tmp_path))
    assert found is not None
    assert (found.text, found.remedy) == ("no driver; load it", "")


def test_the_service_is_asked_once_and_only_if_needed(tmp_path):
    node = replace(at(tmp_path), ask=Mock(return_value=STATUS))
    all_checks.judge(node, {"kubelet-dir"})
    node.ask.assert_not_called()
    assert len(all_checks.judge(node, {"service", "policy", "device"})) == 3
    node.ask.assert_called_once_with(tmp_path)
