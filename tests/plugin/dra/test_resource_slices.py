"""What the scheduler learns of the devices, and what a claim was given. Pure."""

import pytest

from plugin.devices import MigStrategy, own_devices
from plugin.dra import claims, resource_slices
from plugin.dra.claims import AllocatedDevice
from plugin.dra.resource_slices import Pool
from tests.plugin.scrub_server import gpu

POOL = Pool("gpu.autoclave.internal", "node-1", "uid-1")


def listed(*reported, taints=True):
    """The devices of the slice."""
    devices = own_devices("nvidia.com", MigStrategy.MIXED)(reported)
    return resource_slices.resource_slice(POOL, devices, taints=taints)["spec"].get("devices")


def names(*reported, taints=True):
    return [device["name"] for device in listed(*reported, taints=taints)]


def test_clean_devices_stand_first():
    assert names(gpu(0, clean=False), gpu(1), gpu(2)) == ["gpu-0001", "gpu-0002", "gpu-0000"]


def test_an_unhealthy_device_has_a_taint_that_says_why():
    sick = gpu(0, healthy=False, clean=False, reason="uncorrectable memory (ECC)")
    taint = {"key": "gpu.autoclave.internal/unhealthy", "value": "uncorrectable-memory--ECC", "effect": "NoSchedule"}
    assert listed(sick, gpu(1))[1]["taints"] == [taint]
    assert "taints" not in listed(sick, gpu(1))[0]


def test_without_taints_an_unhealthy_device_is_left_out():
    assert names(gpu(0, healthy=False), gpu(1), taints=False) == ["gpu-0001"]


def test_a_slice_with_many_devices_has_no_taints():
    """The API server takes at most 64 devices with taints, and 128 without."""
    reported = [gpu(0, healthy=False), *map(gpu, range(1, 112))]
    assert len(listed(*reported)) == 111
    assert len(listed(*map(gpu, range(200)))) == 128


def test_a_replaced_device_is_left_out():
    assert names(gpu(0, replaced=True), gpu(1)) == ["gpu-0001"]


def test_a_slice_without_devices_has_no_empty_list():
    """The API server drops an empty list, and the slice would differ for ever."""
    assert listed(gpu(0, healthy=False), taints=False) is None


def test_the_attributes_say_what_the_device_is():
    about = {"model": "NVIDIA L4", "memory_bytes": 24, "pci_address": "00000000:3B:00.0", "mig": True}
    [device] = listed(gpu(7, **about))
    assert device["attributes"] == {
        "type": {"string": "mig"},
        "uuid": {"string": "GPU-0007"},
        "index": {"int": 7},
        "productName": {"string": "NVIDIA L4"},
        "resource.kubernetes.io/numaNode": {"int": 0},
        "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"},
    }
    assert device["capacity"] == {"memory": {"value": "24"}}


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ({"a": [{"b": 1, "added": 2}], "more": 3}, True),
        ({"a": [{"b": 2}]}, False),
        ({"a": [{"b": 1}, {"b": 1}]}, False),
        ({"a": [{"b": 1, "taints": [{"key": "unhealthy"}]}]}, False),
        ({"a": [{"b": 1}], "devices": [{"name": "gone"}]}, False),
        ({"a": None}, False),
        (None, False),
    ],
)
def test_a_slice_is_written_again_if_a_field_differs(found, same):
    """Fields that the API server has added do not count, but those that the driver leaves out now do."""
    assert resource_slices.covers(found, {"a": [{"b": 1}]}) is same


def test_a_claim_names_the_devices_of_its_driver():
    ours = {"driver": POOL.driver, "pool": "node-1"}
    results = [
        {**ours, "request": "gpu/large", "device": "gpu-0000"},
        {**ours, "request": "watch", "device": "gpu-0001", "adminAccess": True},
        {"driver": "nic.example.com", "pool": "node-1", "request": "nic", "device": "nic-0"},
    ]
    claim = {"status": {"allocation": {"devices": {"results": results}}}}
    assert list(claims.allocated(claim, POOL.driver)) == [
        AllocatedDevice("gpu", "node-1", "gpu-0000", admin=False),
        AllocatedDevice("watch", "node-1", "gpu-0001", admin=True),
    ]
    assert list(claims.allocated({"status": {}}, POOL.driver)) == []
