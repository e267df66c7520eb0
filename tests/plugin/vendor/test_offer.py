"""Which lists of a vendor's plugin can be used."""

import pytest

from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.vendor import offer


def listed(*ids):
    return wire.ListAndWatchResponse(devices=[wire.Device(ID=name, health="Healthy") for name in ids])


def many(number, begin="GPU"):
    return listed(*(f"{begin}-{index:05}" for index in range(number)))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (listed(""), "it has a device with the id ''"),
        (listed("n" * 256), "it has a device with the id 'nnn"),
        (listed("GPU-1\n"), r"it has a device with the id 'GPU-1\\n'"),
        (listed("GPU-1", "GPU-1"), "it has a device twice"),
        (many(offer.MOST + 1), "it has 4097 devices, and at most 4096 can be offered"),
    ],
)
def test_a_list_of_another_form_cannot_be_used(message, why):
    with pytest.raises(ValueError, match=why):
        offer.read(message)


def test_the_bound_holds_over_all_lists_of_a_resource():
    """A device that was listed once stays in the list for the kubelet."""
    lists = offer.VendorOffer()
    lists.put("nvidia.com/gpu", offer.read(many(offer.MOST)))
    assert lists.doubts == {}
    with pytest.raises(ValueError, match="it has 4097 devices with those of earlier lists"):
        lists.put("nvidia.com/gpu", offer.read(many(1, "MIG")))
    lists.put("nvidia.com/mig", offer.read(many(1, "MIG")))
    assert len(lists.ids("nvidia.com/gpu")) == offer.MOST
    lists.put("nvidia.com/gpu", offer.read(many(1)))
    assert lists.healthy("nvidia.com/gpu", "GPU-00000")


def test_a_device_that_is_doubted_again_stays_doubted():
    lists, sick = offer.VendorOffer(), wire.ListAndWatchResponse(devices=[wire.Device(ID="GPU-1", health="Unhealthy")])
    lists.put("nvidia.com/gpu", offer.read(sick))
    first = lists.doubts["GPU-1"]
    for message in (listed("GPU-1"), sick, listed("GPU-1")):
        lists.put("nvidia.com/gpu", offer.read(message))
    lists.trust("GPU-1", first)
    assert not lists.healthy("nvidia.com/gpu", "GPU-1")
    lists.trust("GPU-1", lists.doubts["GPU-1"])
    assert lists.healthy("nvidia.com/gpu", "GPU-1")
