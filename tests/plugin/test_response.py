"""The Allocate response, against what NVIDIA's k8s-device-plugin answers.

The expectations were written down from reading its source at the tags v0.17.0 to v0.20.0 (460230b) and the cases of its
own tests. The facts, with their files:

* internal/plugin/server.go: ids stand in the order of the request, each once (since v0.18.0); the variable is
  NVIDIA_VISIBLE_DEVICES, joined by commas; volume-mounts overwrites it with the directory of the mounts, one /dev/null
  per id below it, not read-only; the class of every CDI name is gpu, for MIG devices too; with CDI strategies alone
  neither the variable nor mounts nor device specs are given; no CDI part for an empty list of devices.
* the same: device specs come in the order nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-modeset, each only if it
  exists, then the devices' own; permissions "rw"; the host path is the dev root joined with the node, the container
  path the bare node. internal/rm/nvml_devices.go: a GPU has its node, a MIG device its GPU's node, then the capability
  of the GPU instance, then of the compute instance. internal/rm/devices.go: nothing is de-duplicated between devices,
  whose order is that of a Go map, so any order is a right one.
* api/config/v1/config.go: the dev root is the driver root where it is not given.
* internal/plugin/server.go and CDI's pkg/cdi/annotations.go: the annotation's key is the prefix, the words
  "nvidia-device-plugin", an underscore and a random UUID; its value the names joined by commas. The prefix is
  cdi.k8s.io/ or the one given.
* cmd/nvidia-device-plugin/plugin-manager.go: the CDI vendor is k8s.device-plugin.nvidia.com.
"""

import uuid
from dataclasses import replace

import pytest

from plugin import response
from plugin.devices import Device
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.response import Strategy, Style

ALLOCATION = uuid.UUID("0b53a4ff-8d5f-4c79-9d8e-3c1a5f1de0aa")
ALL_SHARED = ("/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidia-uvm-tools")

A = Device(
    uuid="GPU-aaaaaaaa-1111-2222-3333-444444444444",
    resource="nvidia.com/gpu",
    healthy=True,
    clean=True,
    index=0,
    mig=False,
    numa_node=0,
    island="",
    nodes=("/dev/nvidia0",),
)
B = replace(A, uuid="GPU-bbbbbbbb-1111-2222-3333-444444444444", index=1, nodes=("/dev/nvidia1",))
CAPS = "/dev/nvidia-caps/nvidia-cap"
M1 = replace(
    A,
    uuid="MIG-cccccccc-1111-2222-3333-444444444444",
    resource="nvidia.com/mig-1g.10gb",
    mig=True,
    nodes=("/dev/nvidia0", f"{CAPS}12", f"{CAPS}13"),
)
M2 = replace(M1, uuid="MIG-dddddddd-1111-2222-3333-444444444444", nodes=("/dev/nvidia0", f"{CAPS}21", f"{CAPS}22"))

ENVVAR, MOUNTS = Style(strategies=(Strategy.ENVVAR,)), Style(strategies=(Strategy.VOLUME_MOUNTS,))
CRI, ANNOTATIONS = Style(strategies=(Strategy.CDI_CRI,)), Style(strategies=(Strategy.CDI_ANNOTATIONS,))
NVIDIAS = "k8s.device-plugin.nvidia.com/gpu"
KEY = f"nvidia-device-plugin_{ALLOCATION}"
DIRECTORY = "/var/run/nvidia-container-devices"


def visible(words):
    return {"envs": {"NVIDIA_VISIBLE_DEVICES": words}}


def mounts(*devices):
    return [wire.Mount(host_path="/dev/null", container_path=f"{DIRECTORY}/{device.uuid}") for device in devices]


def names(kind, *devices):
    return [wire.CDIDevice(name=f"{kind}={device.uuid}") for device in devices]


def specs(root, *nodes):
    return [wire.DeviceSpec(container_path=node, host_path=f"{root}{node}", permissions="rw") for node in nodes]


