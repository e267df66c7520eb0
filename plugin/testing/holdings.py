"""Who holds which devices: the kubelet's memory of finished Allocate calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceHolding:
    """The devices of one resource that one container got, and the plugin's answer for them."""

    by_node: Mapping[int, tuple[str, ...]]  # NUMA node, or -1, to ids; a device of two nodes stands under both
    response: bytes  # a serialized ContainerAllocateResponse

    @property
    def ids(self) -> tuple[str, ...]:
        """The devices, each once."""
        return tuple(sorted({one for ids in self.by_node.values() for one in ids}))


Key = tuple[str, str, str]  # pod UID, container, resource


class Holdings:
    """Lost when the kubelet dies, read again from its checkpoint."""

    def __init__(self, held: Mapping[Key, DeviceHolding]) -> None:
        """What the checkpoint says."""
        self._held: dict[Key, DeviceHolding] = dict(held)

    def __iter__(self) -> Iterator[tuple[Key, DeviceHolding]]:
        """All of them."""
        return iter(self._held.items())

    def put(self, key: Key, holding: DeviceHolding) -> None:
        """An Allocate succeeded."""
        self._held[key] = holding

    def get(self, pod: str, container: str, resource: str) -> DeviceHolding | None:
        """What this container holds of this resource."""
        return self._held.get((pod, container, resource))

    def of_container(self, pod: str, container: str) -> dict[str, DeviceHolding]:
        """What this container holds, by resource."""
        return {key[2]: held for key, held in self._held.items() if key[:2] == (pod, container)}

    def pods(self) -> set[str]:
        """The UIDs of all that hold anything."""
        return {pod for pod, _, _ in self._held}

    def drop(self, pods: Iterable[str]) -> None:
        """These pods are gone."""
        gone = set(pods)
        self._held = {key: held for key, held in self._held.items() if key[0] not in gone}

    def taken(self) -> dict[str, set[str]]:
        """The devices that are held, by resource."""
        taken: dict[str, set[str]] = {}
        for (_, _, resource), held in self._held.items():
            taken.setdefault(resource, set()).update(held.ids)
        return taken
