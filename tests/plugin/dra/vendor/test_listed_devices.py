"""What the slices of a vendor's driver list, and whether they mean the devices of the scrub service."""

import pytest

from plugin.devices import Device
from plugin.dra.vendor import listed_devices
from plugin.dra.vendor.listed_devices import ListedDevice

UUID, PCI = "GPU-0000", "0000:17:00.0"


def vendor_slice(*devices, generation=1, pool="node-1"):
    about = {"name": pool, "generation": generation, "resourceSliceCount": 1}
    return {"spec": {"driver": "gpu.nvidia.com", "pool": about, "devices": [*devices]}}


def entry(name="gpu-0", uuid=UUID, prefix=""):
    attributes = {f"{prefix}uuid": {"string": uuid}, f"{prefix}type": {"string": "gpu"}}
    return {"name": name, "attributes": attributes | {"resource.kubernetes.io/pciBusID": {"string": PCI}}}


@pytest.mark.parametrize("prefix", ["", "gpu.nvidia.com/"])
def test_a_device_has_the_attributes_of_its_driver(prefix):
    listed = listed_devices.listed([vendor_slice(entry(prefix=prefix))])
    assert listed == {("node-1", "gpu-0"): ListedDevice("gpu-0", UUID, "gpu", PCI)}


def test_an_older_generation_of_a_pool_does_not_count():
    older, newer = vendor_slice(entry("gpu-1")), vendor_slice(entry("gpu-0"), generation=2)
    other = vendor_slice(entry("gpu-1"), pool="other")
    assert set(listed_devices.listed([newer, older, other])) == {("node-1", "gpu-0"), ("other", "gpu-1")}


def test_a_device_that_is_two_gpus_has_no_uuid():
    listed = listed_devices.listed([vendor_slice(entry()), vendor_slice(entry(uuid="GPU-0001"))])
    assert listed["node-1", "gpu-0"].uuid == ""


@pytest.mark.parametrize(
    ("uuid", "address", "why"),
    [
        (UUID, "00000000:17:00.0", ""),
        (UUID, "", ""),
        (UUID, "00000000:18:00.0", "gpu-0 is GPU-0000: its ResourceSlice says at 0000:17:00.0"),
        ("GPU-0001", "00000000:17:00.0", "the ResourceSlice has changed: gpu-0 was GPU-0001"),
    ],
)
def test_slice_and_service_must_mean_the_same_gpu(uuid, address, why):
    device = Device(uuid, healthy=True, clean=True, numa_node=0, resource="nvidia.com/gpu", pci_address=address)
    found = listed_devices.disagreement(ListedDevice("gpu-0", UUID, "gpu", PCI), device)
    assert found.startswith(why)
    assert bool(found) is bool(why)
