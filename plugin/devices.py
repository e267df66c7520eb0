"""What the plugin knows of a device, and the resource name under which the kubelet sees it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from scrubber.ground.advertised_device import AdvertisedDevice


class MigStrategy(Enum):
    """How MIG devices are offered: not at all, under the name of whole GPUs, or each profile under its own name."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Device:
    """One device in the list for the kubelet, and what Allocate needs to answer for it."""

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
    sick: bool = False
    replaced: bool = False
    gone: bool = False  # the scrub service does not list it any more


def offered(adverts: Iterable[AdvertisedDevice], prefix: str, strategy: MigStrategy) -> Iterator[Device]:
    """The devices to list, each under its full resource name."""
    for advert in adverts:
        resource = resource_name(advert, prefix, strategy)
        if resource is None:
            continue
        # The kubelet reads -1 as "no node", so a negative number is an unknown node.
        numa_node = advert.numa_node if advert.numa_node is not None and advert.numa_node >= 0 else None
        yield Device(
            uuid=advert.device,
            resource=resource,
            healthy=advert.healthy,
            clean=advert.clean,
            index=advert.index,
            mig=advert.mig,
            numa_node=numa_node,
            island=advert.island,
            nodes=advert.nodes,
            reason=advert.reason,
            quarantined=advert.quarantined,
            sick=advert.sick,
            replaced=advert.replaced,
        )


def resource_name(advert: AdvertisedDevice, prefix: str, strategy: MigStrategy) -> str | None:
    """The resource that pods request to get this device; None if the device is not offered."""
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
