"""Under which name a device is offered, if at all."""

from dataclasses import asdict, replace

import pytest

from plugin import devices
from plugin.devices import Device, MigStrategy
from tests.plugin.scrub_server import gpu

WHOLE = gpu(0)
SLICE = gpu(1, mig=True, resource="nvidia.com/mig-1g.10gb")


@pytest.mark.parametrize(
    ("device", "strategy", "expected"),
    [
        (WHOLE, MigStrategy.NONE, "a.io/gpu"),
        (WHOLE, MigStrategy.SINGLE, "a.io/gpu"),
        (WHOLE, MigStrategy.MIXED, "a.io/gpu"),
        (SLICE, MigStrategy.NONE, None),
        (SLICE, MigStrategy.SINGLE, "a.io/gpu"),
        (SLICE, MigStrategy.MIXED, "a.io/mig-1g.10gb"),
    ],
)
def test_the_resource_name_depends_on_device_and_strategy(device, strategy, expected):
    assert devices.resource_name(device, "a.io", strategy) == expected


def test_everything_that_is_known_of_a_device_is_kept():
    device = gpu(3, healthy=False, clean=True, numa_node=1, island="nvlink-0", nodes=("/dev/nvidia3",))
    device = replace(device, reason="xid", quarantined=True, sick=True, replaced=True)
    assert list(devices.own_devices("a.io", MigStrategy.NONE)([device])) == [
        Device(**asdict(device) | {"resource": "a.io/gpu"}, gone=False)
    ]


def test_a_device_not_offered_is_not_listed():
    assert [it.uuid for it in devices.own_devices("nvidia.com", MigStrategy.NONE)([SLICE, WHOLE])] == [WHOLE.uuid]


@pytest.mark.parametrize(("said", "known"), [(None, None), (-1, None), (0, 0), (1, 1)])
def test_a_negative_numa_node_is_unknown(said, known):
    (device,) = devices.own_devices("nvidia.com", MigStrategy.NONE)([gpu(0, numa_node=said)])
    assert device.numa_node == known
