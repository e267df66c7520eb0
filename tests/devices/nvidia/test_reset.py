"""A GPU is reset by one means after the other, as the policy orders them, and kept ready by nobody meanwhile."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

import pynvml
import pytest

from scrubber.core.model import Holder
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import reset, smi
from scrubber.devices.nvidia.attempt import Attempt, Done, Failed, InUse, NoPermission, Stuck, Unsupported
from scrubber.devices.nvidia.conditions import Patience
from scrubber.devices.nvidia.host import Host
from tests.devices.nvidia import bench
from tests.devices.nvidia.bench import by_kernel, by_tool, file, refused, somebody, target
from tests.fakes.nvml.host import Root

TOOL, KERNEL = "nvidia-smi", "function"
gpu = bench.gpu  # a fixture


@pytest.mark.usefixtures("gpu")
def test_nvml_is_closed_before_the_tool_runs_and_opened_after_it(rig) -> None:
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
        ("unsupported", "nvidia-smi: nvidia-smi says that this device cannot be reset"),
        ("no-permission", "nvidia-smi: it takes root and CAP_SYS_ADMIN"),
        ("fails", "nvidia-smi: nvidia-smi ended with status 255: .*could not be reset: Unknown Error"),
    ],
)
def test_the_next_means_follows_one_that_was_refused_or_failed(rig, order: str, words: str) -> None:
    rig.machine.set({"smi.reset": order})
    reset.reset(target(rig))
    assert by_kernel(rig)
    file(rig, "reset_method").write_text("bus flr\n")
    with pytest.raises(DeviceError, match=f"cannot reset: {words}; function: the kernel would reset it by bus flr"):
        reset.reset(target(rig))
    assert len(by_tool(rig)) == 2  # once in each


@pytest.mark.usefixtures("gpu")
def test_nothing_follows_where_the_driver_knows_a_client(rig) -> None:
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
def test_somebody_who_comes_between_two_means_stops_the_second(rig) -> None:
    rig.machine.set({"smi.reset": "fails"})
    with pytest.raises(DeviceError, match="it is open in train"):
        reset.reset(target(rig, users=lambda: somebody() if by_tool(rig) else ()))
    assert not by_kernel(rig)


@pytest.mark.usefixtures("gpu")
def test_a_tool_that_is_late_is_put_down_and_the_kernel_is_asked(rig) -> None:
    rig.machine.set({"smi.reset": "hang"})
    reset.reset(target(rig, patience=Patience(tool=1.0)))
    assert by_kernel(rig)


def test_nothing_follows_a_tool_that_cannot_be_put_down(rig, gpu, monkeypatch) -> None:
    gpu.set(persistence_mode=0)
    monkeypatch.setattr(smi, "reset", lambda _uuid, _within: Stuck("it is still at it"))
    with pytest.raises(DeviceError, match="cannot reset: nvidia-smi: it is still at it: reboot the node"):
        reset.reset(target(rig))
    assert not by_kernel(rig)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("methods", "told"),
    [("bus\n", "by bus, not flr"), ("", "by no method that it tells, not flr"), (None, "by no method that it tells")],
)
def test_the_kernel_is_asked_for_nothing_but_a_function_level_reset(rig, methods, told: str) -> None:
    file(rig, "reset_method").unlink()
    if methods is not None:
        file(rig, "reset_method").write_text(methods)
    assert told in refused(rig, means=(KERNEL,))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("number", "meant"),
    [
        (16, InUse()),
        (13, NoPermission()),
        (25, Unsupported("the kernel knows no way to reset this device")),
        (30, Unsupported("/sys is mounted read-only: mount it writable")),
        (2, Unsupported("the kernel offers no reset of this device")),
        (5, Failed("the kernel's reset failed: Input/output error")),
    ],
)
def test_the_kernels_refusals_are_understood(rig, monkeypatch, number: int, meant: Attempt) -> None:
    def refuse(_path, _text) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("scrubber.devices.nvidia.sysfs.Path.write_text", refuse)
    assert reset.MEANS[KERNEL](target(rig)) == meant


@pytest.mark.usefixtures("gpu")
def test_the_kernel_says_when_it_is_done(rig) -> None:
    assert reset.MEANS[KERNEL](target(rig)) == Done()


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
    return lambda: somebody(os.getpid(), "nvidia-persiste") if gpu["persistence_mode"] == "1" else ()


def persisted(rig) -> list[str]:
    """When the mode was set, and the tool ran."""
    return [call for _, call, _ in rig.machine.calls() if call in ("nvmlDeviceSetPersistenceMode", "nvidia-smi")]


def test_the_daemon_lets_go_for_the_reset_and_comes_back(rig, gpu, kept_ready) -> None:
    reset.reset(target(rig, host=kept_ready, users=daemon(gpu)))
    assert persisted(rig) == ["nvmlDeviceSetPersistenceMode", "nvidia-smi", "nvmlDeviceSetPersistenceMode"]
    assert gpu["persistence_mode"] == "1"


@pytest.mark.usefixtures("gpu")
def test_who_only_bears_the_daemons_name_is_in_the_way(rig, kept_ready) -> None:
    users = somebody(os.getpid() + 1, "nvidia-persiste")
    assert "it is open in nvidia-persiste" in refused(rig, host=kept_ready, users=lambda: users)
    assert persisted(rig) == []


def test_a_daemon_that_does_not_let_go_is_in_the_way_after_all(rig, gpu, kept_ready) -> None:
    users = somebody(os.getpid(), "nvidia-persiste")
    assert "it is open in nvidia-persiste" in refused(rig, host=kept_ready, users=lambda: users)
    assert gpu["persistence_mode"] == "1"


def test_a_reset_that_fails_leaves_the_mode_as_it_was(rig, gpu, kept_ready) -> None:
    rig.machine.set({"smi.reset": "in-use"})
    with pytest.raises(DeviceError, match="the driver knows a client"):
        reset.reset(target(rig, host=kept_ready, users=daemon(gpu)))
    assert gpu["persistence_mode"] == "1"


def test_a_mode_that_cannot_be_switched_stops_the_reset(rig, gpu, kept_ready) -> None:
    gpu.fail("nvmlDeviceSetPersistenceMode", pynvml.NVML_ERROR_NO_PERMISSION)
    assert "persistence mode cannot be switched off" in refused(rig, host=kept_ready)


@pytest.mark.parametrize(("order", "first"), [("ok", ""), ("in-use", "the driver knows a client.*")])
def test_a_mode_that_does_not_come_back_is_told_with_whatever_else_failed(
    rig, gpu, kept_ready, order: str, first: str
) -> None:
    rig.machine.set({"smi.reset": order})

    def users() -> tuple[Holder, ...]:
        if gpu["persistence_mode"] == "0":
            gpu.fail("nvmlDeviceSetPersistenceMode", pynvml.NVML_ERROR_UNKNOWN)
        return daemon(gpu)()

    with pytest.raises(DeviceError, match=f"{first}persistence mode cannot be switched on"):
        reset.reset(target(rig, host=kept_ready, users=users))


def test_nobody_asks_a_device_again_that_a_stuck_tool_is_still_at(rig, gpu, kept_ready, monkeypatch) -> None:
    monkeypatch.setattr(smi, "reset", lambda _uuid, _within: Stuck("it is still at it"))
    with pytest.raises(DeviceError, match="still at it"):
        reset.reset(target(rig, host=kept_ready, users=daemon(gpu)))
    assert persisted(rig) == ["nvmlDeviceSetPersistenceMode"]
