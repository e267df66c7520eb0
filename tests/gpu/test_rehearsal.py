"""The tests for real hardware run on the stand-in first, so that they are known to run before they meet a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The guards around every test take the stand-in's variables away; this gives them back.
PYTEST = """
import os, sys, pytest
kept = {name: value for name, value in os.environ.items() if name.startswith("AUTOCLAVE_FAKE")}
class Again:
    def pytest_sessionstart(self):
        os.environ.update(kept)
sys.exit(pytest.main(sys.argv[1:], plugins=[Again()]))
"""


def rehearse(stage, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | stage.environment(os.environ["PATH"]) | {"GPU_HOST_ROOT": str(stage.root.path)}
    return subprocess.run(
        [sys.executable, "-c", PYTEST, "-q", "-p", "no:cacheprovider", "tests/gpu/test_nvml.py", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_all_of_them_run_on_the_stand_in(stage) -> None:
    run = rehearse(stage, "-m", "gpu")
    assert run.returncode == 0, run.stdout
    assert "there is no GPU to look at" not in run.stdout
    assert "seen on this GPU" in run.stdout
    assert stage.machine.gpu(0).uuid not in run.stdout


def test_a_gpu_that_is_not_as_believed_turns_them_red(stage) -> None:
    stage.machine.gpu(0).set({"memory.used": 65 * 2**20, "remap.pending": 1, "fail.nvmlDeviceGetPersistenceMode": 999})
    run = rehearse(stage, "-m", "gpu")
    failed = {line.split("::")[1].split()[0] for line in run.stdout.splitlines() if line.startswith("FAILED")}
    assert {
        "test_an_idle_gpu_uses_less_memory_than_is_believed_of_one",
        "test_nobody_is_on_an_idle_gpu_and_it_can_be_told",
        "test_a_gpu_is_well",
        "test_no_question_of_the_service_ends_in_an_error",
    } <= failed


def test_nothing_of_a_gpu_is_touched_unless_it_is_asked_for(stage) -> None:
    run = rehearse(stage)
    assert "12 deselected" in run.stdout
    assert stage.machine.calls() == []
