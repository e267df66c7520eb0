"""The stand-in for NVML through the real pynvml: every function can fail, and every GPU."""

from __future__ import annotations

import subprocess
import threading

import pynvml
import pytest

from tests.fakes.asking import code_of, first
from tests.fakes.nvml.machine import Slice
from tests.fakes.sweep import CALLS, Held
from tests.patience import WITHIN

pytestmark = pytest.mark.night

CODES = sorted({getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")})


def test_the_sweep_knows_every_function_of_the_library(stage):
    listed = subprocess.run(["nm", "-D", "--defined-only", stage.library], check=True, capture_output=True, text=True)
    functions = {line.split()[-1] for line in listed.stdout.splitlines() if " T nvml" in line}
    assert functions - {"nvmlErrorString"} == CALLS.keys()


def test_every_function_answers_on_a_healthy_gpu(session):
    """Or says what is true of this machine: the sweep asks a GPU for what only a slice has, and the other way round."""
    session.gpu(0).cut([Slice()])
    session.gpu(1).set(persistence_mode=0)
    held = Held.now()
    fine = {0, pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_IN_USE, pynvml.NVML_ERROR_TIMEOUT}
    ended = {name: code_of(call, held) for name, call in CALLS.items() if not name.startswith(("nvmlShut", "nvmlInit"))}
    strange = {name: code for name, code in ended.items() if code not in fine}
    assert strange == {
        "nvmlDeviceGetHandleByUUID": pynvml.NVML_ERROR_NOT_FOUND,
        "nvmlDeviceGetGpuInstanceById": pynvml.NVML_ERROR_NOT_FOUND,
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": pynvml.NVML_ERROR_INVALID_ARGUMENT,
        "nvmlGpuInstanceCreateComputeInstance": pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
        "nvmlGpuInstanceCreateComputeInstanceWithPlacement": pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
    }


@pytest.mark.parametrize("code", CODES)
def test_every_function_fails_with_every_code(session, code):
    session.gpu(0).cut([Slice()])
    held = Held.now()
    session.fail("*", code)
    assert {name: code_of(call, held) for name, call in CALLS.items()} == dict.fromkeys(CALLS, code)


def test_a_fault_is_of_one_function_by_its_name(session):
    session.gpu(0).cut([Slice()])
    held = Held.now()
    for name, call in CALLS.items():
        session.fail(name, pynvml.NVML_ERROR_UNKNOWN)
        assert code_of(call, held) == pynvml.NVML_ERROR_UNKNOWN, name
        assert code_of(pynvml.nvmlSystemGetDriverVersion) == 999 * (name == "nvmlSystemGetDriverVersion")
        session.fail(name, None)


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