TABLE = {
    "one GPU by variable": (ENVVAR, [A], (), visible(A.uuid)),
    "several by variable, in the order asked for": (ENVVAR, [B, A], (), visible(f"{B.uuid},{A.uuid}")),
    "asked for twice, given once": (ENVVAR, [A, B, replace(A, clean=False)], (), visible(f"{A.uuid},{B.uuid}")),
    "no device, an empty variable": (ENVVAR, [], (), visible("")),
    "a MIG device by variable": (ENVVAR, [M1], (), visible(M1.uuid)),
    "mounts, and the variable that points at them": (
        MOUNTS, [B, A], (), visible(DIRECTORY) | {"mounts": mounts(B, A)}
    ),
    "variable and mounts: the mounts have it": (
        Style(strategies=(Strategy.ENVVAR, Strategy.VOLUME_MOUNTS)), [A], (),
        visible(DIRECTORY) | {"mounts": mounts(A)},
    ),
    "the order of the strategies is no matter": (
        Style(strategies=(Strategy.VOLUME_MOUNTS, Strategy.ENVVAR)), [A], (),
        visible(DIRECTORY) | {"mounts": mounts(A)},
    ),
    "names for the runtime": (CRI, [B, A], (), {"cdi_devices": names("nvidia.com/gpu", B, A)}),
    "names as NVIDIA's plugin makes them": (
        replace(CRI, cdi_kind=NVIDIAS), [A], (), {"cdi_devices": names(NVIDIAS, A)}
    ),
    "a MIG device has the class of a GPU": (
        replace(CRI, cdi_kind=NVIDIAS), [M1, M2], (), {"cdi_devices": names(NVIDIAS, M1, M2)}
    ),
    "annotations": (
        ANNOTATIONS, [A, B], (),
        {"annotations": {f"cdi.k8s.io/{KEY}": f"nvidia.com/gpu={A.uuid},nvidia.com/gpu={B.uuid}"}},
    ),
    "no device, no names and no annotation": (
        Style(strategies=(Strategy.CDI_ANNOTATIONS, Strategy.CDI_CRI)), [], (), {}
    ),
    "both ways of CDI": (
        Style(strategies=(Strategy.CDI_ANNOTATIONS, Strategy.CDI_CRI)), [A], (),
        {"cdi_devices": names("nvidia.com/gpu", A), "annotations": {f"cdi.k8s.io/{KEY}": f"nvidia.com/gpu={A.uuid}"}},
    ),
    "all four, with device specs": (
        Style(strategies=tuple(Strategy), pass_device_specs=True), [A], ("/dev/nvidiactl",),
        visible(DIRECTORY)
        | {
            "mounts": mounts(A),
            "cdi_devices": names("nvidia.com/gpu", A),
            "annotations": {f"cdi.k8s.io/{KEY}": f"nvidia.com/gpu={A.uuid}"},
            "devices": specs("", "/dev/nvidiactl", "/dev/nvidia0"),
        },
    ),
    "device specs: shared ones first, in a fixed order": (
        replace(ENVVAR, pass_device_specs=True), [B, A], ALL_SHARED,
        visible(f"{B.uuid},{A.uuid}")
        | {
            "devices": specs(
                "", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
                "/dev/nvidia1", "/dev/nvidia0",
            )
        },
    ),
    "device specs: only what exists, below the driver's root": (
        replace(ENVVAR, pass_device_specs=True, dev_root="/run/nvidia/driver"), [A], ("/dev/nvidia-uvm", "/dev/other"),
        visible(A.uuid) | {"devices": specs("/run/nvidia/driver", "/dev/nvidia-uvm", "/dev/nvidia0")},
    ),
    "device specs: a slash at the end of the root": (
        replace(ENVVAR, pass_device_specs=True, dev_root="/run/nvidia/driver/"), [A], (),
        visible(A.uuid) | {"devices": specs("/run/nvidia/driver", "/dev/nvidia0")},
    ),
    "device specs of MIG devices: their GPU, then their capabilities, each time": (
        replace(MOUNTS, pass_device_specs=True), [M1, M2], (),
        visible(DIRECTORY)
        | {
            "mounts": mounts(M1, M2),
            "devices": specs(
                "", "/dev/nvidia0", f"{CAPS}12", f"{CAPS}13", "/dev/nvidia0", f"{CAPS}21", f"{CAPS}22"
            ),
        },
    ),
    "device specs are CDI's affair where nothing else is used": (
        Style(strategies=(Strategy.CDI_CRI, Strategy.CDI_ANNOTATIONS), pass_device_specs=True), [A], ALL_SHARED,
        {"cdi_devices": names("nvidia.com/gpu", A), "annotations": {f"cdi.k8s.io/{KEY}": f"nvidia.com/gpu={A.uuid}"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("style", "devices", "shared", "fields"), TABLE.values(), ids=TABLE)
def test_the_answer_equals_that_of_nvidias_plugin(style, devices, shared, fields):
    answer = response.respond(devices, style, shared, ALLOCATION)
    assert answer.SerializeToString(deterministic=True) == (
        wire.ContainerAllocateResponse(**fields).SerializeToString(deterministic=True)
    )


def test_only_device_nodes_depend_on_the_gpus_place():
    """The kubelet uses the answer again after a reboot, which may give a GPU another index and another node."""
    moved = replace(A, index=5, nodes=("/dev/nvidia5",), numa_node=1, island="x", clean=False, healthy=False)
    every = Style(strategies=tuple(Strategy))
    assert response.respond([A], every, ALL_SHARED, ALLOCATION) == response.respond(
        [moved], every, ALL_SHARED, ALLOCATION
    )


def test_two_resources_of_one_container_have_annotations_of_their_own():
    keys = {key for _ in range(2) for key in response.respond([A], ANNOTATIONS, (), uuid.uuid4()).annotations}
    assert len(keys) == 2
    assert all(len(key.partition("/")[2]) <= 63 for key in keys)


@pytest.mark.parametrize(
    "name",
    ["all", "none", "void", "", "0", "GPU-", "GPU-1,GPU-2", "GPU-1/../2", "GPU-1=", "GPU-1\n", "XGPU-1", "gpu-1"],
)
@pytest.mark.parametrize("strategy", Strategy)
def test_an_invalid_uuid_is_never_handed_out(name, strategy):
    with pytest.raises(ValueError, match="cannot hand out"):
        response.respond([B, replace(A, uuid=name)], Style(strategies=(strategy,)), (), ALLOCATION)


def test_strategies_are_read_by_name_without_duplicates():
    assert response.strategies(["envvar", "cdi-cri", "envvar"]) == (Strategy.ENVVAR, Strategy.CDI_CRI)
    assert response.strategies(strategy.value for strategy in Strategy) == tuple(Strategy)


@pytest.mark.parametrize("word", ["cdi", "ENVVAR", "", "envvar,cdi-cri"])
def test_the_refusal_of_an_unknown_strategy_lists_the_known_ones(word):
    with pytest.raises(ValueError, match="choose from cdi-cri, cdi-annotations, envvar, volume-mounts"):
        response.strategies(["envvar", word])


@pytest.mark.parametrize(
    "style",
    [
        Style(),
        ENVVAR,
        Style(strategies=tuple(Strategy), pass_device_specs=True, dev_root="/run/nvidia/driver"),
        Style(cdi_kind=NVIDIAS),
        Style(cdi_kind="Acme_Corp-1.com/gp.u_x-1"),
    ],
)
def test_a_sound_style_passes(style):
    response.check(style)


@pytest.mark.parametrize(
    "kind",
    [
        "", "nvidia.com", "/gpu", "nvidia.com/", "nvidia.com/gpu=", "nvidia.com/gpu/x", "1nvidia/gpu", "nvidia./gpu",
        "nvidia.com/gpu-", "nvidia.com/_gpu", "nvidia com/gpu", "nvidia.com/g\u00fcu", "nvidia.com/gpu\n", "v/gpu",
        "vv/g", "nvidia.com/gpu,x",
    ],
)  # fmt: skip
def test_a_cdi_kind_that_no_runtime_takes_is_refused(kind):
    with pytest.raises(ValueError, match="cannot use CDI kind"):
        response.check(Style(cdi_kind=kind))


@pytest.mark.parametrize("root", ["", "run/nvidia/driver", "."])
def test_a_device_root_that_is_relative_is_refused(root):
    with pytest.raises(ValueError, match="cannot use device root"):
        response.check(Style(dev_root=root))


def test_a_style_without_a_strategy_is_refused():
    with pytest.raises(ValueError, match="no device list strategy"):
        response.check(Style(strategies=()))
