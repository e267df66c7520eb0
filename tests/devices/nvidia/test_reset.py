"""A GPU is reset by the driver's tool, and the persistence daemon does not have it open meanwhile."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from scrubber.core.model import Holder
from scrubber.devices.base import DeviceError, NotNowError
from scrubber.devices.nvidia import reset
from tests.devices.nvidia import bench
from tests.devices.nvidia.bench import one_holder, refused, target
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


def stuck(*_: object) -> None:
    raise reset.ResetStuckError("cannot reset: nvidia-smi: it is still at it: reboot the node")


# --- persistence mode ---


@pytest.fixture
def kept_ready(rig, gpu, short_tmp, request) -> Iterator[Path]:
    """A host whose persistence daemon, this process, keeps the GPU ready. The path of its socket must be short."""
    gpu.set(persistence_mode=1)
    root = Root.of(rig.machine, short_tmp / "r")
    place = root.path / getattr(request, "param", "") / "run/nvidia-persistenced/socket"
    place.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(place))
        listening.listen()
        yield root.path


def daemon(gpu) -> Callable[[], tuple[Holder, ...]]:
    """Has it open for as long as the mode is on."""
    return lambda: one_holder(os.getpid(), "nvidia-persiste") if gpu["persistence_mode"] == "1" else ()


def persisted(rig) -> list[str]:
    """When the mode was set, and the tool ran."""
    return [call for _, call, _ in rig.machine.calls() if call in ("nvmlDeviceSetPersistenceMode", "nvidia-smi")]


@pytest.mark.parametrize("kept_ready", ["", "run/nvidia/driver"], indirect=True, ids=["node", "driver container"])
def test_the_persistence_daemon_closes_the_gpu_during_the_reset(rig, gpu, kept_ready) -> None:
    reset.reset(target(rig, root=kept_ready, holders=daemon(gpu)))
    assert persisted(rig) == ["nvmlDeviceSetPersistenceMode", "nvidia-smi", "nvmlDeviceSetPersistenceMode"]
    assert gpu["persistence_mode"] == "1"


@pytest.mark.usefixtures("gpu")
def test_a_process_with_the_daemons_name_prevents_a_reset(rig, kept_ready) -> None:
    users = one_holder(os.getpid() + 1, "nvidia-persiste")
    assert 'it is open in "nvidia-persiste"' in refused(rig, root=kept_ready, holders=lambda: users)
    assert persisted(rig) == []


def test_a_daemon_that_keeps_the_device_prevents_a_reset(rig, gpu, kept_ready) -> None:
    users = one_holder(os.getpid(), "nvidia-persiste")
    assert 'it is open in "nvidia-persiste"' in refused(rig, root=kept_ready, holders=lambda: users)
    assert gpu["persistence_mode"] == "1"


def test_a_failed_reset_does_not_change_the_persistence_mode(rig, gpu, kept_ready) -> None:
    rig.machine.set({"smi.reset": "in-use"})
    with pytest.raises(DeviceError, match="the driver knows a client"):
        reset.reset(target(rig, root=kept_ready, holders=daemon(gpu)))
    assert gpu["persistence_mode"] == "1"


def test_a_mode_that_cannot_be_switched_stops_the_reset(rig, gpu, kept_ready) -> None:
    gpu.fail("nvmlDeviceSetPersistenceMode", pynvml.NVML_ERROR_NO_PERMISSION)
    assert "persistence mode cannot be switched off" in refused(rig, root=kept_ready)


@pytest.mark.parametrize(("order", "first"), [("ok", ""), ("in-use", "the driver knows a client.*")])
def test_a_mode_not_restored_is_reported_with_other_failures(rig, gpu, kept_ready, order: str, first: str) -> None:
    rig.machine.set({"smi.reset": order})

    def users() -> tuple[Holder, ...]:
        if gpu["persistence_mode"] == "0":
            gpu.fail("nvmlDeviceSetPersistenceMode", pynvml.NVML_ERROR_UNKNOWN)
        return daemon(gpu)()

    with pytest.raises(DeviceError, match=f"{first}persistence mode cannot be switched on"):
        reset.reset(target(rig, root=kept_ready, holders=users))


def test_a_device_with_a_stuck_tool_is_not_asked_again(rig, gpu, kept_ready, monkeypatch) -> None:
    monkeypatch.setattr(reset, "run_tool", stuck)
    with pytest.raises(DeviceError, match="still at it"):
        reset.reset(target(rig, root=kept_ready, holders=daemon(gpu)))
    assert persisted(rig) == ["nvmlDeviceSetPersistenceMode"]


# --- the tool ---

UUID = "GPU-5e7f0000-1111-4222-8333-a0b1c2d3e4f5"
GPU = "GPU 00000000:1B:00.0"
# Only the last one says that the device is at fault.
DONE = (None, "")
IN_USE = (NotNowError, "the driver knows a client that no observation shows: find it, or reboot the node")
UNSUPPORTED = (NotNowError, "it says that this device cannot be reset")
NO_PERMISSION = (NotNowError, "it takes root and CAP_SYS_ADMIN")


def fault(status: int, said: str) -> tuple[type[DeviceError] | None, str]:
    """The kind of the error and its words, after those that all have."""
    try:
        reset.check(status, said)
    except DeviceError as error:
        return type(error), str(error).removeprefix("cannot reset: nvidia-smi: ")
    return DONE


@pytest.mark.parametrize(
    ("status", "said", "meant"),
    [
        (0, f"{GPU} was successfully reset.\nAll done.\n", DONE),
        (0, f"WARNING: persistence mode is off\n{GPU} was Successfully Reset.", DONE),
        (255, f"{GPU} could not be reset: In use by another client", IN_USE),
        (255, "1 device is currently being used by one or more other processes (e.g. Fabric Manager).", IN_USE),
        (0, f"{GPU}: In use by another client\n{GPU} was successfully reset.", IN_USE),
        (255, "Unable to reset this GPU because it's being used by some other process.", IN_USE),
        (255, f"{GPU} is currently in use by another process.", IN_USE),
        (255, f"GPU Reset couldn't run because {GPU} is the primary GPU.", IN_USE),
        (3, "", UNSUPPORTED),
        (255, f"Resetting {GPU} is not supported.", UNSUPPORTED),
        (4, "", NO_PERMISSION),
        (255, f"Unable to reset {GPU}: Insufficient Permissions", NO_PERMISSION),
        (0, "", (DeviceError, "it ended with status 0: it said nothing")),
        (0, "All done.", (DeviceError, "it ended with status 0: All done.")),
        (
            255,
            f"{GPU} was successfully reset.",
            (DeviceError, f"it ended with status 255: {GPU} was successfully reset."),
        ),
        (255, f"{GPU} could not be reset.", (DeviceError, f"it ended with status 255: {GPU} could not be reset.")),
        (15, "lost", (DeviceError, "it ended with status 15 (a device that has fallen off the bus): lost")),
        (-9, "", (DeviceError, "it ended by signal 9 (SIGKILL): it said nothing")),
        (1, "a\tb\x1b[2Jc\n\n d", (DeviceError, "it ended with status 1: a b [2Jc d")),
    ],
)
def test_its_status_and_its_words_are_understood(
    status: int, said: str, meant: tuple[type[DeviceError] | None, str]
) -> None:
    assert fault(status, said) == meant


@pytest.mark.parametrize("status", [2, 3, 4, 6, 8, 9, 10, 12, 13, 14, 15, 255, 1, -15])
def test_no_status_but_0_is_ever_done(status: int) -> None:
    assert fault(status, "was successfully reset\nAll done.") != DONE


def test_long_output_of_the_program_is_cut() -> None:
    kind, words = fault(1, "x" * 5000)
    assert kind is DeviceError
    assert len(words) < 400


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program of that name, first on the path."""

    def install(text: str) -> None:
        file = tmp_path / "bin" / "nvidia-smi"
        file.parent.mkdir()
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{file.parent}:{os.environ['PATH']}")

    return install


