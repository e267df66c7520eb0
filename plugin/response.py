"""The Allocate response for each device list strategy: what the kubelet puts into a container.

The fields and values are those of NVIDIA's k8s-device-plugin (v0.18 to v0.20; v0.17 differs only for an id that is
requested twice), so that a cluster can change from one plugin to the other. Where the order of that plugin is random,
this module uses the order of the request. Device nodes are not de-duplicated, as in that plugin: two MIG devices of one
GPU name its node twice, and the kubelet merges by path.

Four things differ, on purpose:

* **The CDI kind.** NVIDIA's plugin writes its own CDI specification, of the kind ``k8s.device-plugin.nvidia.com/gpu``.
  This plugin writes none. It names devices of the host's specification, kind ``nvidia.com/gpu``, which must use UUIDs
  (``nvidia-ctk cdi generate --device-name-strategy=uuid``).
* **Ids are UUIDs, never indexes.** The kubelet keeps a response and uses it for every restart of the container, even
  after a reboot. By then the index may belong to another GPU than the one that was proven clean.
* **Receipts.** A container may get one more variable, and a mount for each device: see ``add_receipts``.
* **Out of scope:** GDS, MOFED, GDRCopy, IMEX channels, MPS, time-sliced replicas, Tegra and WSL.

With CDI strategies alone, the response has no device nodes even if they are requested, as in NVIDIA's plugin: the CDI
specification has them. With `envvar` and `volume-mounts` together, the variable names the directory of the mounts.

A device node is a number that the driver assigns. Operators who pass device nodes should drain a node before a reboot
that may renumber its GPUs.
"""

from __future__ import annotations

import posixpath
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ground import paths
from plugin.devices import Device
from plugin.kubelet_api import deviceplugin_pb2 as wire

SHARED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
MOUNTS = "/var/run/nvidia-container-devices"
MOUNTED = "/dev/null"
ANNOTATION = "cdi.k8s.io/nvidia-device-plugin_"

# A comma, a slash or the word "all" instead of an id would hand out devices that nobody has checked.
DEVICE_ID = re.compile(r"(GPU|MIG)-[A-Za-z0-9-]*[A-Za-z0-9]")
# CDI allows a single letter, but the parser in the container runtimes fails on it.
KIND = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]")


class Strategy(str, Enum):
    """How the container runtime learns which devices a container gets."""

    CDI_CRI = "cdi-cri"
    CDI_ANNOTATIONS = "cdi-annotations"
    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"


CDI = frozenset({Strategy.CDI_CRI, Strategy.CDI_ANNOTATIONS})


@dataclass(frozen=True, slots=True)
class Style:
    """The operator's choice; `check` says whether it is valid."""

    strategies: tuple[Strategy, ...] = (Strategy.CDI_CRI,)
    cdi_kind: str = "nvidia.com/gpu"
    pass_device_specs: bool = False
    dev_root: str = "/"  # where the host has the device nodes: / or the root of a driver container


def strategies(names: Iterable[str]) -> tuple[Strategy, ...]:
    """The strategies of these names, each once; ValueError for an unknown name."""
    by_name = {strategy.value: strategy for strategy in Strategy}
    chosen: dict[Strategy, None] = {}
    for name in names:
        if name not in by_name:
            raise ValueError(f"unknown device list strategy {name!r}: choose from {', '.join(by_name)}")
        chosen[by_name[name]] = None
    return tuple(chosen)


def check(style: Style) -> None:
    """Raise a ValueError for a style that no container runtime understands."""
    if not style.strategies:
        raise ValueError("no device list strategy: containers would start without their devices")
    if not KIND.fullmatch(style.cdi_kind):
        raise ValueError(
            f"cannot use CDI kind {style.cdi_kind!r}: use vendor/class, as in nvidia.com/gpu; each part starts with a "
            "letter, ends with a letter or digit, and has only these and '_', '-' and '.'"
        )
    if not style.dev_root.startswith("/"):
        raise ValueError(f"cannot use device root {style.dev_root!r}: use an absolute path of the host")


def respond(
    devices: Sequence[Device], style: Style, shared_nodes: Collection[str], allocation: uuid.UUID
) -> wire.ContainerAllocateResponse:
    """The response for these devices, in the order of the request.

    `shared_nodes` are those of `SHARED_NODES` that exist; `allocation` is a fresh random id that keeps the annotations
    of two resources in one container apart.
    """
    devices = tuple({device.uuid: device for device in devices}.values())
    for device in devices:
        if not DEVICE_ID.fullmatch(device.uuid):
            raise ValueError(f"cannot hand out {device.uuid!r}: not the UUID of a GPU or a MIG device")
    ids = [device.uuid for device in devices]
    names = [f"{style.cdi_kind}={each}" for each in ids]
    response = wire.ContainerAllocateResponse()
    if names and Strategy.CDI_ANNOTATIONS in style.strategies:
        response.annotations[f"{ANNOTATION}{allocation}"] = ",".join(names)
    if Strategy.CDI_CRI in style.strategies:
        response.cdi_devices.extend(wire.CDIDevice(name=name) for name in names)
    if Strategy.ENVVAR in style.strategies:
        response.envs[VARIABLE] = ",".join(ids)
    if Strategy.VOLUME_MOUNTS in style.strategies:
        response.envs[VARIABLE] = MOUNTS
        response.mounts.extend(wire.Mount(container_path=f"{MOUNTS}/{each}", host_path=MOUNTED) for each in ids)
    if style.pass_device_specs and not CDI.issuperset(style.strategies):
        response.devices.extend(_device_specs(devices, style.dev_root, shared_nodes))
    return response


def add_receipts(response: wire.ContainerAllocateResponse, directories: Iterable[str]) -> None:
    """Add the directories with the receipts of a container's devices to its response; empty: the device has none.

    Each keeps its name, the id of the hand-over, so that a tenant can compute which receipt is meant for it.
    """
    for directory in dict.fromkeys(filter(None, directories)):
        target = f"{paths.RECEIPTS_IN_CONTAINERS}/{posixpath.basename(directory)}"
        response.mounts.add(container_path=target, host_path=directory, read_only=True)
        response.envs[paths.RECEIPTS_VARIABLE] = paths.RECEIPTS_IN_CONTAINERS


def _device_specs(devices: Sequence[Device], dev_root: str, shared_nodes: Collection[str]) -> Iterator[wire.DeviceSpec]:
    """The shared nodes, then the nodes of each device: for a MIG device its GPU and its two capabilities."""
    nodes = [node for node in SHARED_NODES if node in shared_nodes]
    for device in devices:
        nodes.extend(device.nodes)
    for node in nodes:
        below = "/" + posixpath.normpath(f"{dev_root}/{node}").lstrip("/")  # one slash at first: POSIX would keep two
        yield wire.DeviceSpec(container_path=node, host_path=below, permissions="rw")
