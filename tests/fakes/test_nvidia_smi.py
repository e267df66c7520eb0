"""The stand-in for nvidia-smi, the log that proves an order, and the files of a host."""

from __future__ import annotations

import signal
import subprocess
import sys

import pynvml
import pytest

from tests.fakes.asking import code_of, first
from tests.fakes.nvml.machine import Machine, Process, Slice
from tests.fakes.nvml.presets import MIB
from tests.patience import WITHIN

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


def test_a_client_that_was_killed_is_none(nvml, stage):
    code = "import pynvml, signal; pynvml.nvmlInit(); print(flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", code], env=stage.environment(), stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert nvml.clients() == (child.pid,)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert nvml.clients() == ()


@pytest.mark.parametrize(
    ("order", "code", "fragment"),
    [
        ("in-use", 255, "In use by another client"),
        ("unsupported", 3, "is not supported"),
        ("no-permission", 4, "Insufficient Permissions"),
        ("fails", 255, "could not be reset"),
        ("fails-and-lost", 255, "GPU is lost"),
    ],
)
def test_nvidia_smi_refuses_as_configured(nvml, order, code, fragment):
    nvml.set({"smi.reset": order})
    ended, output = smi(nvml.gpu(0))
    assert (ended, fragment in output) == (code, True)
    assert nvml.gpu(0).get("lost") == ("1" if order == "fails-and-lost" else None)


def test_a_reset_may_end_otherwise_than_it_seems(nvml):
    nvml.set({"smi.then.uuid": "GPU-another", "smi.then.lost": 1})
    assert smi(nvml.gpu(0))[0] == 0
    assert (nvml.gpu(0).uuid, nvml.gpu(0)["lost"]) == ("GPU-another", "1")
    assert smi(nvml.gpu(0))[0] == 15


def test_a_reset_takes_the_slices_away(nvml):
    nvml.gpu(0).cut([Slice()] * 7)
    assert smi(nvml.gpu(0))[0] == 0
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetMigMode(first()) == [1, 1]
    assert code_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, first(), 0) == pynvml.NVML_ERROR_NOT_FOUND


def test_nvidia_smi_switches_persistence_and_refuses_unknown_gpus(nvml):
    assert smi(nvml.gpu(0), "-pm", "0")[0] == 0
    assert nvml.gpu(0)["persistence_mode"] == "0"
    unknown = subprocess.run(["nvidia-smi", "-r", "-i", "GPU-none"], check=False, capture_output=True)
    assert unknown.returncode == 6
    nvml.unload()
    assert subprocess.run(["nvidia-smi"], check=False, capture_output=True).returncode == 9


# --- the host's files ---


def test_the_host_has_device_files_addresses_and_capabilities(nvml, stage):
    gpu = nvml.gpu(5)
    gpu.cut([Slice("7g.141gb")])
    assert (stage.root.path / "proc/driver/nvidia/version").read_text().split()[9] == "580.95.05"
    assert (stage.root.pci(gpu) / "numa_node").read_text() == "1\n"
    assert stage.root.capability(gpu, 0).read_text().startswith("DeviceFileMinor: 678\n")
    assert stage.root.capability(gpu, 0, 0).read_text().startswith("DeviceFileMinor: 679\n")
    assert (stage.root.path / "dev/nvidia-caps/nvidia-cap679").exists()
    gpu.uncut()
    assert not stage.root.capability(gpu, 0).exists()


def test_capabilities_come_and_go_with_what_the_library_makes(nvml, stage):
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
    pynvml.nvmlGpuInstanceCreateComputeInstance(pynvml.nvmlDeviceCreateGpuInstance(first(), 0), 4)
    assert (whole.read_text(), part.read_text()) == before
    pynvml.nvmlShutdown()
    assert smi(gpu)[0] == 0
    assert not whole.parent.exists()


def test_the_tool_may_stop_after_it_removed_the_slices(nvml):
    nvml.gpu(0).cut([Slice("7g.141gb")])
    with nvml.hanging("nvidia-smi") as file:
        tool = subprocess.Popen(["nvidia-smi", "-r", "-i", nvml.gpu(0).uuid], stdout=subprocess.PIPE)
        while nvml.gpu(0).get("mig.0.uuid"):
            assert tool.poll() is None
        file.unlink()
        assert b"successfully reset" in tool.communicate(timeout=WITHIN)[0]


def test_a_machine_may_have_more_gpus_than_eight(tmp_path):
    machine = Machine.h200(tmp_path / "machine", 16)
    assert len({gpu.uuid for gpu in machine.gpus} | {gpu.pci for gpu in machine.gpus}) == 32
