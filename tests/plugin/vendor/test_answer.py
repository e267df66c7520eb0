"""Which answers of a vendor's plugin give a container the granted GPUs, and no other."""

import json

import pytest

from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.vendor import answer
from scrubber.ground.device_messages import AdvertisedDevice
from scrubber.ground.errors import Refused

KIND = "k8s.device-plugin.nvidia.com/gpu"


def gpu(number, *nodes, mig=False):
    more = {"index": number, "mig": mig, "nodes": nodes or (f"/dev/nvidia{number}",)}
    uuid = f"{'MIG' if mig else 'GPU'}-000{number}"
    return AdvertisedDevice(uuid, healthy=True, clean=True, numa_node=0, resource="nvidia.com/gpu", **more)


GRANTED, OTHER = gpu(0), gpu(1)
SLICE = gpu(0, "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap12", mig=True)
NODE = [GRANTED, OTHER, SLICE]


@pytest.fixture
def cdi(tmp_path):
    """The specification that NVIDIA's plugin writes, with names by UUID and by index."""
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": node} for node in it.nodes]}}
        for it in (GRANTED, OTHER, SLICE)
        for name in (it.uuid, str(it.index))
        for node in it.nodes[:1]
        if not (it.mig and name == "0")
    ]
    text = json.dumps({"cdiVersion": "0.5.0", "kind": KIND, "devices": devices})
    (tmp_path / "nvidia.json").write_text(text)
    return tmp_path


def response(**parts):
    return wire.ContainerAllocateResponse(**parts)


def visible(value):
    return response(envs={"NVIDIA_VISIBLE_DEVICES": value})


def by_cdi(*names):
    return response(cdi_devices=[wire.CDIDevice(name=f"{KIND}={name}") for name in names])


def by_annotation(*names):
    return response(annotations={"cdi.k8s.io/nvidia-device-plugin_1": ",".join(f"{KIND}={name}" for name in names)})


def by_mount(*names):
    mounts = [
        wire.Mount(container_path=f"/var/run/nvidia-container-devices/{it}", host_path="/dev/null") for it in names
    ]
    return response(envs={"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}, mounts=mounts)


def by_node(*paths):
    return response(devices=[wire.DeviceSpec(container_path=it, host_path=it, permissions="rw") for it in paths])


@pytest.mark.parametrize(
    "right",
    [
        visible("GPU-0000"), visible("0"), by_mount("GPU-0000"), by_mount("0"), by_cdi("GPU-0000"), by_cdi("0"),
        by_annotation("GPU-0000"), by_annotation("0"), by_node("/dev/nvidiactl", "/dev/nvidia0"),
    ],
)  # fmt: skip
def test_an_answer_that_names_the_granted_gpu_passes(cdi, right):
    answer.check(wire.AllocateResponse(container_responses=[right]), [[GRANTED]], NODE, [cdi])


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (visible("GPU-0000,GPU-0001"), "GPU-0001, which was not granted"),
        (visible("1"), "GPU-0001, which was not granted"),
        (visible("all"), "'all', which is no GPU"),
        (visible("void"), "does not name GPU-0000"),
        (by_mount("GPU-0000", "GPU-0001"), "GPU-0001, which was not granted"),
        (by_mount("1"), "GPU-0001, which was not granted"),
        (by_cdi("GPU-0000", "GPU-0001"), "GPU-0001, which was not granted"),
        (by_cdi("1"), "/dev/nvidia1, which was not granted"),
        (by_annotation("GPU-0000", "1"), "/dev/nvidia1, which was not granted"),
        (by_node("/dev/nvidia0", "/dev/nvidia1"), "/dev/nvidia1, which was not granted"),
        (by_node("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12"), "nvidia-cap12, which was not granted"),
        (response(mounts=[wire.Mount(container_path="/dev", host_path="/dev")]), "all devices in /dev"),
        (response(envs={"OTHER": "GPU-0001"}), "GPU-0001, which was not granted"),
    ],
)
def test_an_answer_that_names_another_gpu_is_refused(cdi, wrong, why):
    with pytest.raises(Refused, match=f"(?i){why}"):
        answer.check(wire.AllocateResponse(container_responses=[wrong]), [[GRANTED]], NODE, [cdi])


def test_each_container_gets_its_own_answer(cdi):
    swapped = wire.AllocateResponse(container_responses=[visible("GPU-0001"), visible("GPU-0000")])
    with pytest.raises(Refused, match="which was not granted"):
        answer.check(swapped, [[GRANTED], [OTHER]], NODE, [cdi])
    with pytest.raises(Refused, match="for 2 containers, and 1 were asked for"):
        answer.check(swapped, [[GRANTED, OTHER]], NODE, [cdi])
