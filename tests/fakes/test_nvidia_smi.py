"""The stand-in for nvidia-smi, the log that proves an order, and the files of a host."""

from __future__ import annotations

import signal
import subprocess
import sys

import pynvml
import pytest

from tests.fakes.asking import first
from tests.fakes.nvml.machine import Machine, Process, Slice
from tests.fakes.nvml.presets import MIB

pytestmark = pytest.mark.night

# --- the log, the clients, nvidia-smi ---


def smi(gpu, *arguments):
    command = ["nvidia-smi", *(arguments or ("--gpu-reset",)), "-i", gpu.uuid]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    return ended.returncode, ended.stdout


def test_nvidia_smi_resets_an_unused_gpu(nvml):
    gpu = nvml.gpu(2)
    gpu.set({"ecc.total.1.0": 4, "ecc.total.1.1": 9, "power.limit": 300000, "memory.used": 2**30, "reset_required": 1})
    gpu.set({"ecc.pending": 0, "clock.app.0": 500, "clock.locked.gpu": "1 2", "remap.pending": 1})
    code, output = smi(gpu)
    assert (code, output.splitlines()[-1]) == (0, "All done.")
    assert "was successfully reset" in output
    keys = ("ecc.total.1.0", "ecc.total.1.1", "power.limit", "memory.used", "reset_required", "ecc.current")
    assert [gpu[key] for key in keys] == ["0", "9", "700000", str(4 * MIB), "0", "0"]
    assert [gpu[key] for key in ("clock.app.0", "clock.locked.gpu", "remap.pending")] == ["1980", "none", "0"]


def test_an_open_session_prevents_a_reset(session):
    code, output = smi(session.gpu(0))
    assert code == 255
    assert "could not be reset: In use by another client\n" in output
    assert "device is currently being used by one or more other processes" in output
    pynvml.nvmlShutdown()
    assert smi(session.gpu(0))[0] == 0
    calls = [call for _, call, _ in session.calls()]
    assert calls == [
        *("nvmlInitWithFlags", "nvidia-smi", "nvidia-smi-users", "nvidia-smi-ends"),
        *("nvmlShutdown", "nvidia-smi", "nvidia-smi-ends"),
    ]


def test_an_open_device_or_listed_process_prevents_a_reset(nvml, stage):
    with stage.root.node(nvml.gpu(0)).open():
        assert smi(nvml.gpu(0))[0] == 255
        assert smi(nvml.gpu(1))[0] == 0
    assert smi(nvml.gpu(0))[0] == 0
    nvml.gpu(0).run(Process(4711))
    assert smi(nvml.gpu(0))[0] == 255


def test_a_killed_client_does_not_count(nvml, stage):
    code = "import pynvml, signal; pynvml.nvmlInit(); print(flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", code], env=stage.environment(), stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert nvml.clients() == (child.pid,)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert nvml.clients() == ()


def test_nvidia_smi_refuses_unknown_gpus(nvml):
    unknown = subprocess.run(["nvidia-smi", "-r", "-i", "GPU-none"], check=False, capture_output=True)
    assert unknown.returncode == 6
    nvml.unload()
    assert subprocess.run(["nvidia-smi"], check=False, capture_output=True).returncode == 9


# --- the host's files ---


def test_capability_files_appear_and_disappear_with_the_slices(nvml, stage):
    gpu = nvml.gpu(0)
    gpu.cut([Slice("7g.141gb")])
    whole, part = stage.root.capability(gpu, 0), stage.root.capability(gpu, 0, 0)
    before = whole.read_text(), part.read_text()
    pynvml.nvmlInit()
    instance = pynvml.nvmlDeviceGetGpuInstanceById(first(), 0)
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    assert (whole.exists(), part.exists()) == (True, False)
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert not whole.parent.exists()
    gpu.cut([Slice("7g.141gb")])
    assert (whole.read_text(), part.read_text()) == before
    pynvml.nvmlShutdown()
    assert smi(gpu)[0] == 0
    assert not whole.parent.exists()


def test_a_machine_may_have_more_gpus_than_eight(tmp_path):
    machine = Machine.h200(tmp_path / "machine", 16)
    assert len({gpu.uuid for gpu in machine.gpus} | {gpu.pci for gpu in machine.gpus}) == 32
