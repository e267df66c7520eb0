"""A GPU's memory under a worker's hands: taken whole, cleared, tested, and accounted for by the driver's own books.

The worker's code, CuPy and pynvml are the real ones, over stand-ins for the two libraries of the driver.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pynvml
import pytest

from scrubber.core.measured import OWN_CONTEXT, OWN_IDLE, OWN_LISTED, Mismatch, Scratched, Verified
from scrubber.core.model import Outcome, Step
from scrubber.cuda import clearing, coverage, cuda_card, selftest
from scrubber.cuda.card import CardBusyError, Span, Sweep
from scrubber.cuda.driver import CudaDriver, Kernel
from scrubber.cuda.images import image_for
from scrubber.cuda.patterns import ZERO
from scrubber.devices.base import DeviceError, DeviceHandling, NodeOrDeviceError, NotNowError, ProgramFailedError
from scrubber.devices.nvidia import held_memory as nvidia_memory
from scrubber.devices.nvidia.gpu import NvidiaGpu
from scrubber.devices.nvidia.held_memory import FREED_WITHIN
from scrubber.steps import step_functions
from scrubber.steps.orders import Order, StepContext
from tests.devices.nvidia.bench import Skipping, no_holders, place, touch, touch_for
from tests.fakes.cuda.fixtures import in_this_process, libraries
from tests.fakes.cuda.machine import PAGE, SIZE, UNITS, CudaMachine, equip
from tests.fakes.nvml.machine import Slice

KEY = b"0123456789abcdef"
PASSES = ("random", "zero")
SECRET = b"the last tenant's secret"
TAKEN = 2 * PAGE  # the context, and the page of results
COVERED = SIZE - TAKEN
MUCH = 2**27  # bytes: more than the accounts of a scrub may differ by


def nothing(_done: int, _total: int) -> None:
    """Progress is not reported."""


@pytest.fixture
def cuda(rig, tmp_path) -> Iterator[CudaMachine]:
    with in_this_process(equip(tmp_path / "cuda", [rig.gpu(0), rig.gpu(1)], libraries())) as machine:
        yield machine


@pytest.fixture
def cells(cuda, rig) -> Path:
    """The memory of the first GPU, with a secret in it."""
    path: Path = cuda.memory(rig.gpu(0).uuid)
    with path.open("r+b") as file:
        file.seek(SIZE // 2)
        file.write(SECRET)
    return path


@pytest.fixture
def one(rig, cells) -> NvidiaGpu:  # noqa: ARG001 - it is dirty
    return touch(rig, 0)


def test_memory_is_cleared_and_every_byte_accounted_for(one, cells):
    cleared = one.clear(KEY, PASSES, nothing)
    assert (cleared.covered_bytes, cleared.allocatable_bytes, cleared.mismatch) == (COVERED, SIZE, None)
    assert cleared.residue_bytes == len(SECRET)
    assert len(cleared.residue_at) == 1
    assert {it.cause: it.bytes for it in cleared.uncovered} == {"the context of the scrub itself": TAKEN}
    assert SECRET not in cells.read_bytes()


def test_the_verify_reads_what_was_cleared_and_not_new_memory(one, cells):
    one.clear(KEY, PASSES, nothing)
    with cells.open("r+b") as file:
        file.seek(SIZE - 5)
        file.write(b"x")
    verified = one.verify(nothing)
    assert verified.covered_bytes == COVERED
    assert verified.mismatch == Mismatch(verified.mismatch.offset, 0, ord("x"), 1)


def test_a_worker_reads_back_only_what_it_has_written_itself(one):
    """It cannot know the pattern of another one: a difference would blame the device."""
    with pytest.raises(NotNowError, match=r"cannot read back the memory of .*: this worker has not written all of it"):
        one.verify(nothing)


def test_a_clear_is_safe_to_run_twice(one):
    first = one.clear(KEY, PASSES, nothing)
    again = one.clear(KEY, PASSES, nothing)
    assert (again.covered_bytes, again.residue_bytes) == (first.covered_bytes, 0)
    assert one.verify(nothing) == Verified(COVERED, ("zero",), SIZE)


def test_memory_taken_by_another_process_prevents_a_proof(one, cuda, rig):
    """The driver gave it out while this scrub took the rest."""
    cuda.enlarge(rig.gpu(0).uuid, MUCH)
    cuda.change(rig.gpu(0).uuid, taken_at=["allocate 3", MUCH])
    with pytest.raises(NotNowError, match=f"another process took {MUCH} bytes of its memory meanwhile"):
        one.clear(KEY, PASSES, nothing)


def test_memory_given_back_during_a_verify_is_no_proof(rig, cuda, cells):  # noqa: ARG001 - it is dirty
    one = touch(rig, 0, idle_bytes=MUCH)
    cuda.enlarge(rig.gpu(0).uuid, MUCH)
    with cuda.claim(rig.gpu(0).uuid, "somebody") as holds:
        holds(MUCH)
        one.clear(KEY, PASSES, nothing)
        with pytest.raises(NotNowError, match=f"{MUCH} bytes .* given back"):
            one.verify(lambda _done, _total: holds(0))


def test_memory_that_comes_back_between_two_steps_voids_no_scrub(rig, cuda, cells):  # noqa: ARG001 - it is dirty
    one = touch(rig, 0, idle_bytes=MUCH)
    cuda.enlarge(rig.gpu(0).uuid, 2 * PAGE)
    with cuda.claim(rig.gpu(0).uuid, "somebody") as holds:
        holds(2 * PAGE)
        one.clear(KEY, PASSES, lambda _done, _total: holds(PAGE))
        assert one.verify(lambda _done, _total: holds(2 * PAGE)).mismatch is None


@pytest.mark.parametrize(
    ("launch", "status", "kind"),
    [
        ("check 1", 719, lambda one: one.clear(KEY, PASSES, nothing)),
        ("check 2", 714, lambda one: one.clear(KEY, PASSES, nothing)),
        ("write 1", 700, lambda one: one.clear(KEY, PASSES, nothing)),
        ("write 2", 717, lambda one: one.clear(KEY, PASSES, nothing)),
        ("check 3", 716, lambda one: (one.clear(KEY, PASSES, nothing), one.verify(nothing))),
        ("scratch 2", 715, lambda one: one.scratch(KEY)),  # the first ones are to have it loaded
        # Tests that do not fit into the time are skipped.
        ("invert 1", 710, lambda one: one.selftest(KEY, 600.0, nothing)),
        ("exact 2", 718, lambda one: one.selftest(KEY, 6.0, nothing)),
    ],
)
def test_a_failed_kernel_may_be_our_own_fault(one, cuda, rig, launch, status, kind):
    """Any other error than these would count against the device, or end the worker."""
    cuda.change(rig.gpu(0).uuid, fails_at=launch, fails_with=status)
    with pytest.raises(ProgramFailedError, match=r"CUDA says .*; a kernel of Autoclave failed"):
        kind(one)


def test_bad_memory_is_reported_although_another_process_takes_some(one, cuda, rig):
    cuda.enlarge(rig.gpu(0).uuid, MUCH)
    cuda.change(rig.gpu(0).uuid, taken_at=["allocate 3", MUCH], stuck={SIZE // 2: 4})
    assert one.clear(KEY, PASSES, nothing).mismatch.offset == SIZE // 2 - TAKEN
    assert one.verify(nothing).mismatch is not None


def test_memory_still_being_freed_is_no_leak(rig, cells):
    rig.gpu(0).set({"memory.used": 2**27})
    waited = Skipping(lambda: rig.gpu(0).set({"memory.used": 0}) if waited.skipped > 14.0 else None)
    assert touch_for(rig, waited).clear(KEY, PASSES, nothing).mismatch is None
    assert SECRET not in cells.read_bytes()
    assert 14.0 < waited.skipped < FREED_WITHIN


def test_memory_without_a_visible_holder_is_a_device_fault(one, rig, cells):
    """If it counted as memory of a process that will leave, the reset that frees it would never run."""
    rig.gpu(0).set({"memory.used": 2**27})
    with pytest.raises(DeviceError, match="134217728 bytes of its memory are in use by no visible process") as it:
        one.clear(KEY, PASSES, nothing)
    assert type(it.value) is DeviceError
    assert SECRET in cells.read_bytes()


@pytest.mark.parametrize("idle", [2**25, 2**26])
def test_idle_use_up_to_the_limit_counts_as_the_drivers(cells, rig, idle):
    rig.gpu(0).set({"memory.used": idle + 2**20, "memory.total": SIZE + 2 * PAGE + idle + 2**20})
    uncovered = touch(rig, 0, idle_bytes=idle).clear(KEY, PASSES, nothing).uncovered
    assert {it.cause: it.bytes for it in uncovered} == {
        OWN_IDLE: idle,
        "in use before the scrub": 2**20,
        OWN_CONTEXT: TAKEN,
    }
    assert SECRET not in cells.read_bytes()


def test_what_the_driver_counts_as_ours_is_ours(one, rig, monkeypatch):
    """A large context: the limits are for memory of which the driver does not say whose it is."""
    monkeypatch.setattr(nvidia_memory, "OURS_AT_MOST", PAGE)
    monkeypatch.setattr(coverage, "CONTEXT_AT_MOST", PAGE)
    assert {it.cause: it.bytes for it in one.clear(KEY, PASSES, nothing).uncovered} == {OWN_LISTED: TAKEN}
    rig.gpu(0).fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(NotNowError, match="another process took"):
        one.verify(nothing)


def test_nvml_is_closed_while_memory_is_worked_on(one, rig):
    """It would have the nodes of all GPUs open, and keep the jobs of others from theirs."""
    calls: list[str] = []
    one.clear(KEY, PASSES, lambda _done, _total: calls.append(rig.machine.calls()[-1][1]))
    one.selftest(KEY, 6.0, lambda _done, _total: calls.append(rig.machine.calls()[-1][1]))
    assert set(calls) == {"nvmlShutdown"}


def test_a_multiprocessor_that_computes_nothing_fails_the_self_test(one, cuda, rig):
    cuda.change(rig.gpu(0).uuid, unreached=[2])
    with pytest.raises(DeviceError, match="3 of 4 multiprocessors computed"):
        one.selftest(KEY, 6.0, nothing)


@pytest.mark.parametrize(
    ("capability", "virtual", "left"),
    [
        ("9.0", False, ()),
        ("10.0", False, (clearing.TENSOR,)),
        ("10.9", False, (clearing.TENSOR, clearing.UNKNOWN)),
        ("13.0", False, (clearing.UNKNOWN,)),
        ("9.0", True, (clearing.SHARED,)),
        ("9.0", None, (clearing.UNKNOWN,)),  # the driver does not say whether it is a vGPU
    ],
)
def test_a_scratch_names_the_memory_that_it_leaves(rig, cuda, monkeypatch, capability, virtual, left):
    code = image_for((9, 0))  # the only one that the stand-in for the driver runs
    monkeypatch.setattr(cuda_card, "image_for", lambda _capability: code)
    cuda.change(rig.gpu(0).uuid, capability=capability)
    rig.gpu(0).set(virtualization_mode=pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU if virtual else 0)
    if virtual is None:
        rig.gpu(0).fail("nvmlDeviceGetVirtualizationMode", pynvml.NVML_ERROR_UNKNOWN)
    place = rig.seen().address(rig.gpu(0).uuid, DeviceHandling()).place
    done = NvidiaGpu(place, no_holders, rig.library, clock=Skipping().clock).scratch(KEY)
    assert done == Scratched(UNITS, UNITS, 0, UNITS * 1024, ("caches", "some registers", *left))


def test_the_chip_is_overwritten_and_the_memory_tested(one):
    assert one.scratch(KEY).units_reached == UNITS
    tested = one.selftest(KEY, 6.0, nothing)
    assert (tested.tests[-1], tested.mismatch, tested.units, tested.deviating) == ("arithmetic", None, UNITS, ())
    assert tested.covered_bytes == COVERED
    assert one.verify(nothing).mismatch is None


@pytest.fixture
def counted(rig, monkeypatch) -> dict[str, int]:
    """What the GPU counts while it is tested."""
    whole, counts = selftest.run, dict[str, int]()

    def run(*given: object) -> object:
        rig.gpu(0).set(counts)
        return whole(*cast("Any", given))

    monkeypatch.setattr(selftest, "run", run)
    return counts


def test_an_error_counted_during_the_self_test_fails_it(one, counted):
    counted["ecc.total.1.0"] = 3
    with pytest.raises(DeviceError, match=r"it counted 3 new uncorrectable memory errors during its test"):
        one.selftest(KEY, 6.0, nothing)


def test_a_repair_during_the_self_test_is_only_reported(one, counted):
    counted |= {"ecc.total.0.0": 3, "remap.corrected": 1, "remap.uncorrected": 1}
    report = step_functions.perform(
        Step.SELFTEST, Order(key="00" * 16, seconds=6.0), StepContext(one, lambda: (), nothing)
    )
    assert report.outcome is Outcome.PASSED
    assert report.detail.endswith("3 memory errors corrected; 2 memory rows remapped")


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"refuses": 46}, NotNowError, "DEVICE_UNAVAILABLE"),
        ({"fails_at": "write 1", "fails_with": 1}, NotNowError, "cannot write memory of GPU-.*; .*update Autoclave"),
        ({"refuses": 214}, DeviceError, "CUDA says"),
        ({"fails_at": "write 1", "fails_with": 702}, ProgramFailedError, "CUDA says .* display"),
        ({"fails_at": "write 1", "fails_with": 2}, NotNowError, "end the process that uses its memory"),
        (
            {"attribute.18": 1},
            NotNowError,
            "its memory is integrated into the host's; a scrub would take all memory of the node",
        ),
        (
            {"attribute.100": 1},
            NotNowError,
            "shares its memory with the host, and .* do not say that the driver manages it",
        ),
        ({"shown_pci": "0000:ff:00.0"}, DeviceError, "CUDA shows the device at 0000:FF:00.0, which is another one"),
        (
            {"shown_uuid": "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"},
            NotNowError,
            "CUDA shows the device c6d4f1ef42e45de3",
        ),
        ({"capability": "7.0"}, NotNowError, "compute capability 7.0"),
    ],
)
def test_an_error_of_cuda_is_reported_and_changes_nothing(one, cuda, rig, cells, changes, error, why):
    cuda.change(rig.gpu(0).uuid, **changes)
    before = cells.read_bytes()[TAKEN:]
    with pytest.raises(DeviceError, match=why) as caught:
        one.clear(KEY, PASSES, nothing)
    assert type(caught.value) is error
    assert SECRET in cells.read_bytes()
    assert cells.read_bytes()[TAKEN:] == before


BY_DRIVER = 'EnableUserNUMAManagement: 0\nCoherentGPUMemoryMode: "driver"\n'


def test_coherent_memory_that_the_driver_manages_is_cleared(one, cuda, rig):
    cuda.change(rig.gpu(0).uuid, **{"attribute.100": 1})
    rig.root.manage_memory(rig.gpu(0), BY_DRIVER, numa=False)
    assert one.clear(KEY, PASSES, nothing).covered_bytes == COVERED


@pytest.mark.parametrize("tables", [0, 1])
def test_memory_that_is_a_numa_node_is_left_alone(one, cuda, rig, cells, tables):
    """Whatever CUDA says about page tables."""
    cuda.change(rig.gpu(0).uuid, **{"attribute.100": tables})
    rig.root.manage_memory(rig.gpu(0), "", numa=True)
    with pytest.raises(
        NotNowError, match=r"a NUMA node of the host; .*; load .* with NVreg_CoherentGPUMemoryMode=driver"
    ):
        one.clear(KEY, PASSES, nothing)
    assert SECRET in cells.read_bytes()


@pytest.mark.parametrize("status", [3, 100, 999])
def test_without_the_drivers_memory_module_no_device_is_at_fault(one, cuda, rig, status):
    cuda.change(rig.gpu(0).uuid, refuses=status)
    with pytest.raises(NodeOrDeviceError, match="CUDA says"):
        one.clear(KEY, PASSES, nothing)
    (rig.host.dev / "nvidia-uvm").unlink()
    with pytest.raises(NotNowError, match="nvidia-uvm is missing: load the module nvidia_uvm"):
        one.clear(KEY, PASSES, nothing)


@pytest.fixture
def prohibited(rig, cells) -> NvidiaGpu:  # noqa: ARG001 - it is dirty
    """A GPU whose compute mode is prohibited: the driver gives nobody a context."""
    rig.gpu(0).set({"compute_mode": 2})
    return NvidiaGpu(place(rig, 0), no_holders, rig.library, clock=Skipping().clock)


def test_a_gpu_in_the_compute_mode_prohibited_is_cleared(rig, prohibited):
    assert prohibited.clear(KEY, PASSES, nothing).drift == ("compute_mode: prohibited -> default",)
    assert rig.machine.clients() == ()


CANNOT = "its compute mode is prohibited and cannot be changed: .*"


@pytest.mark.parametrize(
    ("code", "change", "kind", "words"),
    [
        pytest.param(pynvml.NVML_ERROR_NO_PERMISSION, lambda _rig: {}, NotNowError, CANNOT, id="forbidden"),
        pytest.param(pynvml.NVML_ERROR_UNKNOWN, lambda _rig: {}, DeviceError, CANNOT, id="fails"),
        pytest.param(
            None,
            lambda _rig: {"left": ("compute_mode",)},
            NotNowError,
            r"prohibited, and the policy leaves it \(settings.leave\); change it on the node",
            id="left by the policy",
        ),
        pytest.param(  # other slices may be in use
            None,
            lambda rig: {"parent": rig.gpu(0).uuid},
            NotNowError,
            "its GPU is prohibited; set it on the node",
            id="slice",
        ),
    ],
)
def test_a_compute_mode_that_is_not_changed_is_named(rig, prohibited, code, change, kind, words):
    rig.gpu(0).fail("nvmlDeviceSetComputeMode", code)
    prohibited._holding._place = replace(prohibited._place, **change(rig))
    with pytest.raises(kind, match=f"{words}: nvidia-smi -i {rig.gpu(0).uuid} -c DEFAULT") as caught:
        prohibited.clear(KEY, PASSES, nothing)
    assert type(caught.value) is kind
    assert rig.gpu(0)["compute_mode"] == "2"
    assert rig.machine.clients() == ()


@pytest.mark.parametrize(("shown", "opens"), [("slice", True), ("parent", False), ("another", False)])
def test_cuda_names_a_slice_by_its_own_uuid(rig, cells, shown, opens):
    """The driver's newer call does; the older one names the GPU, and all slices of a GPU have its address."""
    [slice_, another] = rig.gpu(0).cut([Slice("1g.18gb"), Slice("1g.18gb")])
    uuids = {"slice": slice_, "parent": rig.gpu(0).uuid, "another": another}
    rig.gpu(0).set({"mig.0.cuda.memory": cells, "mig.0.cuda.shown_uuid": uuids[shown]})
    if opens:
        assert cuda_card.opened(slice_, rig.gpu(0).pci).units
        return
    with pytest.raises(CardBusyError, match="which is another one"):
        cuda_card.opened(slice_, rig.gpu(0).pci)


