"""A GPU has no holder only if no process is listed and no memory is held."""

from __future__ import annotations

import json
from pathlib import Path

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubber.core.model import Moment
from scrubber.devices.base import DeviceError, DeviceHandling
from scrubber.devices.nvidia import holders
from scrubber.devices.nvidia.holders import IDLE_AT_MOST, NOISE, IdleMemory, Usage
from scrubber.node import clock
from scrubber.node.processes import Processes, no_bystander
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.holder_search import HolderSearch
from tests.devices.nvidia.conftest import namespace
from tests.fakes.nvml.machine import Process, Slice

MIB = 2**20
DEAD = 2**22 + 1  # above the most that the kernel numbers
CALLS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses_v3",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
}


def idle(used: int) -> Usage:
    return Usage(listed=False, least=used, most=used)


USED = Usage(True, 100 * MIB, 100 * MIB)
HISTORIES: dict[str, tuple[list[Usage], bool | None, int]] = {
    "idle": ([idle(4 * MIB)], False, 0),
    "a little more than ever before": ([idle(4 * MIB), idle(5 * MIB)], None, 0),
    "no more than the driver's noise": ([idle(4 * MIB), idle(4 * MIB + NOISE)], None, 0),
    "taken while nobody came": ([idle(4 * MIB), idle(44 * MIB)], None, 0),
    "left by a process that came": ([idle(4 * MIB), USED, idle(44 * MIB)], None, 40 * MIB),
    "left by a process that may have come": ([idle(4 * MIB), Usage(None, 0, 0), idle(44 * MIB)], None, 40 * MIB),
    "left, and more is taken": ([idle(4 * MIB), USED, idle(44 * MIB), idle(45 * MIB)], None, 41 * MIB),
    "taken after all was given back": ([idle(4 * MIB), USED, idle(4 * MIB), idle(44 * MIB)], None, 0),
    "too much for a program that watches": ([idle(4 * MIB), idle(IDLE_AT_MOST + 1)], None, IDLE_AT_MOST + 1 - 4 * MIB),
    "the most that an idle GPU uses": ([idle(IDLE_AT_MOST)], False, 0),
    "more than any idle GPU uses": ([idle(IDLE_AT_MOST + 1)], None, 0),
    "a context from before the first observation": ([idle(200 * MIB)], None, 200 * MIB - IDLE_AT_MOST),
    "a listed process": ([idle(4 * MIB), USED], True, 0),
    "nothing is learnt while a process is listed": ([Usage(True, 0, 0), idle(30 * MIB)], False, 0),
    "a list is unknown": ([Usage(None, 100 * MIB, 100 * MIB)], None, 100 * MIB - IDLE_AT_MOST),
    "a process began meanwhile": ([idle(0), Usage(False, 0, 900 * MIB)], None, 0),
}


@pytest.mark.parametrize(("history", "in_use", "leaked"), HISTORIES.values(), ids=HISTORIES)
def test_memory_above_the_lowest_use_seen_is_held_or_leaked(history, in_use, leaked) -> None:
    idle_memory = IdleMemory()
    last, learned = history[-1], [idle_memory.learn("gpu", "driver", usage) for usage in history][-1]
    assert (holders.in_use(last, learned), holders.leaked(last, learned.bytes)) == (in_use, leaked)


def test_memory_that_a_profiler_takes_is_no_leak(rig, monkeypatch) -> None:
    """As DCGM's may, which no list names: a reset could not free it. For a while it may be of a hidden process too."""
    backend, gpu, times = rig.seen(), rig.gpu(0), iter([0.0, 100.0, 101.0, 109.9, 110.0, 111.0])
    monkeypatch.setattr(clock, "now", lambda: Moment(0.0, next(times)))
    assert backend.has_holders(gpu.uuid) is False
    gpu.set({"memory.used": 44 * MIB})
    assert [backend.has_holders(gpu.uuid) for _ in range(4)] == [None, None, None, False]
    assert backend.vitals(gpu.uuid).leaked_bytes == 0
    assert json.loads(backend.address(gpu.uuid, DeviceHandling()).place)["idle_bytes"] == 44 * MIB


