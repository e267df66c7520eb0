"""The stand-in for NVML through the real pynvml: sessions, what it tells, and events."""

from __future__ import annotations

import os
import threading
from ctypes import byref, c_uint

import pynvml
import pytest

from tests.fakes.asking import code_of, first
from tests.fakes.nvml.machine import Process
from tests.fakes.nvml.presets import MIB

pytestmark = pytest.mark.night

# --- sessions ---


@pytest.mark.usefixtures("nvml")
def test_calls_fail_before_and_after_a_session():
    assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 8
    pynvml.nvmlShutdown()
    assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
    assert code_of(pynvml.nvmlShutdown) == pynvml.NVML_ERROR_UNINITIALIZED


def test_sessions_are_counted_and_keep_their_handles(session):
    handle = first()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetName(handle) == "NVIDIA H200"
    pynvml.nvmlShutdown()
    assert session.clients() == (os.getpid(),)
    pynvml.nvmlShutdown()
    assert session.clients() == ()


@pytest.mark.usefixtures("session")
def test_a_handle_is_invalid_in_the_next_session():
    old = first()
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert code_of(pynvml.nvmlDeviceGetUUID, old) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_without_a_driver_a_session_only_closes(nvml):
    pynvml.nvmlInit()
    nvml.unload()
    assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    pynvml.nvmlShutdown()
    assert code_of(pynvml.nvmlInit) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED


# --- what is told ---


@pytest.mark.usefixtures("session")
def test_an_unknown_name_finds_no_gpu():
    assert code_of(pynvml.nvmlDeviceGetHandleByUUID, "GPU-none") == pynvml.NVML_ERROR_NOT_FOUND
    assert code_of(pynvml.nvmlDeviceGetHandleByPciBusId, "0000:ff:00.0") == pynvml.NVML_ERROR_NOT_FOUND
    assert code_of(pynvml.nvmlDeviceGetHandleByIndex, 8) == pynvml.NVML_ERROR_INVALID_ARGUMENT


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("version", [0x01000028, 0x02000020, 0x03000020])
def test_a_struct_of_another_version_is_refused(version):
    mismatch = pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    fabric = pynvml.c_nvmlGpuFabricInfoV_t()
    fabric.version = version
    assert code_of(pynvml.nvmlDeviceGetMemoryInfo, first(), version) == mismatch
    assert code_of(pynvml.nvmlDeviceGetGpuFabricInfoV, first(), byref(fabric)) == mismatch


def test_a_list_of_processes_is_asked_for_its_length_first(session):
    listed = (Process(7, 5 * MIB), Process(9, None))
    session.gpu(0).run(*listed)
    session.gpu(0).run(Process(11), kind="mps")
    count = c_uint(0)
    function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses_v3")
    assert function(first(), byref(count), None) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert count.value == 2
    small, room = (pynvml.c_nvmlProcessInfo_v3_t * 1)(), c_uint(1)
    assert function(first(), byref(room), small) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert room.value == 2
    seen = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(first())
    assert [(process.pid, process.usedGpuMemory) for process in seen] == [(7, 5 * MIB), (9, None)]
    assert {process.gpuInstanceId for process in seen} == {2**32 - 1}
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3(first()) == []
    assert [process.pid for process in pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(first())] == [11]


def test_every_field_has_its_own_answer(session):
    session.gpu(0).set({"field.230": 2, "remap.failure": 1, "field.219": 2**40, "field.219.3": 5, "field_fail.94": 999})
    values = pynvml.nvmlDeviceGetFieldValues(first(), [230, 145, (219, 3), 219, 94, 305])
    assert [value.nvmlReturn for value in values] == [0, 0, 0, 0, 999, pynvml.NVML_ERROR_NOT_SUPPORTED]
    assert [value.value.ullVal for value in values[:4]] == [2, 1, 5, 2**40]
    assert [value.valueType for value in values[:4]] == [1, 1, 1, 3]


def test_a_value_absent_from_the_state_is_unsupported(session):
    session.gpu(0).set(persistence_mode=None)
    assert code_of(pynvml.nvmlDeviceGetPersistenceMode, first()) == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert code_of(pynvml.nvmlDeviceSetPersistenceMode, first(), 1) == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert pynvml.nvmlDeviceGetPersistenceMode(pynvml.nvmlDeviceGetHandleByIndex(1)) == 1


# --- events ---


def test_only_events_after_the_registration_are_reported(session):
    session.gpu(0).event(pynvml.nvmlEventTypeXidCriticalError, 13)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(first(), pynvml.nvmlEventTypeXidCriticalError, events)
    assert code_of(pynvml.nvmlEventSetWait, events, 0) == pynvml.NVML_ERROR_TIMEOUT
    session.gpu(0).event(pynvml.nvmlEventTypeDoubleBitEccError)
    session.gpu(1).event(pynvml.nvmlEventTypeXidCriticalError, 48)
    waiting = threading.Thread(target=session.gpu(0).event, args=(pynvml.nvmlEventTypeXidCriticalError, 79))
    waiting.start()
    answer = pynvml.nvmlEventSetWait(events, 5000)
    waiting.join()
    assert (answer.eventType, answer.eventData) == (pynvml.nvmlEventTypeXidCriticalError, 79)
    assert pynvml.nvmlDeviceGetUUID(answer.device) == session.gpu(0).uuid
    pynvml.nvmlEventSetFree(events)
    assert code_of(pynvml.nvmlEventSetWait, events, 0) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_waiting_for_events_of_a_lost_gpu_ends(session):
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(first(), pynvml.nvmlEventTypeXidCriticalError, events)
    session.gpu(0).set(lost=True)
    assert code_of(pynvml.nvmlEventSetWait, events, 5000) == pynvml.NVML_ERROR_GPU_IS_LOST
