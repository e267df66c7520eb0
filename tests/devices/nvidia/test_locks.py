"""A reset holds its lock for as long as its worker or its tool lives, and everybody can see that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from scrubber.devices.base import DeviceHandling, NotNowError
from scrubber.devices.nvidia import locks, nvlinks
from tests.devices.nvidia import bench
from tests.devices.nvidia.bench import by_tool, place, touch
from tests.devices.nvidia.health.events_seen import until
from tests.fakes.nvml.machine import Slice

RESET = (
    "import sys\nfrom scrubber.devices.nvidia.gpu import NvidiaGpu\n"
    "from scrubber.devices.nvidia import preconditions\n"
    "preconditions.is_root = lambda: True\nNvidiaGpu(sys.argv[1], lambda: ()).reset()\n"
)
HOLD = (
    "import fcntl, sys\nheld = open(sys.argv[1], 'a')\nfcntl.flock(held, fcntl.LOCK_EX)\nprint(flush=True)\ninput()\n"
)
gpu, root = bench.gpu, bench.root  # fixtures


@pytest.fixture
def killed(rig, gpu) -> Iterator[int]:  # noqa: ARG001 - what is reset must be free
    """A worker that was killed in the middle of a reset, and the tool that it left behind."""
    rig.machine.set({"smi.reset": "hang"})
    worker = subprocess.Popen([sys.executable, "-c", RESET, place(rig, 0)])
    until(lambda: [call for _, call, _ in rig.machine.calls() if call == "nvidia-smi-child"])
    worker.kill()
    worker.wait()
    calls = rig.machine.calls()
    tool = next(pid for pid, call, _ in calls if call == "nvidia-smi")
    yield tool
    for pid in (tool, *(int(about) for _, call, about in calls if call == "nvidia-smi-child")):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.mark.usefixtures("root")
def test_a_reset_lasts_as_long_as_its_tool_runs(rig, killed) -> None:
    backend = rig.backend()
    infos = backend.inventory()
    backend.release_driver()  # it is told without NVML
    assert [backend.in_reset(info.uuid) for info in infos] == [True] + [False] * 7
    backend.reacquire_driver()
    with pytest.raises(NotNowError, match="a reset of it is still under way"):
        touch(rig, 0).reset()
    assert len(by_tool(rig)) == 1
    os.kill(killed, signal.SIGKILL)
    until(lambda: not backend.in_reset(rig.gpu(0).uuid))
    rig.machine.set({"smi.reset": "ok"})
    touch(rig, 0).reset()
    assert len(by_tool(rig)) == 2


@pytest.mark.usefixtures("root", "gpu")
def test_a_reset_takes_its_lock_before_it_touches_the_gpu(rig) -> None:
    lock = locks.file_of(rig.settings.parent / "resets", rig.gpu(0).uuid)
    with locks.claimed(lock), pytest.raises(NotNowError):
        touch(rig, 0).reset()
    assert not [call for _, call, _ in rig.machine.calls() if "Set" in call]


@pytest.mark.usefixtures("root")
def test_gpus_reset_together_share_a_lock(rig) -> None:
    cut = rig.cut(0, Slice("3g.71gb"), Slice("3g.71gb"))
    backend = rig.seen()
    place = json.loads(backend.address(cut[0], DeviceHandling()).place)
    assert (place["locks"], place["resets"]) == ([rig.gpu(0).uuid], str(rig.settings.parent / "resets"))
    assert not backend.in_reset(cut[1])
    with locks.claimed(locks.file_of(Path(place["resets"]), place["locks"][0])):
        assert [backend.in_reset(uuid) for uuid in (*cut, rig.gpu(1).uuid)] == [True, True, False]
    assert not backend.in_reset(cut[1])


@pytest.fixture
def pair(rig, monkeypatch) -> None:
    """Two GPUs of the generation that goes down along its links, and are joined by one."""
    monkeypatch.setattr(nvlinks, "LINKS_HOLD", 0.0)
    for gpu in rig.machine.gpus:
        gpu.set({f"nvlink.{link}": None for link in range(18)}, architecture=pynvml.NVML_DEVICE_ARCH_TURING)
    rig.gpu(0).set({"nvlink.0": f"1 0 4 {rig.gpu(1)['pci']}"})
    rig.gpu(1).set({"nvlink.0": f"1 0 4 {rig.gpu(0)['pci']}"})


@pytest.mark.usefixtures("pair")
def test_linked_gpus_share_a_reset_with_an_unseen_gpu(rig) -> None:
    """After a restart of the service its links are unknown."""
    before, names = rig.backend(), [rig.gpu(number).uuid for number in (0, 1)]
    before.inventory()
    place = json.loads(before.address(names[0], DeviceHandling()).place)
    assert place["locks"] == names
    rig.gpu(0).set(absent=True)
    after = rig.seen()
    assert not after.in_reset(names[1])
    with locks.claimed(*(locks.file_of(Path(place["resets"]), name) for name in place["locks"])):
        assert [after.in_reset(uuid) for uuid in (*names, rig.gpu(2).uuid)] == [True, True, False]


@pytest.mark.usefixtures("pair")
def test_a_gpu_seen_later_joins_its_reset_domain(rig) -> None:
    names = [rig.gpu(number).uuid for number in (0, 1, 2)]
    rig.gpu(1).set({"nvlink.1": f"1 0 4 {rig.gpu(2)['pci']}"})
    rig.gpu(2).set({"nvlink.0": f"1 0 4 {rig.gpu(1)['pci']}"})
    rig.gpu(0).set(absent=True)
    backend = rig.seen()
    alone = json.loads(backend.address(names[2], DeviceHandling()).place)["locks"]
    rig.gpu(0).set(absent=False)
    with locks.claimed(*(locks.file_of(rig.settings.parent / "resets", name) for name in alone)):
        after = rig.backend()  # to which they have the name of the one that was away
        after.inventory()
        assert [after.in_reset(name) for name in names[1:]] == [True, True]
    rig.library.renew()
    backend.inventory()
    domains = {info.uuid: info.reset_domain for info in backend.inventory()}
    assert [domains[name] for name in names] == [names[1]] * 3
    for name in names:
        assert json.loads(backend.address(name, DeviceHandling()).place)["locks"] == names


@pytest.mark.usefixtures("root")
def test_any_reset_may_concern_a_slice_never_seen(rig) -> None:
    backend = rig.seen()
    assert not backend.in_reset("MIG-unknown")
    with locks.claimed(bench.lock(rig, 3)):
        assert backend.in_reset("MIG-unknown")
        assert not backend.in_reset(rig.gpu(4).uuid)
    with locks.claimed(locks.of_slices(bench.lock(rig, 3))):
        assert not backend.in_reset("MIG-unknown")


@pytest.mark.usefixtures("root", "gpu")
def test_a_reset_locks_its_whole_reset_domain(rig) -> None:
    names = [rig.gpu(number).uuid for number in (0, 1)]
    with locks.claimed(bench.lock(rig, 1)), pytest.raises(NotNowError):
        touch(rig, 0, locks=names).reset()
    with locks.claimed(bench.lock(rig, 2)):
        touch(rig, 0, locks=names).reset()


def test_a_start_waits_a_limited_time_for_an_old_reset(rig) -> None:
    lock = bench.lock(rig)
    assert locks.wait(lock.parent, 0.0)  # no reset was ever made
    with locks.claimed(lock):
        assert not locks.wait(lock.parent, 0.3)
    lock.touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as tool:
        assert tool.stdout is not None
        tool.stdout.readline()
        threading.Timer(0.3, tool.kill).start()
        assert locks.wait(lock.parent, 10.0)
        assert tool.wait() != 0
    lock.unlink()
    lock.symlink_to(lock)
    assert not locks.wait(lock.parent, 0.0)  # the answer is unknown


def test_an_observation_does_not_hold_the_reset_lock(tmp_path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD.replace("EX", "SH"), str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as looker:
        assert looker.stdout is not None
        looker.stdout.readline()
        with pytest.raises(NotNowError), locks.claimed(lock):
            pass
        looker.communicate(b"\n")
    with locks.claimed(lock):
        assert locks.held(lock)
    assert not locks.held(lock)
