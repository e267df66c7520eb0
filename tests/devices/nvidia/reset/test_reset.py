"""A GPU is reset by the driver's tool, and the persistence daemon does not have it open meanwhile."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

import pynvml
import pytest

from scrubber.core.model import Holder
from scrubber.devices.base import DeviceError, NotNowError
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.reset import reset
from tests.devices.nvidia import bench
from tests.devices.nvidia.bench import SHORT, one_holder, refused, target
from tests.fakes.nvml.host import Root

gpu = bench.gpu  # a fixture


@pytest.mark.usefixtures("gpu")
def test_nvml_is_closed_while_the_reset_tool_runs(rig) -> None:
    reset.reset(target(rig))
    own = str(os.getpid())
    calls = [call for pid, call, _ in rig.machine.calls() if str(pid) == own or call.startswith("nvidia-smi")]
    began, ended = calls.index("nvidia-smi"), calls.index("nvidia-smi-ends")
    assert calls[began - 1] == "nvmlShutdown"
    assert not [call for call in calls[began + 1 : ended] if call.startswith("nvml")]
    assert calls[ended + 1].startswith("nvmlInit")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "words",
    [
        "Unable to reset this GPU because it's being used by some other process (e.g. CUDA application).",
        "GPU Reset couldn't run because GPU 00000000:01:00.0 is the primary GPU.",
        "GPU 00000000:1B:00.0 is currently in use by another process.",
        "Words of a version that is not written yet.",
    ],
)
def test_unknown_words_of_the_tool_are_a_failure(rig, tmp_path, monkeypatch, words: str) -> None:
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "{words}"\nexit 255\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with pytest.raises(DeviceError, match="cannot reset: nvidia-smi: "):
        reset.reset(target(rig))


def stuck(*_: object) -> None:
    raise reset.ResetStuckError("cannot reset: nvidia-smi: it is still at it: reboot the node")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("status", "fault"),
    [(4, NotNowError), (3, NotNowError), (1, DeviceError)],
    ids=["no right", "no support", "failed"],
)
def test_only_an_attempt_that_failed_blames_the_device(rig, monkeypatch, status: int, fault: type) -> None:
    monkeypatch.setattr(reset, "run_tool", lambda *_: reset.check(status, ""))
    with pytest.raises(DeviceError) as caught:
        reset.reset(target(rig))
    assert caught.type is fault


@pytest.mark.usefixtures("gpu")
def test_a_client_that_only_the_driver_knows_stops_the_reset(rig) -> None:
    rig.machine.set({"smi.reset": "in-use"})
    with pytest.raises(DeviceError, match="cannot reset: nvidia-smi: the driver knows a client"):
        reset.reset(target(rig))


@pytest.mark.usefixtures("gpu")
def test_a_tool_that_is_late_is_killed(rig) -> None:
    rig.machine.set({"smi.reset": "hang"})
    with pytest.raises(DeviceError, match="was not done within 1 s and was killed"):
        reset.reset(target(rig, patience=replace(SHORT, tool=1.0)))


def test_a_tool_that_cannot_be_killed_asks_for_a_reboot(rig, gpu, monkeypatch) -> None:
    gpu.set(persistence_mode=0)
    monkeypatch.setattr(reset, "run_tool", stuck)
    with pytest.raises(DeviceError, match="cannot reset: nvidia-smi: it is still at it: reboot the node"):
        reset.reset(target(rig))


# --- persistence mode ---


@pytest.fixture
def kept_ready(rig, gpu, short_tmp) -> Iterator[Host]:
    """A host whose persistence daemon, this process, keeps the GPU ready. Its socket's path must be short."""
    gpu.set(persistence_mode=1)
    root = Root.of(rig.machine, short_tmp / "r")
    place = root.path / "run/nvidia-persistenced/socket"
    place.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(place))
        listening.listen()
        yield Host(root.path, rig.host.proc)


def daemon(gpu) -> Callable[[], tuple[Holder, ...]]:
    """Has it open for as long as the mode is on."""
    return lambda: one_holder(os.getpid(), "nvidia-persiste") if gpu["persistence_mode"] == "1" else ()


def persisted(rig) -> list[str]:
    """When the mode was set, and the tool ran."""
    return [call for _, call, _ in rig.machine.calls() if call in ("nvmlDeviceSetPersistenceMode", "nvidia-smi")]


def test_the_persistence_daemon_closes_the_gpu_during_the_reset(rig, gpu, kept_ready) -> None:
    reset.reset(target(rig, host=kept_ready, holders=daemon(gpu)))
    assert persisted(rig) == ["nvmlDeviceSetPersistenceMode", "nvidia-smi", "nvmlDeviceSetPersistenceMode"]
    assert gpu["persistence_mode"] == "1"


@pytest.mark.usefixtures("gpu")
def test_a_process_with_the_daemons_name_prevents_a_reset(rig, kept_ready) -> None:
    users = one_holder(os.getpid() + 1, "nvidia-persiste")
    assert 'it is open in "nvidia-persiste"' in refused(rig, host=kept_ready, holders=lambda: users)
    assert persisted(rig) == []


def test_a_daemon_that_keeps_the_device_prevents_a_reset(rig, gpu, kept_ready) -> None:
    users = one_holder(os.getpid(), "nvidia-persiste")
    assert 'it is open in "nvidia-persiste"' in refused(rig, host=kept_ready, holders=lambda: users)
    assert gpu["persistence_mode"] == "1"


def test_a_failed_reset_does_not_change_the_persistence_mode(rig, gpu, kept_ready) -> None:
    rig.machine.set({"smi.reset": "in-use"})
    with pytest.raises(DeviceError, match="the driver knows a client"):
        reset.reset(target(rig, host=kept_ready, holders=daemon(gpu)))
    assert gpu["persistence_mode"] == "1"


def test_a_mode_that_cannot_be_switched_stops_the_reset(rig, gpu, kept_ready) -> None:
    gpu.fail("nvmlDeviceSetPersistenceMode", pynvml.NVML_ERROR_NO_PERMISSION)
    assert "persistence mode cannot be switched off" in refused(rig, host=kept_ready)


@pytest.mark.parametrize(("order", "first"), [("ok", ""), ("in-use", "the driver knows a client.*")])
def test_a_mode_not_restored_is_reported_with_other_failures(rig, gpu, kept_ready, order: str, first: str) -> None:
    rig.machine.set({"smi.reset": order})

    def users() -> tuple[Holder, ...]:
        if gpu["persistence_mode"] == "0":
            gpu.fail("nvmlDeviceSetPersistenceMode", pynvml.NVML_ERROR_UNKNOWN)
        return daemon(gpu)()

    with pytest.raises(DeviceError, match=f"{first}persistence mode cannot be switched on"):
        reset.reset(target(rig, host=kept_ready, holders=users))


def test_a_device_with_a_stuck_tool_is_not_asked_again(rig, gpu, kept_ready, monkeypatch) -> None:
    monkeypatch.setattr(reset, "run_tool", stuck)
    with pytest.raises(DeviceError, match="still at it"):
        reset.reset(target(rig, host=kept_ready, holders=daemon(gpu)))
    assert persisted(rig) == ["nvmlDeviceSetPersistenceMode"]
