"""The ResourceSlice of our own driver as JSON: the devices of a node with attributes and taints. Pure.

All devices of a node are in one slice, so that each update is complete in itself. The scheduler takes the first device
of the list that fits, so clean devices stand first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from plugin.devices import Device, pci_bus_id

API_VERSION, KIND = "resource.k8s.io/v1", "ResourceSlice"
MOST_DEVICES, MOST_TAINTED = 128, 64  # in a slice; the second limit holds for a slice with taints
TAINTS_GATE = "DRADeviceTaints"  # the feature gate without which the API server drops the taints
LONGEST_TEXT = 64  # characters in the value of an attribute
LONGEST_VALUE = 63  # characters in the value of a taint, or of a label
TAINT = "unhealthy"
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool of a node's devices. It has the node's name."""

    driver: str
    node: str
    node_uid: str


def slice_name(driver: str, node: str) -> str:
    """The name of the slice of a node."""
    return f"{node}-{driver}"


def skips_prepare(resource_slice: Mapping[str, Any]) -> bool:
    """Whether a pod can get a device of this slice without a call to the driver (KEP-5945)."""
    return not {"*", "NodePrepareResources"}.isdisjoint(resource_slice["spec"].get("skipNodeOperations") or ())


def device_name(uuid: str) -> str:
    """The name of a device in claims. It contains the UUID, so no other GPU ever has this name."""
    return uuid.lower()


def resource_slice(pool: Pool, devices: Iterable[Device], *, taints: bool) -> dict[str, Any]:
    """The object for the API server.

    With ``taints``, an unhealthy device has a taint that says why. Otherwise it is left out.
    """
    present = sorted(
        (device for device in devices if not (device.gone or device.replaced)),
        key=lambda device: (not device.clean, device.index, device.uuid),
    )
    offered = [device for device in present if device.healthy]
    tainted = [device for device in present if not device.healthy]
    if taints and tainted and len(present) <= MOST_TAINTED:
        offered += tainted
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": slice_name(pool.driver, pool.node),
            "ownerReferences": [owner(pool)],
        },
        "spec": {
            "driver": pool.driver,
            "nodeName": pool.node,
            "pool": {"name": pool.node, "generation": 1, "resourceSliceCount": 1},
            # The API server drops an empty list.
            **({"devices": [_device(device, pool.driver) for device in offered[:MOST_DEVICES]]} if offered else {}),
        },
    }


def owner(pool: Pool) -> dict[str, Any]:
    """The owner of a slice or a rule: Kubernetes deletes both with the node."""
    return {"apiVersion": "v1", "kind": "Node", "name": pool.node, "uid": pool.node_uid, "controller": True}


# Fields that a slice or a device may lose. A taint that stayed would keep all pods away from a healthy device.
_OPTIONAL = frozenset({"devices", "capacity", "taints"})


def with_a_taint(pool: Pool) -> dict[str, Any]:
    """A slice to try: its device does not exist, and has a taint."""
    unhealthy = Device("gpu-a", healthy=False, clean=False, numa_node=None, resource="")
    return resource_slice(pool, (unhealthy,), taints=True)


def withdrawn(device: Device) -> Device:
    """The device while the scrub service does not answer: no claim may get it."""
    return replace(device, healthy=False, clean=False, reason="no-answer")


def has_taint(resource_slice: Mapping[str, Any]) -> bool:
    """Whether a device of a slice has a taint."""
    return any(device.get("taints") for device in resource_slice["spec"].get("devices") or ())


def covers(present: object, wanted: object) -> bool:
    """Whether an object has all fields of the wanted object, and no field that the wanted object leaves out.

    The API server adds fields of its own: they do not count.
    """
    match wanted:
        case Mapping():
            return (
                isinstance(present, Mapping)
                and all(covers(present.get(key), value) for key, value in wanted.items())
                and not any(present.get(key) for key in _OPTIONAL - wanted.keys())
            )
        case list():
            return (
                isinstance(present, list)
                and len(present) == len(wanted)
                and all(covers(one, other) for one, other in zip(present, wanted, strict=True))
            )
        case _:
            return present == wanted


def _device(device: Device, driver: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "type": {"string": "mig" if device.mig else "gpu"},
        "uuid": {"string": device.uuid[:LONGEST_TEXT]},
        "index": {"int": device.index},
    }
    if device.model:
        attributes["productName"] = {"string": device.model[:LONGEST_TEXT]}
    if device.numa_node is not None:
        attributes["resource.kubernetes.io/numaNode"] = {"int": device.numa_node}
    if address := pci_bus_id(device):
        attributes[PCI_BUS_ID] = {"string": address}
    listed: dict[str, Any] = {"name": device_name(device.uuid), "attributes": attributes}
    if device.memory_bytes:
        listed["capacity"] = {"memory": {"value": str(device.memory_bytes)}}
    if not device.healthy:
        listed["taints"] = [taint(driver, device)]
    return listed


def taint(driver: str, device: Device) -> dict[str, str]:
    """What keeps the scheduler away from an unhealthy device. The key is in the domain of the driver that taints it."""
    why = device.reason or ("quarantined" if device.quarantined else "not-clean")
    # As the value of a label: letters, digits, and ``-`` between them.
    allowed = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in why)
    return {"key": f"{driver}/{TAINT}", "value": allowed[:LONGEST_VALUE].strip("-"), "effect": "NoSchedule"}
