"""The driver's own interface: which errors of its calls end a scrub, and that CUDA's runtime is never reached."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pynvml
import pytest

from scrubber.cuda import clearing, cuda_card, driver, memory
from scrubber.cuda.card import CardBusyError, CudaError, Free
from scrubber.devices.nvidia.nvml import Library
from tests.fakes.cuda.fixtures import in_this_process, libraries
from tests.fakes.cuda.machine import PAGE, SIZE, CudaMachine, equip
from tests.fakes.nvml import fixtures
from tests.fakes.nvml.machine import Gpu, Machine

nvml_build, stage = fixtures.nvml_build, fixtures.stage

KEY = b"k" * 16
OF_CUPY = ("cuModuleLoad", "cuModuleGetFunction", "cuFuncGetAttribute", "cuFuncSetAttribute", "cuLaunchKernel")
RUNTIME = "import cupy_backends.cuda.api.runtime as runtime; runtime.getDeviceCount()"


@pytest.fixture
def gpu(tmp_path) -> Gpu:
    return Machine.h200(tmp_path / "machine", 1).gpu(0)


@pytest.fixture
def cuda(tmp_path, gpu) -> Iterator[CudaMachine]:
    with in_this_process(equip(tmp_path / "cuda", [gpu], libraries())) as machine:
        yield machine


def scrub(gpu: Gpu) -> None:
    """All that a scrub asks of the driver."""
    held = memory.take(cuda_card.opened(gpu.uuid, gpu.pci))
    clearing.clear(held, KEY, ("random", "zero"), lambda _done, _total: None)
    clearing.verify(held, lambda _done, _total: None)
    clearing.scratch(held.card, KEY)


@pytest.mark.parametrize("call", [*driver._CALLS, *OF_CUPY])
def test_no_scrub_passes_if_a_call_fails(cuda, gpu, call):
    """A limit of the context may be refused, with other statuses than this. Which status says what: test_proof.py."""
    cuda.fail(gpu.uuid, call, 719)
    with pytest.raises(CudaError):
        scrub(gpu)


@pytest.mark.usefixtures("cuda")
def test_a_context_has_one_channel_and_waits_without_spinning(gpu, monkeypatch):
    """Asked for before the context is made. CUDA's own choice is eight channels, and waits that burn a core."""
    asked, call = [], driver.CudaDriver.call

    def noted(self, name, *arguments) -> None:
        asked.append((name, os.environ["CUDA_DEVICE_MAX_CONNECTIONS"], *arguments[:2]))
        call(self, name, *arguments)

    monkeypatch.setattr(driver.CudaDriver, "call", noted)
    cuda_card.opened(gpu.uuid, gpu.pci)
    made = next(place for place, (name, *_) in enumerate(asked) if name == "cuDevicePrimaryCtxRetain")
    assert asked[made - 1] == ("cuDevicePrimaryCtxSetFlags_v2", "1", 0, 4)
    assert asked[0] == ("cuInit", "1", 0)


def test_memory_runs_out_without_an_error(cuda, gpu):
    """The one refusal that a scrub waits for; before it has taken any, somebody else has the memory."""
    scrub(gpu)
    cuda.fail(gpu.uuid, "cuMemAlloc_v2", 2)
    with in_this_process(cuda), pytest.raises(CardBusyError, match="end the process that uses its memory"):
        scrub(gpu)


def test_a_stalled_call_goes_on_when_the_driver_does(cuda, gpu, tmp_path):
    """It counts what another process takes meanwhile, so it has waited."""
    stall = tmp_path / "stall"
    stall.touch()
    gpu.set({"cuda.hang.cuMemGetInfo_v2": stall})
    card = cuda_card.opened(gpu.uuid, gpu.pci)
    card.ready()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(card._driver.make_context).result()
        free = pool.submit(card.memory)
        with cuda.claim(gpu.uuid, "4711") as holds:
            holds(PAGE)
            assert not free.done()
            stall.unlink()
            assert free.result() == Free(SIZE - cuda.taken(gpu.uuid) - PAGE, SIZE)


