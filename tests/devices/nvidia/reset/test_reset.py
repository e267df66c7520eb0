"""A GPU is reset by one means after the other, as the policy orders them, and kept ready by nobody meanwhile."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

import pynvml
import pytest

from scrubber.core.model import Holder
from scrubber.devices.base import DeviceError, NotNowError
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.reset import reset, smi
from scrubber.devices.nvidia.reset.attempt import Attempt, Done, InUse, NoPermission, ResetFailed, Stuck, Unsupported
from tests.devices.nvidia import bench
from tests.devices.nvidia.bench import SHORT, by_kernel, by_tool, file, one_holder, refused, target
from tests.fakes.nvml.host import Root

TOOL, KERNEL = "nvidia-smi", "function"
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
    ("order", "words"),
    [
        ("no-permission", "nvidia-smi: it takes root and CAP_SYS_ADMIN"),
        ("fails", "nvidia-smi: nvidia-smi ended with status 255: .*could not be reset: Unknown Error"),
    ],
)
def test_only_a_plain_refusal_leads_to_a_kernel_reset(rig, order: str, words: str) -> None:
    rig.machine.set({"smi.reset": order})
    with pytest.raises(DeviceError, match=f"cannot reset: {words}; function: it does not check for holders"):
        reset.reset(target(rig))
    assert not by_kernel(rig)


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
def test_unknown_output_of_the_tool_leads_to_no_kernel_reset(rig, tmp_path, monkeypatch, words: str) -> None:
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "{words}"\nexit 255\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with pytest.raises(DeviceError, match="cannot reset: nvidia-smi: "):
        reset.reset(target(rig))
    assert not by_kernel(rig)


@pytest.mark.usefixtures("gpu")
def test_the_kernel_resets_what_the_tool_cannot(rig, tmp_path, monkeypatch) -> None:
    rig.machine.set({"smi.reset": "unsupported"})
    reset.reset(target(rig))
    assert by_kernel(rig)
    file(rig, "reset").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    reset.reset(target(rig))
    assert by_kernel(rig)
    file(rig, "reset_method").write_text("bus flr\n")
    with pytest.raises(NotNowError, match=r"cannot be started .*; function: the kernel would reset it by bus flr"):
        reset.reset(target(rig))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("attempt", "fault"),
    [(NoPermission(), NotNowError), (Unsupported("no tool"), NotNowError), (ResetFailed("it hangs"), DeviceError)],
)
def test_only_an_attempt_that_failed_blames_the_device(rig, monkeypatch, attempt: Attempt, fault: type) -> None:
    monkeypatch.setitem(reset.MEANS, TOOL, lambda _target, _held: attempt)
    with pytest.raises(DeviceError) as caught:
        reset.reset(target(rig, means=(TOOL,)))
    assert caught.type is fault


@pytest.mark.usefixtures("gpu")
def test_the_tool_may_follow_the_kernel_whatever_that_did(rig, monkeypatch) -> None:
    monkeypatch.setitem(reset.MEANS, KERNEL, lambda _target, _held: ResetFailed("the kernel's reset failed"))
    reset.reset(target(rig, means=(KERNEL, TOOL)))
    assert by_tool(rig)


def module(rig, name: str, above: tuple[str, ...] = (), users: int = 0) -> None:
    """A module of the driver, the modules that are built upon it, and whoever else uses it."""
    holders = rig.host.sys_module.parent / name / "holders"
    shutil.rmtree(holders, ignore_errors=True)
    holders.mkdir(parents=True)
    for it in above:
        (holders / it).mkdir()
    (holders.parent / "refcnt").write_text(f"{users + len(above)}\n")


def displays(rig, modeset: str) -> None:
    module(rig, "nvidia", ("nvidia_modeset", "nvidia_uvm"))
    module(rig, "nvidia_modeset", ("nvidia_drm",))
    module(rig, "nvidia_drm")
    parameters = rig.host.sys_module.parent / "nvidia_drm/parameters"
    parameters.mkdir()
    (parameters / "modeset").write_text(f"{modeset}\n")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("arrange", "words"),
    [
        (lambda rig: module(rig, "nvidia", ("nvidia_uvm",), users=1), "module nvidia is not known to be without users"),
        (lambda rig: module(rig, "nvidia_uvm", users=1), "module nvidia_uvm is not known to be without"),
        (lambda rig: module(rig, "nvidia", ("nvidia_peermem",)), "module nvidia_peermem uses the driver"),
        (lambda rig: displays(rig, "Y"), "module nvidia_drm may have it open for a display"),
        (lambda rig: shutil.rmtree(rig.host.sys_module / "holders"), "the users of the driver are unknown"),
        (lambda rig: (rig.host.sys_module / "refcnt").unlink(), "module nvidia is not known to be without"),
        (lambda rig: shutil.rmtree(rig.host.sys_module.parent / "nvidia_uvm"), "module nvidia_uvm is not known"),
    ],
    ids=["module", "uvm", "strange", "display", "untold", "uncounted", "unseen"],
)
def test_a_used_or_unreadable_driver_prevents_a_kernel_reset(rig, arrange, words: str) -> None:
    arrange(rig)
    assert f"cannot reset: function: {words}" in refused(rig, means=(KERNEL,))


@pytest.mark.usefixtures("gpu")
def test_a_driver_with_unused_displays_is_idle(rig) -> None:
    displays(rig, "N")
    reset.reset(target(rig, means=(KERNEL,)))
    assert by_kernel(rig)


@pytest.mark.usefixtures("gpu")
def test_a_client_of_the_driver_prevents_a_kernel_reset(rig) -> None:
    rig.machine.set({"smi.reset": "in-use"})
    with pytest.raises(DeviceError, match="cannot reset: nvidia-smi: the driver knows a client"):
        reset.reset(target(rig))
    assert not by_kernel(rig)


@pytest.mark.usefixtures("gpu")
def test_the_order_is_the_policys(rig) -> None:
    reset.reset(target(rig, means=(KERNEL, TOOL)))
    assert by_kernel(rig)
    assert by_tool(rig) == []


@pytest.mark.usefixtures("gpu")
def test_only_what_the_policy_names_is_tried(rig) -> None:
    rig.machine.set({"smi.reset": "unsupported"})
    with pytest.raises(DeviceError, match=r"cannot be reset$"):
        reset.reset(target(rig, means=(TOOL,)))
    assert not by_kernel(rig)


@pytest.mark.usefixtures("gpu")
def test_a_process_that_arrives_between_two_means_stops_the_second(rig) -> None:
    rig.machine.set({"smi.reset": "unsupported"})
    with pytest.raises(DeviceError, match='it is open in "train"'):
        reset.reset(target(rig, holders=lambda: one_holder() if by_tool(rig) else ()))
    assert not by_kernel(rig)


@pytest.mark.usefixtures("gpu")
def test_a_late_tool_is_killed_without_a_kernel_reset(rig) -> None:
    rig.machine.set({"smi.reset": "hang"})
    with pytest.raises(DeviceError, match="was not done within 1 s and was killed; function: it does not check"):
        reset.reset(target(rig, patience=replace(SHORT, tool=1.0)))
    assert not by_kernel(rig)


def test_no_reset_follows_a_tool_that_cannot_be_killed(rig, gpu, monkeypatch) -> None:
    gpu.set(persistence_mode=0)
    monkeypatch.setattr(smi, "reset", lambda *_: Stuck("it is still at it"))
    with pytest.raises(DeviceError, match="cannot reset: nvidia-smi: it is still at it: reboot the node"):
        reset.reset(target(rig))
    assert not by_kernel(rig)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("methods", "reason"),
    [("bus\n", "by bus, not flr"), ("", "by no method that it names, not flr"), (None, "by no method that it names")],
)
def test_the_kernel_does_only_a_function_level_reset(rig, methods, reason: str) -> None:
    file(rig, "reset_method").unlink()
    if methods is not None:
        file(rig, "reset_method").write_text(methods)
    assert reason in refused(rig, means=(KERNEL,))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("number", "meant"),
    [
        (16, InUse()),
        (13, NoPermission()),
        (25, Unsupported("the kernel knows no way to reset this device")),
        (30, Unsupported("/sys is mounted read-only: mount it writable")),
        (2, Unsupported("the kernel offers no reset of this device")),
        (5, ResetFailed("the kernel's reset failed: Input/output error")),
    ],
)
def test_the_kernels_refusals_are_understood(rig, monkeypatch, number: int, meant: Attempt) -> None:
    def refuse(_path, _text) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("scrubber.devices.nvidia.reset.sysfs.Path.write_text", refuse)
    assert reset.MEANS[KERNEL](target(rig), ()) == meant


@pytest.mark.usefixtures("gpu")
def test_the_kernel_says_when_it_is_done(rig) -> None:
    assert reset.MEANS[KERNEL](target(rig), ()) == Done()


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


def test_the_daemon_lets_go_for_the_reset_and_comes_back(rig, gpu, kept_ready) -> None:
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


def test_a_reset_that_fails_leaves_the_mode_as_it_was(rig, gpu, kept_ready) -> None:
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
    monkeypatch.setattr(smi, "reset", lambda *_: Stuck("it is still at it"))
    with pytest.raises(DeviceError, match="still at it"):
        reset.reset(target(rig, host=kept_ready, holders=daemon(gpu)))
    assert persisted(rig) == ["nvmlDeviceSetPersistenceMode"]
