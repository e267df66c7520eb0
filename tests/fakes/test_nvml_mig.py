"""The stand-in for NVML through the real pynvml: slices."""

from __future__ import annotations

from ctypes import byref, c_uint

import pynvml
import pytest

from tests.fakes.asking import code_of, first
from tests.fakes.nvml.machine import Process, Slice
from tests.fakes.nvml.presets import MIB

pytestmark = pytest.mark.night


def test_slices_have_memory_of_their_own(session):
    uuids = session.gpu(0).cut([Slice("3g.71gb"), Slice("1g.18gb"), Slice("1g.18gb")])
    session.gpu(0).run(Process(5, gi=1, ci=0), Process(6, gi=11, ci=0))
    slices = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(first(), number) for number in range(3)]
    assert [pynvml.nvmlDeviceGetUUID(one) for one in slices] == list(uuids)
    assert [pynvml.nvmlDeviceGetGpuInstanceId(one) for one in slices] == [1, 11, 12]
    assert [pynvml.nvmlDeviceGetName(one) for one in slices][:2] == [
        "NVIDIA H200 MIG 3g.71gb",
        "NVIDIA H200 MIG 1g.18gb",
    ]
    assert pynvml.nvmlDeviceGetMemoryInfo(slices[1], pynvml.nvmlMemory_v2).total == 16384 * MIB
    assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(slices[1])] == [6]
    assert len(pynvml.nvmlDeviceGetComputeRunningProcesses_v3(first())) == 2
    assert (
        pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slices[0])) == session.gpu(0).uuid
    )
    assert code_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, first(), 3) == pynvml.NVML_ERROR_NOT_FOUND
    assert code_of(pynvml.nvmlDeviceGetRemappedRows, first()) == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert code_of(pynvml.nvmlDeviceSetComputeMode, slices[0], 0) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def instances_of(gpu, profile):
    array, count = (pynvml.c_nvmlGpuInstance_t * 8)(), c_uint()
    pynvml.nvmlDeviceGetGpuInstances(gpu, profile, array, byref(count))
    return list(array[: count.value])


def test_a_destroyed_slice_is_recreated_with_its_uuid(session):
    uuids = session.gpu(0).cut([Slice("1g.18gb")] * 7)
    profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(first(), pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE)
    fourth = instances_of(first(), profile.id)[3]
    about = pynvml.nvmlGpuInstanceGetInfo(fourth)
    assert (profile.name, about.profileId, about.placement.start) == ("MIG 1g.18gb", profile.id, 3)
    assert code_of(pynvml.nvmlGpuInstanceDestroy, fourth) == pynvml.NVML_ERROR_IN_USE, "a part is in it"
    session.gpu(0).run(Process(5, gi=about.id, ci=0))
    part = pynvml.nvmlGpuInstanceGetComputeInstanceById(fourth, 0)
    assert code_of(pynvml.nvmlComputeInstanceDestroy, part) == pynvml.NVML_ERROR_IN_USE, "a process is in it"
    session.gpu(0).run()
    pynvml.nvmlComputeInstanceDestroy(part)
    pynvml.nvmlGpuInstanceDestroy(fourth)
    assert len(instances_of(first(), profile.id)) == 6
    again = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(first(), profile.id, byref(about.placement))
    made = pynvml.nvmlComputeInstanceGetInfo(pynvml.nvmlGpuInstanceCreateComputeInstance(again, 0))
    assert (made.id, made.placement.size) == (0, 1)
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(first(), 3)) == uuids[3]


def test_a_slice_that_is_made_anew_may_be_another_one(session):
    (old,) = session.gpu(0).cut([Slice("7g.141gb")])
    (whole,) = instances_of(first(), 0)
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(whole, 0))
    session.gpu(0).set(mig_salt="another")
    pynvml.nvmlGpuInstanceCreateComputeInstance(whole, 4)
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(first(), 0)) != old


def test_no_two_slices_lie_on_one_another(session):
    session.gpu(0).cut([Slice("4g.71gb")])
    full = pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
    placement = byref(pynvml.c_nvmlGpuInstancePlacement_t(2, 1))
    assert code_of(pynvml.nvmlDeviceCreateGpuInstanceWithPlacement, first(), 19, placement) == full
    pynvml.nvmlDeviceCreateGpuInstance(first(), 9)
    assert code_of(pynvml.nvmlDeviceCreateGpuInstance, first(), 19) == full


def test_compute_instances_share_the_memory_of_their_gpu_instance(session):
    session.gpu(0).cut([])
    shared = pynvml.nvmlDeviceCreateGpuInstance(first(), 14)
    for _ in range(2):
        pynvml.nvmlGpuInstanceCreateComputeInstance(shared, 0)
    slices = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(first(), number) for number in (0, 1)]
    assert [pynvml.nvmlDeviceGetGpuInstanceId(one) for one in slices] == [3, 3]
    assert [pynvml.nvmlDeviceGetComputeInstanceId(one) for one in slices] == [0, 1]
    session.gpu(0).set({"gi.3.memory.used": 8 * MIB})
    assert [pynvml.nvmlDeviceGetMemoryInfo(one, pynvml.nvmlMemory_v2).used for one in slices] == [8 * MIB] * 2


def test_mig_mode_changes_when_idle_or_by_reset(session):
    session.gpu(0).run(Process(5))
    assert pynvml.nvmlDeviceSetMigMode(first(), 1) == pynvml.NVML_ERROR_IN_USE
    assert pynvml.nvmlDeviceGetMigMode(first()) == [0, 1]
    session.gpu(1).set({"mig_mode.by_reset": 1})
    second = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceSetMigMode(second, 1) == pynvml.NVML_ERROR_RESET_REQUIRED
    session.gpu(2).cut([Slice()])
    assert code_of(pynvml.nvmlDeviceSetMigMode, pynvml.nvmlDeviceGetHandleByIndex(2), 0) == pynvml.NVML_ERROR_IN_USE
