"""Which of the free devices the kubelet should take: the fewest NVLink islands and NUMA nodes.

Devices that must be included come first. The rest is filled class by class: clean devices, then healthy devices that
need a scrub, then unhealthy devices. A device that is not clean makes its pod wait, and no placement is worth a wait.
Only the last class that is used leaves a choice. The choice follows these rules, in this order:

1. as few further NVLink islands as possible (a device without links is an island of its own);
2. then as few further NUMA nodes as possible;
3. then the tightest fit, so that larger requests still find room: the nodes with the fewest free devices, then the
   smallest island that is large enough;
4. then the lower index.

An island or node is a further one if no device on it is chosen yet, neither in an earlier class nor by the request.
The fewest islands need no search: take the largest remaining island until one island can hold the rest. NUMA
nodes are searched, small sets before large sets, for a set that needs no more islands than all nodes together. The
search is bounded (`MOST_NODES`, `MOST_SETS`); if it finds no set, all nodes are allowed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from plugin.devices import Device

MOST_NODES = 8  # two sockets of four nodes each
MOST_SETS = 64  # all sets of six nodes

Nodes: TypeAlias = AbstractSet[int | None]
Cells: TypeAlias = Mapping[tuple[str, int | None], int]  # number of devices by island and NUMA node


def prefer(devices: Sequence[Device], available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """Choose `size` of the available devices; an empty list if that is impossible, because an error would fail the pod.

    An id that is not among the devices is not available.
    """
    offered, demanded = set(available), set(must)
    candidates = {device.uuid: device for device in sorted(devices, key=_place) if device.uuid in offered}
    if not 0 < size <= len(candidates) or len(demanded) > size or not demanded <= candidates.keys():
        return []
    chosen = [device for device in candidates.values() if device.uuid in demanded]
    free = [device for device in candidates.values() if device.uuid not in demanded]
    for _, alike in itertools.groupby(sorted(free, key=_class), key=_class):
        choices, missing = list(alike), size - len(chosen)
        chosen += choices if len(choices) <= missing else _nearest(choices, chosen, missing)
    return [device.uuid for device in sorted(chosen, key=_place)]


def _place(device: Device) -> tuple[int, str]:
    return device.index, device.uuid


def _class(device: Device) -> tuple[bool, bool]:
    """Sort key: devices to take first come first."""
    return not device.healthy, not device.clean


def _island(device: Device) -> str:
    return device.island or device.uuid


def _nearest(choices: Sequence[Device], chosen: Sequence[Device], missing: int) -> list[Device]:
    """Take this many of the choices, close to each other and to the chosen devices."""
    touched = {_island(device) for device in chosen}
    cells = Counter((_island(device), device.numa_node) for device in choices)
    nodes = _fewest_nodes(cells, {device.numa_node for device in chosen}, touched, missing)
    further = _further_islands(_sizes(cells, nodes), touched, missing)
    turn = dict.fromkeys(touched, 0) | {island: number for number, island in enumerate(further, start=1)}
    within = [device for device in choices if device.numa_node in nodes and _island(device) in turn]
    return sorted(within, key=lambda device: turn[_island(device)])[:missing]


def _sizes(cells: Cells, nodes: Nodes) -> dict[str, int]:
    """The number of devices of each island on these nodes."""
    sizes: dict[str, int] = {}
    for (island, node), count in cells.items():
        if node in nodes:
            sizes[island] = sizes.get(island, 0) + count
    return sizes


def _further_islands(sizes: Mapping[str, int], touched: AbstractSet[str], missing: int) -> list[str]:
    """The fewest islands for what the touched islands cannot hold. Only the last one may stay partly free."""
    missing -= sum(sizes.get(island, 0) for island in touched)
    largest_first = sorted((island for island in sizes if island not in touched), key=lambda island: -sizes[island])
    islands: list[str] = []
    while missing > 0:
        island = largest_first[len(islands)]
        if sizes[island] >= missing:
            suffices = [each for each in largest_first[len(islands) :] if sizes[each] >= missing]
            island = min(suffices, key=lambda each: sizes[each])
        islands.append(island)
        missing -= sizes[island]
    return islands


def _fewest_nodes(cells: Cells, near: Nodes, touched: AbstractSet[str], missing: int) -> Nodes:
    """The smallest set of NUMA nodes, with those in ``near``, that needs no additional island."""
    every = {node for _, node in cells}
    islands = len(_further_islands(_sizes(cells, every), touched, missing))
    for nodes in itertools.islice(_node_sets(cells, near, missing), MOST_SETS):
        if len(_further_islands(_sizes(cells, nodes), touched, missing)) == islands:
            return nodes
    return every


def _node_sets(cells: Cells, near: Nodes, missing: int) -> Iterator[Nodes]:
    """Sets of NUMA nodes with enough devices: the fewest further nodes first, then the tightest fit."""
    held: dict[int | None, int] = {}
    for (_, node), count in cells.items():
        held[node] = held.get(node, 0) + count
    further = [node for node in held if node not in near]
    for number in range(len(further) + 1) if len(further) <= MOST_NODES else ():
        added = sorted(itertools.combinations(further, number), key=lambda nodes: sum(held[node] for node in nodes))
        for nodes in (near | set(each) for each in added):
            if sum(held.get(node, 0) for node in nodes) >= missing:
                yield nodes
