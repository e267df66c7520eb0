"""Checks a vendor's answer to Allocate (envs, mounts, device nodes, CDI names): only the granted GPUs?

An answer may have the forms that NVIDIA's plugin gives it, and no other part: docs/in-front.md lists them. Each GPU
that it names, by UUID or by index, must be a granted one, and it must name each granted GPU. Unknown variables are the
only exception: a new variable that names no GPU and reaches no device must not stop all pods of a node. The vendor is
trusted with the code that its containers run, but not with their GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from ground.errors import InvalidRequest, Reason, Refused
from ground.quantities import quantity
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.response import MOUNTED, MOUNTS, VARIABLE
from plugin.vendor import cdi_edits, device_nodes
from scrub_api.device_messages import ReportedDevice

ALLOWED = "docs/in-front.md#what-an-answer-may-contain says what is allowed"
MOST = 1024  # mounts, device nodes, or CDI devices of one container: a request has at most 256 devices

_NO_NAMES = frozenset({"", "none", "void", MOUNTS})  # of the variable: other parts of the answer name the devices
_CHANNEL = re.compile(r"[0-9]+")  # of IMEX
_VARIABLES = {
    "NVIDIA_IMEX_CHANNELS": re.compile(r"[0-9]+(,[0-9]+)*"),
    "NVIDIA_GDRCOPY": re.compile("enabled"),
    "NVIDIA_GDS": re.compile("enabled"),
    "NVIDIA_MOFED": re.compile("enabled"),
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # of any other variable
# CUDA, its libraries by the linker, or what gives containers their devices acts on these: they may reach another GPU.
_REACHES_A_GPU = re.compile(r"(CUDA|NVIDIA|LD)_.*|.*_VISIBLE_DEVICES")
# The GPU operator has NVIDIA's plugin write the second prefix.
_ANNOTATION = re.compile(r"(nvidia\.)?cdi\.k8s\.io/nvidia-device-plugin_[A-Za-z0-9_.-]+")
_CDI_NAME = re.compile(r"k8s\.device-plugin\.nvidia\.com/(gpu|imex-channel|gdrcopy|gds|mofed)=[A-Za-z0-9_.:-]+")


def check(
    answer: wire.AllocateResponse,
    granted: Collection[Collection[ReportedDevice]],
    on_node: Collection[ReportedDevice],
    cdi_dirs: Collection[Path],
    variables: Collection[str] = (),
) -> frozenset[str]:
    """Raise Refused if the answer disagrees with the grant. Returns the unknown variables that pass.

    ``granted``: the devices of each container. ``variables``: the names of other variables that the operator lets pass.
    """
    if len(answer.container_responses) != len(granted):
        count = len(answer.container_responses)
        raise _wrong(f"it has an answer for {quantity(count, 'container')}, and the request has {len(granted)}")
    for response, devices in zip(answer.container_responses, granted, strict=True):
        _check_container(response, devices, on_node, cdi_dirs, variables)
    return frozenset(name for response in answer.container_responses for name in response.envs if _unknown(name))


def _check_container(
    response: wire.ContainerAllocateResponse,
    granted: Collection[ReportedDevice],
    on_node: Collection[ReportedDevice],
    cdi_dirs: Collection[Path],
    variables: Collection[str],
) -> None:
    names = list(_cdi_names(response))
    if (count := max(len(response.mounts), len(response.devices), len(names))) > MOST:
        raise _wrong(f"it has {count} parts of one kind, and at most {MOST} are allowed")
    for name, value in response.envs.items():
        if why := _fault(name, value, granted, on_node, variables):
            raise _wrong(why)
    visible = response.envs.get(VARIABLE, "")
    uuids = () if visible in _NO_NAMES else visible.split(",")
    named = {_uuid(text, granted, on_node) for text in (*uuids, *_in_mounts(response))}
    nodes = list(_device_nodes(response, granted))
    try:
        edits = cdi_edits.check(names, cdi_dirs, granted, on_node)
    except InvalidRequest as error:
        raise _wrong(error.message, *error.remedies) from error
    for way in ([{"devicenodes": nodes}], edits):
        named |= {device.uuid for device in granted if cdi_edits.gives(way, device)}
    if missing := sorted({device.uuid for device in granted} - named):
        raise _wrong(f"it does not name {missing[0]}, which was granted")


def _unknown(name: str) -> bool:
    """Whether this is a variable that NVIDIA's plugin is not known to set."""
    return name != VARIABLE and name not in _VARIABLES


def _fault(
    name: str,
    value: str,
    granted: Collection[ReportedDevice],
    on_node: Collection[ReportedDevice],
    variables: Collection[str],
) -> str:
    """Why a container must not have this variable; empty if it may."""
    if name == VARIABLE or name in variables or (name in _VARIABLES and _VARIABLES[name].fullmatch(value)):
        return ""
    if _unknown(name) and _NAME.fullmatch(name) and not _REACHES_A_GPU.fullmatch(name):
        foreign = cdi_edits.fault({"env": [f"{name}={value}"]}, granted, on_node)
    else:
        foreign = "may reach what was not granted"
    return foreign and f"it sets the variable {name} to {value!r}; to let it pass, set --vendor-variable {name}"


def _in_mounts(response: wire.ContainerAllocateResponse) -> Iterator[str]:
    """The GPUs that mounts name, each by the path of an empty file. Raises Refused if there is another mount."""
    for mount in response.mounts:
        directory, slash, name = mount.container_path.rpartition("/")
        if mount.host_path != MOUNTED or not slash or directory not in (MOUNTS, f"{MOUNTS}/imex"):
            raise _wrong(f"it mounts {mount.host_path!r} at {mount.container_path!r}")
        if directory == MOUNTS:
            yield name
        elif not _CHANNEL.fullmatch(name):
            raise _wrong(f"it names the IMEX channel {name!r}")


def _device_nodes(
    response: wire.ContainerAllocateResponse, granted: Collection[ReportedDevice]
) -> Iterator[dict[str, str]]:
    """The device nodes, in the form of CDI. Raises Refused if a container must not have one of them."""
    for each in response.devices:
        node = {"path": each.container_path, "hostpath": each.host_path}
        if each.permissions != "rw":
            raise _wrong(f"it gives {each.container_path!r} the permissions {each.permissions!r}, and not 'rw'")
        if why := device_nodes.fault(node, granted):
            raise _wrong(f"it {why}")
        yield node


def _cdi_names(response: wire.ContainerAllocateResponse) -> Iterator[str]:
    """The CDI devices. Raises Refused if one has another kind, or if an annotation says anything else."""
    names = [device.name for device in response.cdi_devices]
    for key, value in response.annotations.items():
        if not _ANNOTATION.fullmatch(key):
            raise _wrong(f"it sets the annotation {key!r}")
        names += value.split(",")
    for name in dict.fromkeys(names):
        if not _CDI_NAME.fullmatch(name):
            raise _wrong(f"it names the CDI device {name!r}")
        yield name


def _uuid(text: str, granted: Collection[ReportedDevice], on_node: Collection[ReportedDevice]) -> str:
    """The granted device with this UUID, or the whole GPU with this index. Raises Refused if it is another device."""
    for device in on_node:
        if text == device.uuid or (text == str(device.index) and not device.mig):
            if any(device.uuid == other.uuid for other in granted):
                return device.uuid
            raise _wrong(f"it names {device.uuid}, which was not granted")
    raise _wrong(f"it names {text!r}, which is no GPU of this node")


def _wrong(why: str, *remedies: str) -> Refused:
    return Refused(Reason.VENDOR, f"the answer of the vendor's plugin is refused: {why}", *remedies, ALLOWED)
