"""A forked child has nothing of its zygote; CuPy is loaded there and nowhere else; no child outlives its zygote."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path as File

import pytest

from ground.documents import strict_json
from scrubber.core.model import Outcome, ScrubPath, Step
from scrubber.cuda import cupy_loading
from scrubber.steps.orders import Order
from scrubber.workers import wire
from scrubber.workers.worker import BrokenError
from tests.patience import WITHIN
from tests.workers.zygotes import (
    ASLEEP,
    ECHO,
    LAST,
    MakePool,
    children,
    files_at_most,
    gone_within,
    links,
    living,
    on_first,
    open_files,
    zygote_of,
)


def threads(pid: int) -> int:
    return len(list(File(f"/proc/{pid}/task").iterdir()))


def signals(pid: int) -> dict[str, set[int]]:
    """What a process blocks, ignores and catches."""
    lines = (line.split(":\t") for line in File(f"/proc/{pid}/status").read_text().splitlines())
    masks = {name: int(value, 16) for name, value in lines if name in {"SigBlk", "SigIgn", "SigCgt"}}
    return {name: {number for number in range(1, 65) if mask >> (number - 1) & 1} for name, mask in masks.items()}


async def test_a_child_has_only_its_pipes_open(make: MakePool, tmp_path: File) -> None:
    secret = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(secret, True)
    pool = make(ECHO, prelude="os.set_inheritable(os.dup(0), True)")
    elder, child = await pool.spawn(), await pool.spawn()
    os.close(secret)
    elder.send(b"\n")
    child.send(b"\n")
    await elder.receive()
    await child.receive()
    assert open_files(child.pid) == open_files(elder.pid) == ["0", "1", "2"]
    assert len(links(elder.pid) | links(child.pid)) == 6
    assert all(link.startswith("pipe:") for link in links(elder.pid) | links(child.pid))


async def test_a_child_closes_files_above_the_limit(make: MakePool) -> None:
    """What is open is counted, not what might be: a limit that was lowered leaves files open above it."""
    high = "os.dup2(0, 900, inheritable=True)\nimport resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 1024))"
    child = await make(ECHO, prelude=high).spawn()
    child.send(b"\n")
    await child.receive()
    assert open_files(child.pid) == ["0", "1", "2"]


async def test_a_worker_handles_signals_like_a_new_python(make: MakePool) -> None:
    """Whatever the service, or the zygote, does with them."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    pool = make(ECHO, prelude="signal.signal(signal.SIGUSR1, lambda *_: None)")
    await pool.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    signal.signal(signal.SIGHUP, before)
    child = await pool.spawn()
    child.send(b"\n")
    await child.receive()
    ignored = {int(signal.SIGPIPE), int(signal.SIGXFSZ)}
    known = {int(it) for it in signal.valid_signals()}  # two are the C library's own
    found = {name: numbers & known for name, numbers in signals(child.pid).items()}
    assert found == {"SigBlk": set(), "SigIgn": ignored, "SigCgt": set()}
    assert os.getsid(child.pid) == child.pid


async def test_ctrl_c_does_not_reach_the_zygote(make: MakePool) -> None:
    pool = make(ASLEEP)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs these tests may ignore it
    await pool.start()
    signal.signal(signal.SIGINT, before)
    zygote = await zygote_of(pool)
    assert os.getsid(zygote) == zygote
    os.kill(zygote, signal.SIGINT)
    assert await zygote_of(pool) == zygote


@pytest.mark.parametrize(("most", "why"), [(5, "its pipes did not come through"), (6, "its process cannot be held")])
async def test_a_zygote_without_free_descriptors_says_so(make: MakePool, most: int, why: str) -> None:
    pool = make(ECHO)
    zygote = await zygote_of(pool)
    with files_at_most(zygote, most), pytest.raises(BrokenError, match=f"cannot start a worker: {why}"):
        await pool.spawn()
    assert children(zygote) == []
    assert await zygote_of(pool) == zygote
    assert open_files(zygote) == ["0", "1", "2"]


async def test_the_error_says_that_no_more_processes_can_start(make: MakePool) -> None:
    refuse = "def fork(): raise BlockingIOError(11, 'no room')\nos.fork = fork"
    pool = make(ECHO, prelude=refuse)
    with pytest.raises(BrokenError, match="cannot start a worker: no process can be made: no room"):
        await pool.spawn()


@pytest.mark.parametrize("ends", ["alone", "with it"])
def test_a_zygote_ends_its_children_when_the_service_ends(launch_zygote, ends: str) -> None:
    """Also one whose end the kernel would not see to."""
    freed = "assert ctypes.CDLL(None).prctl(1, 0) == 0\n" if ends == "alone" else ""
    zygote, line = launch_zygote(f"{freed}os.write(1, b'here')\n{ASLEEP}")
    said, answer = os.pipe()
    wire.send(line, wire.FORK, (said, answer, answer))
    os.close(answer)
    packet, (child,) = wire.receive(line, 1)
    assert strict_json.decode(wire.Packet, packet).forked
    assert not os.get_inheritable(child)
    assert os.read(said, 9) == b"here"
    line.close()
    assert gone_within(child, 10)
    assert zygote.wait(WITHIN) == 0
    os.close(child)
    os.close(said)


LATE = """
mine, ends = os.getpid(), zygote.end_with_parent
def late():
    if os.getpid() != mine:
        os.kill(mine, signal.SIGKILL)
        while os.getppid() == mine: time.sleep(0.001)
    ends()
zygote.end_with_parent = late
"""


