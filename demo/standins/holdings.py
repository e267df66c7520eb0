"""The devices of each container: the kubelet's record of finished Allocate calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceHolding:
    """The devices of one resource for one container, and the plugin's answer for them."""

    by_node: Mapping[int, tuple[str, ...]]  # NUMA node or -1, to ids; a device of two nodes is under both
    response: bytes  # a serialized ContainerAllocateResponse

    @property
    def ids(self) -> tuple[str, ...]:
        """The devices, each once."""
        return tuple(sorted({one for ids in self.by_node.values() for one in ids}))


Key = tuple[str, str, str]  # pod UID, container, resource


class Holdings:
    """All records of one kubelet process; a restart reads them from the checkpoint."""

    def __init__(self, held: Mapping[Key, DeviceHolding]) -> None:
        self._held: dict[Key, DeviceHolding] = dict(held)

    def __iter__(self) -> Iterator[tuple[Key, DeviceHolding]]:
        return iter(self._held.items())

    def put(self, key: Key, holding: DeviceHolding) -> None:
        """Record a successful Allocate."""
        self._held[key] = holding

    def get(self, pod: str, container: str, resource: str) -> DeviceHolding | None:
        """The record of this resource for this container."""
        return self._held.get((pod, container, resource))

    def of_container(self, pod: str, container: str) -> dict[str, DeviceHolding]:
        """The records of this container, by resource."""
        return {key[2]: held for key, held in self._held.items() if key[:2] == (pod, container)}

    def pods(self) -> set[str]:
        """The UIDs of all pods with devices."""
        return {pod for pod, _, _ in self._held}

    def drop(self, pods: Iterable[str]) -> None:
        """Remove the records of deleted pods."""
        gone = set(pods)
        self._held = {key: held for key, held in self._held.items() if key[0] not in gone}

    def taken(self) -> dict[str, set[str]]:
        """The allocated devices, by resource."""
        taken: dict[str, set[str]] = {}
        for (_, _, resource), held in self._held.items():
            taken.setdefault(resource, set()).update(held.ids)
        return taken
