"""The stand-in for NVML through the real pynvml: every function can fail, and every GPU."""

from __future__ import annotations

import threading

import pynvml
import pytest

from tests.fakes.asking import code_of, first
from tests.fakes.nvml.machine import Slice
from tests.patience import WITHIN

pytestmark = pytest.mark.night


def test_a_fault_may_be_of_one_gpu_and_its_slices(session):
    session.gpu(0).cut([Slice()])
    piece, other = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(first(), 0), pynvml.nvmlDeviceGetHandleByIndex(1)
    session.gpu(0).fail("nvmlDeviceGetName", pynvml.NVML_ERROR_UNKNOWN)
    assert [code_of(pynvml.nvmlDeviceGetName, one) for one in (first(), piece, other)] == [999, 999, 0]


def test_only_the_lost_gpu_does_not_answer(session):
    handle = first()
    session.gpu(0).set(lost=True)
    lost = pynvml.NVML_ERROR_GPU_IS_LOST
    assert code_of(pynvml.nvmlDeviceGetUUID, handle) == code_of(pynvml.nvmlDeviceGetHandleByIndex, 0) == lost
    assert code_of(pynvml.nvmlDeviceGetHandleByUUID, session.gpu(0).uuid) == lost
    assert pynvml.nvmlDeviceGetCount() == 8
    assert pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1)) == "NVIDIA H200"


def test_a_gpu_requiring_reset_answers_only_its_identity(session):
    session.gpu(0).set(reset_required=True)
    assert pynvml.nvmlDeviceGetUUID(first()) == session.gpu(0).uuid
    required = pynvml.NVML_ERROR_RESET_REQUIRED
    assert code_of(pynvml.nvmlDeviceGetMemoryInfo, first(), pynvml.nvmlMemory_v2) == required


def test_a_hanging_call_delays_no_other_call(session):
    answers: list[str] = []
    handle = first()
    with session.gpu(0).hanging("nvmlDeviceGetName") as file:
        asking = threading.Thread(target=lambda: answers.append(pynvml.nvmlDeviceGetName(handle)), daemon=True)
        asking.start()
        assert pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1)) == "NVIDIA H200"
        assert pynvml.nvmlDeviceGetUUID(handle) == session.gpu(0).uuid
        asking.join(0.05)
        assert asking.is_alive()
        file.unlink()
        asking.join(WITHIN)
    assert answers == ["NVIDIA H200"]