def test_a_child_of_an_ended_zygote_does_not_run(launch_zygote) -> None:
    """The kernel would send it no signal any more, and no other process knows of it."""
    _, line = launch_zygote("os.write(1, b'here')", LATE)
    said, answer = os.pipe()
    with open(os.devnull, "r+b", buffering=0) as nothing:  # noqa: PTH123 -- as a file descriptor
        wire.send(line, wire.FORK, (nothing.fileno(), answer, nothing.fileno()))
    os.close(answer)
    assert os.read(said, 9) == b""  # its end
    os.close(said)


@pytest.fixture
def launch_zygote() -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], socket.socket]]]:
    """A zygote without a pool, that is ready, and the line to it."""
    launched: list[tuple[subprocess.Popen[bytes], socket.socket]] = []

    def launch(life: str, before: str = "") -> tuple[subprocess.Popen[bytes], socket.socket]:
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            launched.append((subprocess.Popen(living(life, before), stdin=theirs.fileno()), line))
        assert strict_json.decode(wire.Packet, wire.receive(line, 1)[0]) == wire.Packet(ready=wire.Ready())
        return launched[-1]

    yield launch
    for zygote, line in launched:
        zygote.kill()
        zygote.wait()
        line.close()


FAKE = """
import os, sys, threading
with open(os.environ["SEEN"], "a") as seen:
    print(os.getpid(), file=seen)
"""


@pytest.fixture
def cupy(tmp_path: File, monkeypatch) -> Callable[[str], File]:
    """Install a package of that name that writes down who loads its bindings of the driver."""

    def install(more: str = "") -> File:
        api = tmp_path / "cupy_backends/cuda/api"
        api.mkdir(parents=True, exist_ok=True)
        for package in (api, *api.parents[:2]):
            (package / "__init__.py").touch()
        (api / "driver.py").write_text(FAKE + more)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
        return tmp_path / "seen"

    return install


async def test_only_the_zygote_loads_cupy_and_only_once(bank, make: MakePool, cupy, monkeypatch) -> None:
    seen = cupy()
    for name in [name for name in sys.modules if name.startswith("cupy")]:  # another test may have loaded it here
        monkeypatch.delitem(sys.modules, name)
    pool = make(warm_cuda=True)
    workers = [await pool.start_worker(on_first(bank)) for _ in range(3)]
    [zygote] = children()
    assert seen.read_text() == f"{zygote}\n"
    assert not any(name.startswith("cupy") for name in sys.modules)
    assert threads(zygote) == 1
    for worker in workers:
        assert await worker.finish(LAST) is LAST
    assert seen.read_text() == f"{zygote}\n"


async def test_cupy_is_not_loaded_without_a_request(make: MakePool, cupy) -> None:
    seen = cupy()
    await zygote_of(make())
    assert not seen.exists()


BROKEN = 'raise ImportError("libstdc++.so:\\nno such file \\udcff" + "." * 5000)'


async def test_steps_without_cuda_run_without_cupy(bank, make: MakePool, cupy) -> None:
    cupy(BROKEN)
    pool = make(warm_cuda=True)
    worker = await pool.start_worker(on_first(bank))
    assert pool.cupy.cupy is None
    reason = "CuPy is installed but cannot be loaded: ImportError: libstdc++.so: no such file ?...."
    assert pool.cupy.lacks.startswith(reason)
    assert len(pool.cupy.lacks) < 400
    result = await worker.do(Step.CLEAR, ScrubPath.FAST, Order(key="ab" * 16), 10, lambda _done, _total: None)
    assert result.outcome is Outcome.PASSED
    assert await worker.finish(result) == result


async def test_the_pool_remembers_what_the_last_zygote_reported(make: MakePool, cupy) -> None:
    (cupy().parent / "cupy_cuda12x-98.7.dist-info").mkdir()
    pool = make(warm_cuda=True)
    assert pool.cupy == wire.Ready()
    zygote = await zygote_of(pool)
    assert pool.cupy == wire.Ready("98.7 (cuda12)")
    os.kill(zygote, signal.SIGKILL)
    cupy("raise ValueError('for another Python')")
    zygote = await zygote_of(pool)
    why = "CuPy is installed but cannot be loaded: ValueError: for another Python"
    assert pool.cupy == wire.Ready(lacks=why)
    assert await zygote_of(pool) == zygote


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("threading.Thread(target=threading.Event().wait, daemon=True).start()", "a library has started a thread"),
        ("raise SystemExit('not with this driver')", "not with this driver"),
    ],
    ids=["it starts a thread", "it exits"],
)
async def test_a_cupy_that_cannot_be_forked_ends_its_zygote(make: MakePool, cupy, more: str, why: str) -> None:
    cupy(more)
    with pytest.raises(BrokenError, match=why):
        await make(warm_cuda=True).spawn()


def test_a_node_without_cupy_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(cupy_loading, "_CUPY", "no_such_package")
    with pytest.raises(cupy_loading.UnusableError, match=r"CuPy is not installed: install autoclave\[cuda12\]"):
        cupy_loading.warm()


def test_an_empty_folder_named_cupy_is_not_cupy(monkeypatch, tmp_path: File) -> None:
    (tmp_path / "no_such_package").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cupy_loading, "_CUPY", "no_such_package")
    assert "not installed" in str(cupy_loading.missing())
    (tmp_path / "no_such_package" / "__init__.py").touch()
    importlib.invalidate_caches()
    assert cupy_loading.missing() is None


async def test_a_child_is_reaped_though_sigchld_was_ignored(make: MakePool) -> None:
    """An ignored signal stays ignored after an exec, and then the exit status of a child is lost."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    pool = make(ECHO)
    await pool.start()
    signal.signal(signal.SIGCHLD, before)
    child = await pool.spawn()
    child.send(b"\n")
    await child.receive()
    child.hang_up()
    ending = await child.end(10)
    assert ending is not None
    assert (ending.status, ending.orphaned) == (0, False)