def test_the_program_gets_one_device_and_no_locale(program, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LC_ALL", "xx_XX")
    program(f'echo "$@" $LC_ALL > {tmp_path}/asked; echo was successfully reset')
    reset.run_tool(UUID, 10)
    assert (tmp_path / "asked").read_text() == f"--gpu-reset -i {UUID} C\n"


def test_both_output_streams_are_read(program) -> None:
    program("echo In use by another client >&2; exit 255")
    with pytest.raises(NotNowError, match="the driver knows a client"):
        reset.run_tool(UUID, 10)


def test_a_missing_program_is_an_error(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotNowError, match=r"nvidia-smi: it cannot be started \(No such file or directory\)"):
        reset.run_tool(UUID, 10)


def ended(pid: int) -> bool:
    """Whether a process that is not our child ends within seconds."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(process, select.POLLIN)
    gone = bool(poll.poll(5000))
    os.close(process)
    return gone


def test_a_late_program_is_killed_with_its_children(program, tmp_path) -> None:
    program(f"trap '' TERM\nsh -c 'trap \"\" TERM; echo $$ > {tmp_path}/child; sleep 600; :' & wait")
    with pytest.raises(DeviceError, match="it was not done within 2 s and was killed") as caught:
        reset.run_tool(UUID, 2.0)
    assert caught.type is DeviceError
    assert ended(int((tmp_path / "child").read_text()))


def words_of_a_stuck_reset(within: float) -> str:
    """Only the words, because the error itself keeps the process."""
    try:
        reset.run_tool(UUID, within)
    except reset.ResetStuckError as error:
        return str(error)
    return ""


def test_a_program_that_cannot_be_killed_is_reported_as_such(program, monkeypatch) -> None:
    """As when it is stuck in the driver: the signal is sent, and nothing happens."""
    program("exec sleep 600")
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("os.killpg", lambda *order: sent.append(order))
    monkeypatch.setattr(reset, "_ENDS_WITHIN", 0.1)
    with pytest.warns(ResourceWarning, match="still running"):
        words = words_of_a_stuck_reset(0.1)
    ((pid, order),) = sent
    assert order == signal.SIGKILL
    assert f"nvidia-smi: it (pid {pid}) was not done within 0.1 s and cannot be killed" in words
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not Path(f"/proc/{pid}").exists()
