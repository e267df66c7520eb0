"""What the kubelet's checkpoint says of the devices that it knows."""

import pytest

from autoclave.doctor.facts import kubelet_facts
from autoclave.doctor.node_facts import CheckFault
from demo.standins import checkpoint
from tests.doctor.nodes import at


def test_each_resource_has_its_devices(tmp_path):
    checkpoint.write(tmp_path, [], {"nvidia.com/gpu": ["GPU-1", "GPU-2"], "example.com/port": []})
    assert kubelet_facts.registered(at(tmp_path)) == {
        "nvidia.com/gpu": frozenset({"GPU-1", "GPU-2"}),
        "example.com/port": frozenset(),
    }


def test_null_for_an_empty_list_is_read_as_empty(tmp_path):
    (tmp_path / checkpoint.NAME).write_text('{"Data": {"RegisteredDevices": null}}')
    assert kubelet_facts.registered(at(tmp_path)) == {}
    (tmp_path / checkpoint.NAME).write_text('{"Data": {"RegisteredDevices": {"a.b/c": null}}}')
    assert kubelet_facts.registered(at(tmp_path)) == {"a.b/c": frozenset()}


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"Data": {"RegisteredDevices": [1]}}', '{"Data": {"RegisteredDevices": {"a": [1]}}}',
             '{"Data": {"RegisteredDevices": {"a": 1}}}', '{"Data": {"RegisteredDevices": {"a": [[]]}}}'],
)  # fmt: skip
def test_an_invalid_checkpoint_names_no_devices(tmp_path, text):
    (tmp_path / checkpoint.NAME).write_text(text)
    assert isinstance(kubelet_facts.registered(at(tmp_path)), CheckFault)


def test_a_checkpoint_that_is_not_there_is_absent(tmp_path):
    found = kubelet_facts.registered(at(tmp_path))
    assert isinstance(found, CheckFault)
    assert found.absent