def test_memory_that_no_process_explains_makes_holders_unknown(rig) -> None:
    backend, gpu = rig.backend(), rig.gpu(0)
    gpu.set({"memory.reserved": 2000 * MIB})  # of the driver itself
    assert (backend.has_holders(gpu.uuid), backend.vitals(gpu.uuid).leaked_bytes) == (False, 0)
    gpu.run(Process(4711))
    assert backend.has_holders(gpu.uuid) is True
    gpu.run()
    gpu.set({"memory.used": 44 * MIB})
    assert (backend.has_holders(gpu.uuid), backend.vitals(gpu.uuid).leaked_bytes) == (None, 40 * MIB)


@pytest.mark.parametrize("kind", CALLS)
def test_a_process_on_any_list_is_a_holder(rig, kind: str) -> None:
    rig.gpu(0).run(Process(4711), kind=kind)
    assert rig.backend().has_holders(rig.gpu(0).uuid) is True
    assert rig.backend().has_holders(rig.gpu(1).uuid) is False


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("version", ["535.43.02", "535.54.03", "535.98", "535.104.05", "530.41.03", "580.159.04"])
def test_each_listed_pid_is_the_one_that_the_driver_means(rig, kind: str, version: str) -> None:
    """Drivers from 535.43 to 535.98 answer with entries that are wider than pynvml reads."""
    backend, gpu = rig.backend(), rig.gpu(0)
    rig.machine.set({"driver_version": version})
    gpu.run(Process(4711), Process(4712), Process(4713), kind=kind)
    assert backend.listed_holders(gpu.uuid) == {4711, 4712, 4713}
    assert backend.has_holders(gpu.uuid) is True


@pytest.fixture
def lacking(rig) -> tuple[str, str]:
    """A new slice, and its device node, which is missing here."""
    (slice_,) = rig.cut(0, Slice())
    node = next(path for path in rig.seen().files(slice_) if "nvidia-cap" in Path(path).name)
    Path(node).unlink()
    return slice_, node


async def test_the_node_of_a_new_slice_may_be_missing_here(rig, lacking, tmp_path) -> None:
    """A container has the device nodes of its start, and somebody has laid out slices since."""
    (slice_, node), whole = lacking, rig.gpu(1).uuid
    backend = rig.seen()
    (tmp_path / "seen").mkdir()
    processes = Processes(tmp_path / "seen", lambda _: None, whole_node=False)
    search = HolderSearch(DriverCalls(backend, "boot"), processes, lambda _: no_bystander)
    _, found = await search.of([slice_, whole])
    assert found.holders == {slice_: None, whole: ()}
    assert found.missing.keys() == {slice_}
    assert found.missing[slice_].startswith(f"{node} is not here; if the service runs in a container, start it again")


def test_a_reloaded_driver_has_another_idle_memory(rig) -> None:
    backend, gpu = rig.backend(), rig.gpu(0)
    assert backend.has_holders(gpu.uuid) is False
    gpu.set({"memory.used": 30 * MIB})
    assert backend.has_holders(gpu.uuid) is None
    rig.reload_driver()
    assert backend.has_holders(gpu.uuid) is False


def test_a_slice_may_reject_the_list_of_mps_processes(rig) -> None:
    """NVML answers so where slices have no such list. From a whole GPU, and for another list, it is an error."""
    backend = rig.backend()
    (slice_,) = rig.cut(0, Slice())
    whole = rig.gpu(1).uuid
    rig.machine.fail(CALLS["mps"], pynvml.NVML_ERROR_INVALID_ARGUMENT)
    assert (backend.has_holders(slice_), backend.listed_holders(slice_)) == (None, frozenset())
    assert backend.vitals(slice_).lost is False
    rig.gpu(0).run(Process(4711, gi=int(rig.gpu(0)["mig.0.gi"]), ci=0))
    assert (backend.has_holders(slice_), backend.listed_holders(slice_)) == (True, {4711})
    for question in (backend.has_holders, backend.listed_holders):
        with pytest.raises(DeviceError, match="MPSComputeRunningProcesses_v3 failed"):
            question(whole)
    rig.machine.fail(CALLS["mps"], None)
    rig.machine.fail(CALLS["graphics"], pynvml.NVML_ERROR_INVALID_ARGUMENT)
    for question in (backend.has_holders, backend.listed_holders):
        with pytest.raises(DeviceError, match="GraphicsRunningProcesses_v3 failed"):
            question(slice_)


