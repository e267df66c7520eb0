"""What the plugin knows of a device, and by which name the kubelet is told of it. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

GONE = "gone"  # the reason why a device is out that the service does not name any more
# The service's words for a device that was taken away on purpose: another one, or another layout, is in its place.
LEFT = frozenset({"replaced", "relaid"})


class MigStrategy(Enum):
    """How the slices of a GPU are offered: not at all, like whole GPUs, or each size under a name of its own."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Device:
    """One device as the kubelet is told of it, and what is needed to hand it out."""

    uuid: str
    resource: str
    healthy: bool
    clean: bool
    index: int
    mig: bool
    numa_node: int | None
    island: str
    nodes: tuple[str, ...]
    reason: str = ""
    quarantined: bool = False


class OfferedDevice(Protocol):
    """What the scrub service says of a device."""

    @property
    def device(self) -> str:
        """Its UUID."""

    @property
    def healthy(self) -> bool:
        """Whether the kubelet may give it to a pod."""

    @property
    def clean(self) -> bool:
        """Whether it could go out without a wait."""

    @property
    def numa_node(self) -> int | None:
        """The memory it is near to, if known."""

    @property
    def resource(self) -> str:
        """What the hardware calls it."""

    @property
    def index(self) -> int:
        """Its place among the devices of the node."""

    @property
    def mig(self) -> bool:
        """Whether it is a slice of a GPU."""

    @property
    def island(self) -> str:
        """Devices of one island are joined by fast links; empty: none."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Device nodes of this device alone."""

    @property
    def reason(self) -> str:
        """The word for what ails it; empty: nothing that is known of."""

    @property
    def quarantined(self) -> bool:
        """Whether it is kept out; with a reason and without this it is sick and still in use."""


def offered(adverts: Iterable[OfferedDevice], prefix: str, strategy: MigStrategy) -> Iterator[Device]:
    """The devices that the kubelet is told of, each under its full resource name."""
    for advert in adverts:
        resource = resource_name(advert, prefix, strategy)
        if resource is None:
            continue
        # The kubelet takes -1 for "no node"; what is below zero is an unknown one.
        near = advert.numa_node if advert.numa_node is not None and advert.numa_node >= 0 else None
        yield Device(
            uuid=advert.device,
            resource=resource,
            healthy=advert.healthy,
            clean=advert.clean,
            index=advert.index,
            mig=advert.mig,
            numa_node=near,
            island=advert.island,
            nodes=advert.nodes,
            reason=advert.reason,
            quarantined=advert.quarantined,
        )


def resource_name(advert: OfferedDevice, prefix: str, strategy: MigStrategy) -> str | None:
    """What pods ask for to get this device; None when it is not offered."""
    kind = advert.resource.rpartition("/")[2]
    if not advert.mig:
        return f"{prefix}/{kind}"
    match strategy:
        case MigStrategy.NONE:
            return None
        case MigStrategy.SINGLE:
            return f"{prefix}/gpu"
        case MigStrategy.MIXED:
            return f"{prefix}/{kind}"
