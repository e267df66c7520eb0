"""Does a vendor's answer to Allocate give a container the granted GPUs, and no other?

Vendors name GPUs in many ways: by CDI device, by variable, by mount, by device node; by UUID or by index. Every name in
an answer is looked up. What names another GPU, or no known one, is refused, and so is an answer that leaves out a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.response import MOUNTS, VARIABLE
from plugin.vendor import cdi
from scrubber.ground.device_messages import AdvertisedDevice
from scrubber.ground.errors import Reason, Refused

_NO_NAMES = frozenset({"", "none", "void", MOUNTS})  # of the variable: other parts of the answer name the devices
_CDI_ANNOTATION = "cdi.k8s.io/"


def check(
    answer: wire.AllocateResponse,
    granted: Collection[Collection[AdvertisedDevice]],
    on_node: Collection[AdvertisedDevice],
    cdi_dirs: Collection[Path],
) -> None:
    """Raise Refused if the answer disagrees with the grant. ``granted``: the devices of each container."""
    if len(answer.container_responses) != len(granted):
        count = len(answer.container_responses)
        raise _wrong(f"it has an answer for {count} containers, and {len(granted)} were asked for")
    for response, devices in zip(answer.container_responses, granted, strict=True):
        _check_container(response, devices, on_node, cdi_dirs)


def _check_container(
    response: wire.ContainerAllocateResponse,
    granted: Collection[AdvertisedDevice],
    on_node: Collection[AdvertisedDevice],
    cdi_dirs: Collection[Path],
) -> None:
    edits: list[object] = [_as_edits(response)]
    for name in _cdi_names(response):
        edits += [name.partition("=")[2], *cdi.edits(name, cdi_dirs)]
    for each in edits:
        if found := cdi.foreign(each, granted, on_node):
            raise _wrong(f"it names {found}, which was not granted")
    named = {device.uuid for device in granted if cdi.names(device, edits)}
    for way in (_in_variable(response), _in_mounts(response)):
        named |= {_uuid(text, granted, on_node) for text in way}
    if missing := sorted({device.uuid for device in granted} - named):
        raise _wrong(f"it does not name {missing[0]}, which was granted")


def _as_edits(response: wire.ContainerAllocateResponse) -> Mapping[str, Any]:
    """The answer in the words of CDI, without the parts that name devices by index."""
    return {
        "env": [f"{key}={value}" for key, value in response.envs.items() if key != VARIABLE],
        "deviceNodes": [{"path": node.container_path, "hostPath": node.host_path} for node in response.devices],
        "mounts": [{"containerPath": it.container_path, "hostPath": it.host_path} for it in response.mounts],
        "annotations": [text for key, text in response.annotations.items() if not key.startswith(_CDI_ANNOTATION)],
    }


def _cdi_names(response: wire.ContainerAllocateResponse) -> Iterator[str]:
    yield from (device.name for device in response.cdi_devices)
    for key, names in response.annotations.items():
        if key.startswith(_CDI_ANNOTATION):
            yield from names.split(",")


def _in_variable(response: wire.ContainerAllocateResponse) -> Iterator[str]:
    value = response.envs.get(VARIABLE, "")
    if value not in _NO_NAMES:
        yield from value.split(",")


def _in_mounts(response: wire.ContainerAllocateResponse) -> Iterable[str]:
    paths = (mount.container_path for mount in response.mounts)
    return (path.removeprefix(f"{MOUNTS}/") for path in paths if path.startswith(f"{MOUNTS}/"))


def _uuid(text: str, granted: Collection[AdvertisedDevice], on_node: Iterable[AdvertisedDevice]) -> str:
    """The granted device that is meant, by UUID or by the index of a whole GPU; Refused if it is another one."""
    for device in on_node:
        if text == device.uuid or (text == str(device.index) and not device.mig):
            if any(device.uuid == it.uuid for it in granted):
                return device.uuid
            raise _wrong(f"it names {device.uuid}, which was not granted")
    raise _wrong(f"it names {text!r}, which is no GPU of this node")


def _wrong(why: str) -> Refused:
    return Refused(Reason.VENDOR, f"the answer of the vendor's plugin is refused: {why}")
