"""Which devices are taken: a table of machines, and what holds for every request."""

import itertools
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugin import preferred
from plugin.devices import Device


def device(index, island="", node=None, *, clean=True, healthy=True):
    return Device(f"GPU-{index:03d}", healthy, clean, node, "nvidia.com/gpu", index, island=island)


def machine(islands, nodes, dirty=(), sick=()):
    """One device for each letter: its island (a dot: none) and the digit of its NUMA node (a dot: not known)."""
    return [
        device(
            index,
            island.replace(".", ""),
            None if node == "." else int(node),
            clean=index not in dirty,
            healthy=index not in sick,
        )
        for index, (island, node) in enumerate(zip(islands, nodes, strict=True))
    ]


def pick(devices, size, must=(), available=None):
    """The choice, as indexes."""
    ids = [each.uuid for each in devices] if available is None else [f"GPU-{index:03d}" for index in available]
    chosen = preferred.prefer(devices, ids, [f"GPU-{index:03d}" for index in must], size)
    return [int(each.removeprefix("GPU-")) for each in chosen]


HGX = ("aaaaaaaa", "00001111")
TWO = ("aaaabbbb", "00001111")
ACROSS = ("aabbccdd", "01010011")
LOOSE = ("........", "01010101")

TABLE = {
    # machine, keywords of it, size, must, available, expected
    "the lowest index of equals": (HGX, {}, 1, (), None, [0]),
    "what is left of a node, not a piece of a whole one": (HGX, {}, 1, (), range(3, 8), [3]),
    "the island that has enough left": (TWO, {}, 3, (), [1, 2, 4, 5, 6], [4, 5, 6]),
    "the tighter island": (TWO, {}, 2, (), [0, 1, 2, 3, 6, 7], [6, 7]),
    "beside what must be included, and no third island": (("aabbbccc", "00000000"), {}, 4, (0, 2), None, [0, 1, 2, 3]),
    "a pair on one node before one across two": (ACROSS, {}, 2, (), None, [4, 5]),
    "near what must be included, though another node is tighter": (LOOSE, {}, 2, (3,), [1, 2, 3, 4, 5, 7], [1, 3]),
    "a large island whole and a piece of a small one": (("aabbbb", "000000"), {}, 5, (), None, [0, 2, 3, 4, 5]),
    "an island is filled before the next is begun": (("aaabbb", "000000"), {}, 5, (0,), None, [0, 1, 2, 3, 4]),
    "healthy before unhealthy, even if that one is clean": (HGX, {"dirty": {1}, "sick": {0}}, 1, (), [0, 1], [1]),
    "what must be included may be dirty": (TWO, {"dirty": {6}}, 2, (6,), None, [4, 6]),
    "more than are available": (TWO, {}, 3, (), [1, 2], []),
    "none": (TWO, {}, 0, (), None, []),
    "must be included, but more than asked for": (TWO, {}, 1, (1, 2), None, []),
    "an unknown one is not chosen": (TWO, {}, 1, (), [90, 5], [5]),
    "an unknown one cannot be included": (TWO, {}, 2, (90,), [90, 5], []),
}


@pytest.mark.parametrize(("where", "state", "size", "must", "available", "expected"), TABLE.values(), ids=TABLE)
def test_the_choice(where, state, size, must, available, expected):
    assert pick(machine(*where, **state), size, must, available) == expected


def test_ids_that_are_said_twice_count_once():
    assert pick(machine(*TWO), 2, must=(5, 5), available=[5, 5, 6, 6]) == [5, 6]
    assert pick(machine(*TWO), 3, available=[5, 5, 6, 6]) == []


def test_eight_numa_nodes_are_searched():
    devices = machine("aaaaaaaaaaaa", "012345670123")
    assert pick(devices, 4) == [0, 1, 8, 9]


def test_many_numa_nodes_do_not_change_the_preferred_islands():
    devices = [device(index, f"{index % 10}", index) for index in range(40)]
    assert {index % 10 for index in pick(devices, 4)} == {0}


cases = st.lists(
    st.builds(
        device,
        index=st.just(0),
        island=st.sampled_from(["", "a", "b", "c"]),
        node=st.sampled_from([None, 0, 1, 2]),
        clean=st.booleans(),
        healthy=st.sampled_from([True, True, True, False]),
    ),
    min_size=1,
    max_size=8,
).map(lambda devices: [replace(each, uuid=f"GPU-{n:03d}", index=n) for n, each in enumerate(devices)])


@st.composite
def requests(draw):
    """Devices, those that are available, those that must be included, and a size that is possible."""
    devices = draw(cases)
    available = draw(st.lists(st.sampled_from(devices), unique=True, min_size=1))
    must = draw(st.lists(st.sampled_from(available), unique=True, max_size=len(available)))
    size = draw(st.integers(max(1, len(must)), len(available)))
    return devices, available, must, size


def ids(devices):
    return [each.uuid for each in devices]


def answer(request):
    devices, available, must, size = request
    chosen = preferred.prefer(devices, ids(available), ids(must), size)
    return [each for each in devices if each.uuid in chosen], chosen


@given(requests())
def test_a_request_that_can_be_met_gets_all_devices(request):
    _, available, must, size = request
    _, chosen = answer(request)
    assert len(chosen) == len(set(chosen)) == size
    assert set(ids(must)) <= set(chosen) <= set(ids(available))


@given(requests())
def test_nothing_is_taken_while_something_better_is_left(request):
    _, available, must, _ = request
    chosen, _ = answer(request)
    left = [each for each in available if each not in chosen]
    for taken, better in itertools.product([each for each in chosen if each not in must], left):
        assert (taken.healthy, taken.clean) >= (better.healthy, better.clean)


@given(requests(), st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_said_is_no_matter(request, random):
    devices, available, must, size = request
    _, chosen = answer(request)
    shuffled = [random.sample(each, len(each)) for each in (devices, available, must)]
    assert preferred.prefer(shuffled[0], ids(shuffled[1]), ids(shuffled[2]), size) == chosen


def spread(devices):
    return len({each.island or each.uuid for each in devices}), len({each.numa_node for each in devices})


def classes(devices):
    return sorted((not each.healthy, not each.clean) for each in devices)


@given(requests())
def test_the_preferred_choice_uses_fewest_islands_and_nodes(request):
    _, available, must, size = request
    chosen, _ = answer(request)
    free = [each for each in available if each not in must]
    others = [[*must, *more] for more in itertools.combinations(free, size - len(must))]
    best = min(classes(each) for each in others)
    assert classes(chosen) == best
    assert spread(chosen) == min(spread(each) for each in others if classes(each) == best)


@given(
    cases, st.lists(st.sampled_from([f"GPU-{n:03d}" for n in range(10)] + ["x"])), st.lists(st.text()), st.integers()
)
def test_no_request_raises(devices, available, must, size):
    assert set(preferred.prefer(devices, available, must, size)) <= set(available)


@pytest.mark.parametrize("islands", [1, 16, 112])
@pytest.mark.parametrize("nodes", [1, 2, 8, 16])
def test_a_machine_full_of_slices_is_answered_at_once(islands, nodes):
    """The kubelet's whole loop waits for the answer. It takes some 0.3 ms; the test leaves room for a busy machine."""
    devices = [device(n, f"{n % islands}", n * nodes // 112, clean=n % 3 > 0) for n in range(112)]
    for size in (1, 8, 55, 111):
        seconds = []
        for _ in range(5):
            before = time.perf_counter()
            assert len(pick(devices, size)) == size
            seconds.append(time.perf_counter() - before)
        assert min(seconds) < 0.02
