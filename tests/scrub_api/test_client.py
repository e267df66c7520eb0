"""The list of devices and the grants go over the wire and come back as they were."""

from dataclasses import asdict, fields
from typing import Any

import pytest

from ground import paths
from scrub_api import client, last_list, scrub_pb2
from scrub_api.device_messages import GrantedDevice, ReportedDevice, ReportedDevices

MESSAGES: dict[Any, Any] = {
    ReportedDevices: scrub_pb2.WatchResponse,
    ReportedDevice: scrub_pb2.ReportedDevice,
    GrantedDevice: scrub_pb2.Granted,
}
FULL = ReportedDevice(
    "GPU-1", healthy=True, clean=True, numa_node=0, resource="nvidia.com/gpu", index=1, mig=True, island="a",
    nodes=("/dev/a", "/dev/b"), reason="xid", quarantined=True, sick=True, replaced=True, owner="claim", model="H100",
    memory_bytes=2**40, pci_address="0000:41:00.0", waits=True, receipts="/r",
)  # fmt: skip
EMPTY = ReportedDevice("GPU-2", healthy=False, clean=False, numa_node=None, resource="")


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_what_is_said_and_its_message_have_the_same_fields(kind):
    assert {field.name for field in fields(kind)} == set(MESSAGES[kind].DESCRIPTOR.fields_by_name)


async def test_a_list_of_devices_survives_the_wire(tmp_path):
    tmp_path.chmod(0o700)
    message = scrub_pb2.WatchResponse(**asdict(ReportedDevices((FULL, EMPTY), 40.0, "signed")))
    last_list.write(paths.last_list(tmp_path), last_list.stamped(message))
    async with client.ScrubberClient(paths.scrubber_socket(tmp_path)) as scrubber:
        said = scrubber.last_list()
    assert said is not None
    assert (said.devices, said.checkpoint) == ((FULL, EMPTY), "signed")
