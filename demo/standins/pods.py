"""Pods and containers, with the properties that matter to a device plugin."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Self


class ContainerKind(Enum):
    """The kind of a container in its pod."""

    INIT = "init"
    SIDECAR = "sidecar"  # an init container with restartPolicy Always
    APP = "app"


class Phase(Enum):
    """The pod's phase, as in the API."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ContainerState(Enum):
    """The container's state, as in the API."""

    WAITING = "waiting"
    RUNNING = "running"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class Container:
    """One container and its device requests: resource name to count."""

    name: str
    resources: Mapping[str, int] = field(default_factory=dict)
    kind: ContainerKind = ContainerKind.APP
    claims: tuple[str, ...] = ()  # names of ResourceClaims of its pod


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """The status of a container."""

    state: ContainerState = ContainerState.WAITING
    reason: str = ""
    message: str = ""
    starts: int = 0  # how often it has started


@dataclass(frozen=True, slots=True)
class PodStatus:
    """The status of a pod."""

    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""


@dataclass(slots=True, eq=False)
class Pod:
    """A pod: the caller gives the specification, the kubelet keeps the statuses."""

    name: str
    containers: tuple[Container, ...]
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    status: PodStatus = PodStatus()
    statuses: dict[str, ContainerStatus] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Put init containers and sidecars before app containers, as in a pod's specification."""
        self.containers = tuple(sorted(self.containers, key=lambda container: container.kind is ContainerKind.APP))
        self.statuses = {container.name: ContainerStatus() for container in self.containers}
        if len(self.statuses) != len(self.containers):
            raise ValueError(f"cannot make pod {self.name}: two containers have the same name")

    @classmethod
    def of(cls, name: str, resources: Mapping[str, int] | None = None, *claims: str) -> Self:
        """A pod with one app container, named main."""
        return cls(name, (Container("main", resources or {}, claims=claims),))

    @property
    def claims(self) -> tuple[str, ...]:
        """The names of the pod's ResourceClaims, each once."""
        return tuple(dict.fromkeys(name for container in self.containers for name in container.claims))

    @property
    def phase(self) -> Phase:
        """Short for ``status.phase``."""
        return self.status.phase

    @property
    def reason(self) -> str:
        """Short for ``status.reason``."""
        return self.status.reason

    @property
    def message(self) -> str:
        """Short for ``status.message``."""
        return self.status.message

    def container(self, name: str) -> Container:
        """The container with this name."""
        for container in self.containers:
            if container.name == name:
                return container
        raise LookupError(f"pod {self.name} has no container {name}")

    def of_kind(self, *kinds: ContainerKind) -> Iterable[Container]:
        """The containers of these kinds, in the order of the specification."""
        return (container for container in self.containers if container.kind in kinds)
