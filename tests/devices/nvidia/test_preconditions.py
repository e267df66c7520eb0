"""A GPU is reset only when all holds that must hold, and each obstacle is reported with its remedy."""

from __future__ import annotations

import pynvml
import pytest

from scrubber.devices.base import DeviceLostError
from scrubber.devices.nvidia import reset
from tests.devices.nvidia import bench
from tests.devices.nvidia.bench import by_tool, file, no_holders, one_holder, refused, target
from tests.fakes.nvml.machine import Process

AMPERE, HOPPER = 7, 9
gpu = bench.gpu  # a fixture


def test_a_free_gpu_is_reset_by_the_tool(rig, gpu) -> None:
    gpu.set({"ecc.total.1.0": 3, "power.limit": 450000})
    reset.reset(target(rig))
    assert by_tool(rig) == [f"--gpu-reset -i {gpu.uuid}"]
    assert (gpu["ecc.total.1.0"], gpu["power.limit"]) == ("0", "700000")


@pytest.mark.usefixtures("gpu")
def test_each_process_with_the_device_open_is_named(rig) -> None:
    users = one_holder() + one_holder(12, "nv-hostengine")
    words = 'it is open in "train" (pid 4711), "nv-hostengine" (pid 12): stop that first (`systemctl stop nvidia-dcgm`)'
    assert refused(rig, holders=lambda: users) == f"cannot reset: {words}"


@pytest.mark.parametrize("kind", ["compute", "graphics", "mps"])
def test_a_process_on_any_driver_list_prevents_a_reset(rig, gpu, kind: str) -> None:
    gpu.run(Process(99), Process(98), kind=kind)
    assert refused(rig) == "cannot reset: the driver lists process 98, 99 on it: end it first"


def test_an_unreadable_process_list_is_not_an_empty_one(rig, gpu) -> None:
    gpu.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    assert "the driver does not list its processes" in refused(rig)


def switches(rig) -> None:
    place = rig.host.sys_pci / "0000:05:00.0"
    place.mkdir()
    (place / "vendor").write_text("0x10de\n")
    (place / "class").write_text("0x068000\n")


@pytest.mark.parametrize("architecture", [AMPERE, None, pynvml.NVML_DEVICE_ARCH_UNKNOWN])
def test_ampere_on_switches_needs_its_fabric_manager(rig, gpu, architecture: int | None) -> None:
    switches(rig)
    gpu.set(architecture=architecture)
    why = "NVSwitches connect it and the node's own fabric manager does not run: start nvidia-fabricmanager"
    assert refused(rig, daemon_runs=lambda _name: False) == f"cannot reset: {why}"
    reset.reset(target(rig, daemon_runs=lambda name: name == "nv-fabricmanager"))


def test_ampere_with_unknown_switches_or_fabric_manager_is_not_reset(rig, gpu) -> None:
    gpu.set(architecture=AMPERE)
    assert "it is unknown whether NVSwitches connect it" in refused(rig, root=rig.host.root / "elsewhere")
    switches(rig)
    assert "it is unknown whether the fabric manager runs" in refused(rig)


def test_only_switched_ampere_needs_a_fabric_manager(rig, gpu) -> None:
    gpu.set(architecture=AMPERE)
    reset.reset(target(rig))
    switches(rig)
    gpu.set(architecture=HOPPER)
    reset.reset(target(rig))


def test_a_vgpu_is_not_reset_by_its_guest(rig, gpu) -> None:
    gpu.set(virtualization_mode=pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)
    assert "only the host can reset it" in refused(rig)
    gpu.set(virtualization_mode=pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH)
    reset.reset(target(rig))


@pytest.mark.usefixtures("gpu")
def test_a_tesla_t4_is_not_reset(rig) -> None:
    file(rig, "device").write_text("0x1eb8\n")
    assert "a Tesla T4 has no function-level reset" in refused(rig)


def test_all_obstacles_are_reported_at_once_in_order(rig, gpu) -> None:
    switches(rig)
    gpu.run(Process(99))
    gpu.set(architecture=AMPERE, persistence_mode=1, virtualization_mode=pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)
    file(rig, "device").write_text("0x1eb8\n")
    reason = refused(rig, privileged=False, holders=one_holder)
    words = ("takes root", "open in", "driver lists", "fabric manager", "vGPU", "Tesla T4")
    places = [reason.index(word) for word in words]
    assert places == sorted(places)
    assert reason.count("; ") == len(words)  # one of the six has two parts


@pytest.mark.usefixtures("gpu")
def test_a_new_process_before_the_reset_aborts_the_reset(rig) -> None:
    looks = iter([no_holders(), *[one_holder()] * 1000])
    assert 'it is open in "train" (pid 4711)' in refused(rig, holders=lambda: next(looks))


def test_a_lost_gpu_is_lost_and_is_not_reset(rig, gpu) -> None:
    gpu.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(DeviceLostError):
        reset.reset(target(rig))
    gpu.set(lost=1)
    with pytest.raises(DeviceLostError):
        reset.reset(target(rig))
    assert by_tool(rig) == []