def test_empty_lists_in_another_process_namespace_prove_nothing(rig) -> None:
    namespace(rig.host, "pid:[4026532911]")
    assert rig.backend().has_holders(rig.gpu(0).uuid) is None
    rig.gpu(0).run(Process(4711))
    assert rig.backend().has_holders(rig.gpu(0).uuid) is True
    rig.gpu(0).run()
    (rig.host.proc / "self/ns/pid").unlink()  # the namespace is unknown
    assert rig.backend().has_holders(rig.gpu(0).uuid) is None


def test_a_slices_users_and_memory_are_its_own(rig) -> None:
    backend = rig.backend()
    first, second = rig.cut(0, Slice(), Slice())
    gi = [rig.gpu(0)[f"mig.{number}.gi"] for number in (0, 1)]
    assert (backend.has_holders(first), backend.has_holders(second)) == (False, False)
    rig.gpu(0).run(Process(4711, gi=int(gi[0]), ci=0))
    rig.gpu(0).set({f"gi.{gi[1]}.memory.used": 300 * MIB})
    assert (backend.has_holders(first), backend.has_holders(second)) == (True, None)
    assert backend.vitals(second).leaked_bytes == 300 * MIB


def test_a_sliced_gpu_is_never_free_as_a_whole(rig) -> None:
    backend = rig.backend()
    rig.cut(0, Slice())
    assert backend.has_holders(rig.gpu(0).uuid) is None


def test_memory_use_is_read_before_and_after_the_process_lists(rig) -> None:
    rig.backend().has_holders(rig.gpu(0).uuid)
    asked = [call for _, call, _ in rig.machine.calls() if "Memory" in call or "Processes" in call]
    assert asked[0] == asked[-1] == "nvmlDeviceGetMemoryInfo_v2"
    assert set(asked[1:-1]) == set(CALLS.values())


def test_a_listed_process_that_ended_holds_no_memory(rig) -> None:
    backend, gpu = rig.backend(), rig.gpu(0)
    gpu.run(Process(DEAD, used=20000 * MIB))
    gpu.set({"memory.used": 20000 * MIB})
    assert backend.has_holders(gpu.uuid) is None
    assert backend.vitals(gpu.uuid).leaked_bytes > 19000 * MIB
    (rig.host.proc / str(DEAD)).mkdir()
    assert backend.has_holders(gpu.uuid) is True
    assert backend.vitals(gpu.uuid).leaked_bytes == 0


def test_a_device_waiting_for_a_reset_lists_no_holders(rig) -> None:
    rig.gpu(0).set(reset_required=True)
    assert rig.backend().listed_holders(rig.gpu(0).uuid) == frozenset()


@given(st.lists(st.tuples(st.sampled_from([True, False, None]), st.integers(0, 2**38), st.integers(0, 2**38))))
def test_no_history_raises_the_idle_memory_above_its_limit(looks) -> None:
    idle_memory = IdleMemory()
    for listed, *used in looks:
        usage = Usage(listed, min(used), max(used))
        idle = idle_memory.learn("gpu", "driver", usage)
        assert idle.bytes <= IDLE_AT_MOST
        assert idle.settled <= idle.bytes
        if holders.in_use(usage, idle) is False:
            assert listed is False
            assert usage.most <= IDLE_AT_MOST
        if holders.leaked(usage, idle.bytes):
            assert listed is not True


@pytest.mark.parametrize(("profile", "most"), [("7g.141gb", 128 * MIB), ("3g.71gb", 64 * MIB)])
def test_a_slice_of_full_size_may_use_more_when_idle(rig, profile, most) -> None:
    backend = rig.backend()
    [uuid] = rig.cut(0, Slice(profile))
    backend.inventory()
    [gi] = [
        key for key in rig.machine.read() if key.startswith(f"{rig.gpu(0).prefix}gi.") and key.endswith("memory.used")
    ]
    rig.machine.set({gi: most})
    assert (backend.has_holders(uuid), backend.vitals(uuid).leaked_bytes) == (False, 0)
    assert json.loads(backend.address(uuid, DeviceHandling()).place)["idle_bytes"] == most


@pytest.mark.parametrize(("profile", "whole"), [("4g.24gb", True), ("4g.96gb", True), ("4g.20gb", False)])
def test_four_slices_are_a_whole_gpu_on_some_models(profile, whole) -> None:
    assert (holders.idle_at_most(f"NVIDIA A30 MIG {profile}") > IDLE_AT_MOST) is whole
