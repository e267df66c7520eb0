"""What the service or its node lacks is no fault of a device, wherever the error was met."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import pynvml
import pytest

from ground import private_files
from scrubber import devices
from scrubber.core.model import Blame, Outcome, Step
from scrubber.devices import shortage
from scrubber.devices.base import DeviceError, ShortageError
from scrubber.devices.blocking_calls import Caller, in_turn
from scrubber.devices.nvidia import locks, reset, settings, slices
from scrubber.devices.nvidia.health.watch import BestSeenFile
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library
from scrubber.devices.nvidia.pending_restore import PendingRestore, PendingRestoreFiles
from scrubber.devices.simulated import containers, layout, open_check, simulated_gpu
from scrubber.devices.simulated.layout import Faults
from scrubber.steps import step_functions
from scrubber.steps.orders import Order, StepContext
from tests.devices.conftest import Bank

LONG = 60.0  # seconds, more than a test waits for anything
SHORT = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT]
DENIED = errno.EACCES  # an error that is no shortage
Call = Callable[[], object]


class Ground:
    """The files of a simulated and of an NVIDIA GPU."""

    def __init__(self, root: Path, bank: Bank) -> None:
        self.gpu = bank.place(bank.first)
        self.root = bank.root
        self.host = Host(root, root / "proc")
        self.folder = root / "state"
        self.folder.mkdir()
        self.notes = PendingRestoreFiles(self.folder, "GPU-1")
        self.lock = self.folder / "GPU-1.lock"
        self.lock.touch()
        self.file = self.folder / "first_seen"
        self.file.touch()

    def opened_memory(self) -> None:
        with simulated_gpu.opened_memory(self.gpu, ()):
            pass

    def claimed_lock(self) -> None:
        with locks.claimed(self.lock):
            pass

    def read_notes(self) -> None:
        self.notes.file().write_bytes(b"")
        self.notes.read()

    def wrote_notes(self) -> None:
        self.notes.write(self.notes.file(), PendingRestore(persistence=True, layout=()))


# The function that makes an error of a device of an OSError: what fails in it, and a call of it.
PLACES: dict[str, tuple[tuple[object, str], Callable[[Ground], object]]] = {
    "simulated.layout.read": ((os, "open"), lambda it: layout.read(it.gpu.faults, Faults)),
    "simulated.layout.xids": ((os, "open"), lambda it: layout.xids(it.gpu)),
    "simulated.layout.places": ((os, "scandir"), lambda it: layout.places(it.root)),
    "simulated.open_check._is_open": (
        (private_files, "locked"), lambda it: open_check.is_open([str(it.gpu.memory)])),
    "simulated.simulated_gpu.opened_memory": ((os, "open"), Ground.opened_memory),
    "simulated.simulated_gpu.scrub_chip": ((os, "open"), lambda it: simulated_gpu.scrub_chip(it.gpu, b"key")),
    "simulated.containers._environment": ((Path, "read_bytes"), lambda _it: list(containers.members())),
    "nvidia.host._says_of_itself": ((Path, "read_text"), lambda it: it.host.driver_version()),
    "nvidia.host.driver_instance": ((Path, "stat"), lambda it: it.host.driver_instance()),
    "nvidia.slices._capability": ((Path, "read_text"), lambda it: slices._capability(it.file)),
    "nvidia.locks._claimed": ((os, "open"), Ground.claimed_lock),
    "nvidia.locks.held": ((os, "open"), lambda it: locks.held(it.lock)),
    "nvidia.locks._locked": ((fcntl, "flock"), lambda it: locks.held(it.lock)),
    "nvidia.pending_restore.read": ((os, "open"), Ground.read_notes),
    "nvidia.pending_restore.write": ((os, "fsync"), Ground.wrote_notes),
    "nvidia.pending_restore.drop": ((Path, "unlink"), lambda it: it.notes.drop([it.notes.file()])),
    "nvidia.reset.run_tool": ((subprocess, "Popen"), lambda _it: reset.run_tool("GPU-1", LONG)),
    "nvidia.settings.first_seen": (
        (os, "open"), lambda it: settings.first_seen(it.file, cast("Any", None), "GPU-1")),
    "nvidia.settings._keep": ((os, "fsync"), lambda it: settings._keep(it.folder / "new", b"")),
}  # fmt: skip
# These find another answer for other errors.
ANSWERING: dict[str, tuple[tuple[object, str], Callable[[Ground], object]]] = {
    "nvidia.health.watch._kept": (
        (os, "open"), lambda it: BestSeenFile(it.folder, lambda: "boot").of("GPU-1")),
}  # fmt: skip


@pytest.fixture
def ground(tmp_path: Path, bank: Bank) -> Ground:
    return Ground(tmp_path, bank)


@contextmanager
def failing(what: tuple[object, str], error: BaseException) -> Iterator[None]:
    """The next call of a function fails; later ones work, so that only this error can tell the cause."""
    owner, name = what
    function = getattr(owner, name)

    def fails_once(*_arguments: object, **_options: object) -> object:
        setattr(owner, name, function)
        raise error

    setattr(owner, name, fails_once)
    try:
        yield
        assert getattr(owner, name) is function, f"{name} was not called"
    finally:
        setattr(owner, name, function)


@contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def makers() -> set[str]:
    """Every function of the devices that makes an error of a device of an OSError."""
    [package] = devices.__path__
    found = set()
    for file in Path(package).rglob("*.py"):
        room = ".".join(file.relative_to(package).with_suffix("").parts)
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef) and any(map(_makes, ast.walk(function))):
                found.add(f"{room}.{function.name}")
    return found


def _makes(node: ast.AST) -> bool:
    if not isinstance(node, ast.ExceptHandler) or node.type is None or "OSError" not in ast.unparse(node.type):
        return False
    return any(isinstance(each, ast.Raise) for each in ast.walk(node))


def test_the_table_names_every_source_of_device_errors() -> None:
    assert makers() == PLACES.keys()


@pytest.mark.parametrize("number", SHORT, ids=errno.errorcode.get)
@pytest.mark.parametrize("place", [*PLACES, *ANSWERING])
async def test_a_shortage_is_never_a_fault_of_a_device(ground: Ground, place: str, number: int) -> None:
    if place == "nvidia.locks._locked" and number == errno.EAGAIN:
        return  # another process holds the lock
    what, call = (PLACES | ANSWERING)[place]
    with failing(what, OSError(number, os.strerror(number))), pytest.raises(ShortageError) as caught:
        await Caller().ask("gpu", lambda: call(ground), LONG)
    assert str(caught.value) == shortage._LACKS[number]


@pytest.mark.parametrize("place", [it for it in PLACES if it != "simulated.containers._environment"])
async def test_another_error_stays_an_error_of_the_device(ground: Ground, place: str) -> None:
    what, call = PLACES[place]
    with failing(what, OSError(DENIED, os.strerror(DENIED))), pytest.raises(DeviceError) as caught:
        await Caller().ask("gpu", lambda: call(ground), LONG)
    assert not isinstance(caught.value, ShortageError)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, ""), "LimitNOFILE"),
        (OSError(errno.ENFILE, ""), "fs.file-max"),
        (OSError(errno.ENOMEM, ""), "memory"),
        (MemoryError(), "memory"),
        (BlockingIOError(errno.EAGAIN, ""), "TasksMax"),
        (RuntimeError("can't start new thread"), "TasksMax"),
        (OSError(errno.ENOSPC, ""), "disk of the node is full"),
        (OSError(errno.EDQUOT, ""), "quota"),
    ],
)
def test_each_shortage_says_what_to_do(error: BaseException, words: str) -> None:
    assert words in (shortage.of(error) or "")


def test_an_unreadable_file_is_no_fault_of_the_device(ground: Ground) -> None:
    ground.lock.unlink()
    ground.lock.symlink_to(ground.file)
    with pytest.raises(DeviceError) as caught:
        locks.held(ground.lock)
    assert shortage.of(caught.value) == (
        f"a file of the scrub service is not its own: {ground.lock}: it is a link; "
        + private_files.ForeignFileError.remedy
    )


def test_a_shortage_is_found_behind_other_errors() -> None:
    fault = DeviceError("several")
    fault.__cause__ = ExceptionGroup("both", [DeviceError("one"), DeviceError("the other")])
    fault.__cause__.exceptions[1].__context__ = OSError(errno.ENFILE, "")
    assert "fs.file-max" in (shortage.of(fault) or "")
    assert shortage.of(DeviceError("it is broken")) is None


async def test_a_thread_that_cannot_start_is_a_shortage() -> None:
    caller = Caller()
    full = (threading.Thread, "start"), RuntimeError("can't start new thread")
    with failing(*full), pytest.raises(ShortageError, match="TasksMax"):
        await caller.ask("gpu", lambda: 42, LONG)
    with failing(*full):
        assert await in_turn(caller, "all", {"gpu": lambda: 42}, LONG) == {}
    assert await caller.ask("gpu", lambda: 42, LONG) == 42


@pytest.mark.parametrize("error", [OSError(number, "") for number in SHORT] + [MemoryError()], ids=repr)
@pytest.mark.parametrize("step", Step)
def test_no_step_blames_the_device_for_a_shortage(bank: Bank, step: Step, error: BaseException) -> None:
    def holders() -> tuple[()]:
        raise error

    context = StepContext(bank.gpu(bank.first), holders, lambda _done, _total: None)
    with nullcontext() if step is Step.EVICT else failing((os, "open"), error):
        report = step_functions.perform(step, Order(key="00ff" * 8), context)
    assert (report.outcome, report.blame) == (Outcome.FAILED, Blame.SERVICE)
    assert (shortage.of(error) or "?") in report.detail


def test_nvml_without_free_files_loses_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlInit", lost)
    with no_more_files(), pytest.raises(ShortageError, match="LimitNOFILE"), Library().session():
        pass
