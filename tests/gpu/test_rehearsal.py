"""The tests for real hardware run on the stand-in first, so that they are known to run before they meet a GPU."""

from __future__ import annotations

import pytest

from tests.gpu.rehearsing import failed, rehearse

FILE = "test_nvml.py"


@pytest.mark.night
def test_all_of_them_run_on_the_stand_in(stage) -> None:
    run = rehearse(stage, FILE, "-m", "gpu")
    assert run.returncode == 0, run.stdout
    assert "there is no GPU to look at" not in run.stdout
    assert "seen on this GPU" in run.stdout
    assert stage.machine.gpu(0).uuid not in run.stdout


@pytest.mark.night
def test_a_gpu_that_is_not_as_believed_turns_them_red(stage) -> None:
    stage.machine.gpu(0).set({"memory.used": 65 * 2**20, "remap.pending": 1, "fail.nvmlDeviceGetPersistenceMode": 999})
    run = rehearse(stage, FILE, "-m", "gpu")
    assert {
        "test_an_idle_gpu_uses_less_memory_than_is_believed_of_one",
        "test_nobody_is_on_an_idle_gpu_and_it_can_be_told",
        "test_a_gpu_is_well",
        "test_no_question_of_the_service_ends_in_an_error",
    } <= failed(run)


def test_nothing_of_a_gpu_is_touched_unless_it_is_asked_for(stage) -> None:
    run = rehearse(stage, FILE)
    assert "12 deselected" in run.stdout
    assert stage.machine.calls() == []
