"""What a worker sees at the last look before a device counts as clean."""

from __future__ import annotations

import json

import pynvml
import pytest

from scrubber.core.model import AilmentKind, Vitals
from scrubber.devices.base import DeviceError, DeviceHandling
from tests.devices.nvidia.bench import touch
from tests.devices.nvidia.conftest import boot
from tests.devices.nvidia.health.watching import DOWN, change

UNKNOWN, UNTOLD, FORBIDDEN = (
    pynvml.NVML_ERROR_UNKNOWN,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
)


def test_a_worker_learns_which_links_were_up_since_boot(rig) -> None:
    uuid = rig.gpu(0).uuid

    def links_up() -> list[int]:
        backend = rig.backend()
        backend.inventory()
        backend.vitals(uuid)
        links: list[int] = json.loads(backend.address(uuid, DeviceHandling()).place)["links"]
        return links

    assert links_up() == [*range(18)]
    change(rig, {"nvlink.3": DOWN, "nvlink.17": DOWN})
    assert links_up() == [*range(18)]  # it is another service, and remembers
    boot(rig.host, "boot-2")
    assert links_up() == sorted({*range(18)} - {3, 17})


@pytest.mark.parametrize("call", ["nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetNvLinkState"])
def test_an_unreadable_value_is_no_sign_for_a_worker(rig, call: str) -> None:
    rig.gpu(0).fail(call, FORBIDDEN)
    hands = touch(rig, 0, links=[*range(18)])
    assert (hands.vitals(), rig.backend().vitals(rig.gpu(0).uuid)) == (Vitals(), Vitals())
    rig.gpu(0).fail(call, UNKNOWN)
    with pytest.raises(DeviceError, match=call.removesuffix("Status")):
        hands.vitals()


def test_a_worker_reports_links_that_vanished(rig) -> None:
    hands = touch(rig, 0, links=[*range(18)])
    assert hands.vitals() == Vitals()
    rig.gpu(0).fail("nvmlDeviceGetNvLinkState", UNTOLD)
    assert [sign.kind for sign in hands.vitals().signs] == [AilmentKind.LINKS]