@pytest.mark.usefixtures("cuda")
def test_a_context_belongs_to_the_thread_that_made_it(gpu):
    card = cuda_card.opened(gpu.uuid, gpu.pci)
    card.ready()
    with ThreadPoolExecutor(1) as pool, pytest.raises(CudaError, match="CUDA_ERROR_INVALID_CONTEXT"):
        pool.submit(card.allocate, 16).result()


def test_a_gpu_without_users_is_set_up_by_each_open(cuda, gpu, tmp_path):
    """Without persistence mode, which costs seconds on a real one."""
    node = tmp_path / "nvidia0"
    node.touch()
    gpu.set(persistence_mode=0, open_ms=1, device_file=node)
    with node.open():
        scrub(gpu)
    assert gpu.machine.calls() == []
    for _ in range(2):  # in each process that opens it alone
        with in_this_process(cuda):
            scrub(gpu)
    assert [call for _, call, _ in gpu.machine.calls()] == ["set-up"] * 2


def test_the_clock_of_a_gpu_rises_while_kernels_run(stage, tmp_path):
    """As NVML tells it of the GPU on which CUDA works."""
    gpu, clock = stage.machine.gpu(0), []
    gpu.set(ramp=f"345 1980 1 {tmp_path / 'busy'}")
    with (
        fixtures.on_stage(stage),
        in_this_process(equip(tmp_path / "cuda", [gpu], libraries())),
        Library().session() as nvml,
    ):
        for work in (lambda: None, lambda: scrub(gpu)):
            work()
            clock.append(nvml.ask(pynvml.nvmlDeviceGetClockInfo, nvml.handle(gpu.uuid), pynvml.NVML_CLOCK_SM))
    assert clock == [345, 1980]


def test_an_exclusive_gpu_opens_for_one_process_only(cuda, gpu):
    gpu.set(compute_mode=3)
    with cuda.claim(gpu.uuid, "4711") as holds:
        holds(2**20)
        with pytest.raises(CardBusyError, match=r"CUDA_ERROR_DEVICE_UNAVAILABLE.*nvidia-smi -c DEFAULT"):
            scrub(gpu)
    scrub(gpu)


def test_a_scrub_never_reaches_the_runtime_of_cuda(cuda, gpu):
    """The stand-in ends a process that does; here is one."""
    environment = {**os.environ, **cuda.environment(), "CUDA_VISIBLE_DEVICES": gpu.uuid}
    run = subprocess.run([sys.executable, "-c", RUNTIME], env=environment, capture_output=True, text=True, check=False)
    assert "the runtime of CUDA was called" in run.stderr
    scrub(gpu)


OPENED = """
import sys
from types import SimpleNamespace
from scrubber.cuda import card, cupy_loading, cuda_card
{before}
try:
    cuda_card.opened(*sys.argv[1:])
except card.CardBusyError as error:
    print(error)
print("numpy" in sys.modules)
"""


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ("", "False\n"),
        ("cupy_loading._REST = SimpleNamespace()", "'types.SimpleNamespace' object has no attribute '_environment'; "),
    ],
    ids=["as it is", "wants more"],
)
def test_a_scrub_loads_no_more_of_cupy_than_its_bindings(cuda, gpu, before, says):
    """A CuPy whose bindings want more is no fault of the GPU."""
    environment = {**os.environ, **cuda.environment(), **gpu.machine.environment}
    command = [sys.executable, "-c", OPENED.format(before=before), gpu.uuid, gpu.pci]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert says in run.stdout
    assert run.stdout.endswith("False\n")


@pytest.mark.parametrize("home", ["/dev/null", "/", ""])
def test_cupy_loads_without_a_home_or_threads(home):
    count = "import os; print(len(os.listdir('/proc/self/task')))"
    program = f"from scrubber.cuda import cupy_loading; cupy_loading.warm(); {count}"
    output = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "HOME": home}, stdout=subprocess.PIPE, text=True, check=True
    )
    assert output.stdout == "1\n"
