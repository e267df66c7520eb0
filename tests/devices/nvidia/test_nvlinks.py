"""Who is joined to whom, and who goes down with whom."""

from __future__ import annotations

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubber.devices.nvidia import nvlinks
from scrubber.devices.nvidia.nvlinks import Links

TURING, AMPERE, ADA, HOPPER = (
    pynvml.NVML_DEVICE_ARCH_TURING,
    pynvml.NVML_DEVICE_ARCH_AMPERE,
    pynvml.NVML_DEVICE_ARCH_ADA,
    pynvml.NVML_DEVICE_ARCH_HOPPER,
)
ALONE, SWITCHED = Links(), Links(switched=True)


def read(rig, number: int) -> Links:
    with rig.library.session() as nvml:
        return nvlinks.of(nvml, nvml.handle(rig.gpu(number).uuid))


def join(rig, *pairs: tuple[int, int]) -> None:
    """Links between two GPUs each, and no others."""
    for gpu in rig.machine.gpus:
        gpu.set({f"nvlink.{number}": None for number in range(18)})
    for number, (one, other) in enumerate(pairs):
        for here, there in ((one, other), (other, one)):
            rig.gpu(here).set({f"nvlink.{number}": f"1 0 3 {rig.gpu(there)['pci']}"})


def test_gpus_on_switches_are_switched(rig) -> None:
    assert read(rig, 0) == SWITCHED


def test_links_before_and_after_an_unsupported_link_are_found(rig) -> None:
    join(rig, (0, 1), (0, 2), (0, 3))
    rig.gpu(0).set({"nvlink.1": None})
    rig.gpu(3).set({"nvlink.2": f"0 0 3 {rig.gpu(0)['pci']}"})  # is down
    assert read(rig, 3) == ALONE
    assert read(rig, 0).peers == {rig.gpu(1).pci, rig.gpu(3).pci}


def test_islands_are_named_after_their_first_member() -> None:
    gpus = {"c": ("3", Links(frozenset({"2"}))), "b": ("2", ALONE), "a": ("1", ALONE)}
    assert nvlinks.islands(gpus) == {"b": "b", "c": "b"}


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12), st.sets(st.integers(0, 7)))
def test_linked_gpus_form_one_island_in_any_order(pairs, switched) -> None:
    def islands_of(pairs: list[tuple[int, int]]) -> dict[str, str]:
        peers = {one: {str(other) for first, other in pairs if first == one} for one in range(8)}
        return nvlinks.islands({f"g{one}": (str(one), Links(frozenset(peers[one]), one in switched)) for one in peers})

    islands = islands_of(pairs)
    for one, other in pairs:
        assert one == other or islands[f"g{one}"] == islands[f"g{other}"]
    assert len({islands[f"g{one}"] for one in switched if f"g{one}" in islands}) <= 1
    assert all(sum(island == other for other in islands.values()) > 1 for island in islands.values())
    assert islands_of([(other, one) for one, other in reversed(pairs)]) == islands


@pytest.mark.parametrize(
    ("architecture", "switches", "domain"),
    [
        (HOPPER, True, None),
        (AMPERE, True, nvlinks.ALL_SWITCHED),
        (ADA, True, nvlinks.ALL_SWITCHED),
        (AMPERE, False, None),
        (TURING, False, "island"),
        (TURING, True, "island"),
        (0, True, "island"),
    ],
)
def test_the_gpus_that_a_reset_takes_down(architecture, switches, domain) -> None:
    assert nvlinks.reset_domain(architecture, "island", switches=switches) == domain
