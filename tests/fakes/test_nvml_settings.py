"""The stand-in for NVML through the real pynvml: what root may change."""

from __future__ import annotations

import subprocess
import sys

import pynvml
import pytest

from tests.fakes.asking import code_of, first

pytestmark = pytest.mark.night

SETTINGS = [
    (pynvml.nvmlDeviceSetPersistenceMode, (0,), pynvml.nvmlDeviceGetPersistenceMode, 0),
    (pynvml.nvmlDeviceSetComputeMode, (3,), pynvml.nvmlDeviceGetComputeMode, 3),
    (pynvml.nvmlDeviceSetAccountingMode, (1,), pynvml.nvmlDeviceGetAccountingMode, 1),
    (pynvml.nvmlDeviceSetEccMode, (0,), pynvml.nvmlDeviceGetEccMode, [1, 0]),
    (pynvml.nvmlDeviceSetPowerManagementLimit, (450000,), pynvml.nvmlDeviceGetPowerManagementLimit, 450000),
    (pynvml.nvmlDeviceSetMigMode, (1,), pynvml.nvmlDeviceGetMigMode, [1, 1]),
    (
        pynvml.nvmlDeviceSetApplicationsClocks,
        (3201, 900),
        lambda gpu: [pynvml.nvmlDeviceGetApplicationsClock(gpu, kind) for kind in (0, 2)],
        [900, 3201],
    ),
]


@pytest.mark.parametrize(("change", "to", "ask", "expected"), SETTINGS, ids=lambda part: getattr(part, "__name__", ""))
def test_only_root_changes_a_setting_and_it_lasts(session, change, to, ask, expected):
    before = ask(first())
    session.set(privileged=0)
    assert code_of(change, first(), *to) == pynvml.NVML_ERROR_NO_PERMISSION
    assert ask(first()) == before != expected
    session.set(privileged=1)
    change(first(), *to)
    assert ask(first()) == expected
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert ask(first()) == expected


def test_a_stubborn_setting_says_yes_and_stays(session):
    session.gpu(0).set({"stubborn.power.limit": 1})
    pynvml.nvmlDeviceSetPowerManagementLimit(first(), 450000)
    assert pynvml.nvmlDeviceGetPowerManagementLimit(first()) == 700000


@pytest.mark.usefixtures("session")
def test_no_value_out_of_range_is_taken():
    invalid = pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(pynvml.nvmlDeviceSetPowerManagementLimit, first(), 700001) == invalid
    assert code_of(pynvml.nvmlDeviceSetComputeMode, first(), 4) == invalid
    assert code_of(pynvml.nvmlDeviceSetApplicationsClocks, first(), 3201, 5000) == invalid


def test_clocks_reset_and_locks_show_in_the_state(session):
    pynvml.nvmlDeviceSetApplicationsClocks(first(), 3201, 900)
    pynvml.nvmlDeviceResetApplicationsClocks(first())
    assert pynvml.nvmlDeviceGetApplicationsClock(first(), 0) == 1980
    session.gpu(0).set({"clock.locked.gpu": "300 900", "clock.locked.memory": "500 600"})
    pynvml.nvmlDeviceResetGpuLockedClocks(first())
    pynvml.nvmlDeviceResetMemoryLockedClocks(first())
    assert session.gpu(0)["clock.locked.gpu"] == session.gpu(0)["clock.locked.memory"] == "none"


def test_several_processes_change_settings_at_once_and_none_is_forgotten(session, stage):
    code = (
        "import sys, pynvml; pynvml.nvmlInit(); gpu = pynvml.nvmlDeviceGetHandleByIndex(int(sys.argv[1]))\n"
        "for watts in range(300, 320): pynvml.nvmlDeviceSetPowerManagementLimit(gpu, watts * 1000)"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(number)], env=stage.environment()) for number in range(4)
    ]
    slots = 0
    while any(child.poll() is None for child in children):
        slots += 1
        session.gpu(7).set({f"turn.{slots}": slots})
    assert [child.wait() for child in children] == [0] * 4
    assert [session.gpu(number)["power.limit"] for number in range(5)] == ["319000"] * 4 + ["700000"]
    assert sum(key.startswith("gpu.7.turn.") for key in session.read()) == slots > 0