def test_nothing_runs_on_the_device_before_the_clear(one, cuda, rig, cells, monkeypatch):
    before = cells.read_bytes()[TAKEN:]
    monkeypatch.setattr(Kernel, "launch", lambda *_: pytest.fail("a kernel was launched"))
    one.prepare()
    assert cells.read_bytes()[TAKEN:] == before
    assert 0 < cuda.taken(rig.gpu(0).uuid) <= TAKEN


def test_a_refused_heap_limit_does_not_fail_the_scrub(one, cuda, rig):
    cuda.change(rig.gpu(0).uuid, refuses_limits=[1, 2])
    cleared = one.clear(KEY, PASSES, nothing)
    assert cleared.mismatch is None
    assert {it.cause: it.bytes >= 2**20 + 2**23 for it in cleared.uncovered} == {OWN_CONTEXT: True}


# --- the port on CuPy ---


@pytest.fixture
def card(cuda, rig) -> cuda_card.CudaCard:  # noqa: ARG001 - it must be there
    return cuda_card.opened(rig.gpu(0).uuid, rig.gpu(0).pci)


@pytest.mark.usefixtures("card")
def test_cuda_sees_one_device_and_no_shared_server(rig):
    assert os.environ["CUDA_VISIBLE_DEVICES"] == rig.gpu(0).uuid
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "/nonexistent"


def test_a_block_is_queued_before_the_previous_one_is_written(card, monkeypatch):
    card.ready()
    seen: list[str] = []
    launch, wait = Kernel.launch, CudaDriver.get

    def blocks() -> Iterator[Span]:
        for start in (0, PAGE):
            seen.append("take")
            yield Span(card.allocate(PAGE), PAGE, start)

    def launches(*given: object) -> None:
        seen.append("launch")
        launch(*cast("Any", given))

    def waits(*given: object) -> bytes:
        seen.append("wait")
        return wait(*cast("Any", given))

    monkeypatch.setattr(Kernel, "launch", launches)
    monkeypatch.setattr(CudaDriver, "get", waits)
    card.sweep(Sweep.WRITE, ZERO, blocks(), lambda _size: None)
    assert seen == ["take", "launch", "take", "launch", "wait"]
