"""A real NVIDIA GPU, left as it is: ``pytest -m gpu tests/gpu``. ``test_scrub.py`` overwrites its memory with zeros.

Where the host's files are seen elsewhere than under /, say so in GPU_HOST_ROOT; GPU_UUID names another GPU than the
first one, GPU_BESIDE daemons that may have it open. What was seen is told at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from benchmarks.nvml import backend
from benchmarks.nvml_questions import cut, reads_only
from scrubber.core.model import DeviceInfo
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Handle, Library, Session
from scrubber.node import proc
from tests.fakes.nvml.fixtures import nvml_build, stage

__all__ = ["nvml_build", "stage"]  # fixtures, of the rehearsal

PROC = Path("/proc")
GPU = os.environ.get("GPU_UUID", "0")
SEEN = pytest.StashKey[list[str]]()
Tell = Callable[[str], None]


@pytest.fixture(autouse=True)
def nothing_is_written() -> Iterator[None]:
    """No test here can call a function of NVML that changes anything."""
    with reads_only():
        yield


@pytest.fixture(scope="session")
def library() -> Iterator[Library]:
    """NVML, where there is a GPU behind it."""
    opened = Library()
    try:
        with opened.session() as nvml:
            count = nvml.ask(pynvml.nvmlDeviceGetCount)
    except DeviceError as error:
        pytest.skip(f"there is no GPU to look at: {error}")
    if not count:
        pytest.skip("there is no GPU to look at: the driver lists none")
    yield opened
    opened.close()


@pytest.fixture
def nvml(library: Library) -> Iterator[Session]:
    """Open for questions."""
    with library.session() as session:
        yield session


@pytest.fixture(scope="session")
def host() -> Host:
    """This node; in a container its namespace has to do."""
    return Host(Path(os.environ.get("GPU_HOST_ROOT", "/")), pid_namespace=proc.own_namespace(PROC))


@pytest.fixture
def nvidia(host: Host, library: Library) -> Nvidia:
    """The service's, which have seen nothing yet."""
    return backend(host, library)


@pytest.fixture
def device(nvidia: Nvidia) -> DeviceInfo:
    """That GPU, or its first slice."""
    return next(info for info in nvidia.inventory() if GPU in (str(info.index), info.uuid, info.parent))


@pytest.fixture
def gpu(nvml: Session, device: DeviceInfo) -> Handle:
    """That GPU, for questions."""
    return nvml.handle(device.parent or device.uuid)


@pytest.fixture
def idle(nvidia: Nvidia, device: DeviceInfo) -> DeviceInfo:
    """It, while no process is listed on it."""
    if listed := nvidia.listed_holders(device.uuid):
        pytest.skip(f"somebody is at work on it: {len(listed)} processes are listed")
    return device


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """What was seen is said at the end, whether the test passed or not."""
    return request.config.stash.setdefault(SEEN, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if seen := config.stash.get(SEEN, []):
        terminalreporter.section("seen on this GPU")
        terminalreporter.write_line(cut("\n".join(seen)))
