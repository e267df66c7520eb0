"""How much each open file of an NVIDIA device node adds to the reference count of the kernel module, and who else adds.

The count is of the whole node. Nothing is changed: the nodes are opened for reading and closed, and a process with a
CUDA context is started and ended.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, cast

from scrubber.devices.nvidia.host import Host
from scrubber.node import proc

PROC = Path("/proc")
NODES = ("nvidia0", "nvidiactl")
NO_MODULE = "not measured: no module"
MOST = 3  # open files of one node
READY = "ready\n"
WAITS = "print('ready', flush=True); input()"
CONTEXT = f"""
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0, "CUDA finds no driver"
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0, "CUDA finds no GPU"
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0, "CUDA gives no context"
{WAITS}
"""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_FAILED = ctypes.c_void_p(-1).value

Row = dict[str, object]
Count = Callable[[], int]


def measure(host: Host) -> dict[str, object] | str:
    """The count with files that this process opens, and what else is in it; a sentence where there is no module."""
    file = host.sys_module / "refcnt"
    if not file.exists():
        return NO_MODULE

    def count() -> int:
        return int(file.read_text())

    rows = [row for name in NODES for row in of_node(host.dev / name, count)]
    return {"rows": [*rows, of_context(host, count)], "modules": modules(host), "programs": programs(host)}


def of_node(node: Path, count: Count) -> Iterator[Row]:
    """The count with one, two and three open files, a dup, a fork and a mapping."""
    try:
        if not stat.S_ISCHR(node.stat().st_mode):
            yield _row(node.name, "not measured: no device node")
            return
        yield from _opened(node, count)
    except OSError as error:
        yield _row(node.name, f"not measured: {error.strerror}")


def _opened(node: Path, count: Count) -> Iterator[Row]:
    before = count()
    yield _row(node.name, "nothing", 0, before, before)
    with ExitStack() as closing:
        files = []
        for number in range(1, MOST + 1):
            files.append(os.open(node, os.O_RDONLY | os.O_CLOEXEC))
            closing.callback(os.close, files[-1])
            yield _row(node.name, f"open {number} times", number, count(), before)
        closing.callback(os.close, os.dup(files[0]))
        yield _row(node.name, "a dup of one", MOST, count(), before)
        with _child(WAITS, files[0]):
            yield _row(node.name, "a fork that has one", MOST, count(), before)
    yield _row(node.name, "all closed", 0, count(), before)
    with _mapped(node) as refused:
        yield _row(node.name, refused or "a mapping, its descriptor closed", 0 if refused else 1, count(), before)
    yield _row(node.name, "the mapping gone", 0, count(), before)


def of_context(host: Host, count: Count) -> Row:
    """The count while a process has a CUDA context."""
    before = count()
    with _child(CONTEXT) as (pid, why):
        if why:
            return _row("all", f"no CUDA context: {why}", 0, count(), before)
        return _row("all", "a CUDA context", sum(_held(pid, _nodes(host)).values()), count(), before)


def modules(host: Host) -> list[Row]:
    """The modules that depend on the driver's, each with its own count."""
    names = sorted(path.name for path in (host.sys_module / "holders").glob("*"))
    return [{"module": name, "count": _text(host.sys_module.with_name(name) / "refcnt")} for name in names]


def programs(host: Host) -> list[Row]:
    """The programs that have a node open. A dup and a fork are descriptors too, though the count leaves them out."""
    nodes, found = _nodes(host), Counter[tuple[str, str]]()
    for pid in proc.pids(PROC):
        for name, times in _held(pid, nodes).items():
            found[_text(PROC / str(pid) / "comm"), name] += times
    return [{"program": program, "node": node, "descriptors": times} for (program, node), times in found.items()]


def _row(node: str, what: str, files: int | None = None, count: int | None = None, before: int | None = None) -> Row:
    more = None if count is None or before is None else count - before
    each = round(more / files, 2) if files and more is not None else None
    return {"node": node, "with": what, "open files": files, "count": count, "more": more, "per open file": each}


@contextmanager
def _child(code: str, *files: int) -> Iterator[tuple[int, str]]:
    """A process that waits: its pid, and why it has not come so far."""
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, pass_fds=files, text=True
    ) as child:  # fmt: skip
        said = cast("IO[str]", child.stdout)
        first = said.readline()
        why = "" if first == READY else (said.read() or first).strip().rpartition("\n")[2]
        try:
            yield child.pid, why
        finally:
            child.kill()


@contextmanager
def _mapped(node: Path) -> Iterator[str]:
    """A mapping of the node, or why there is none. Python's own mappings keep a descriptor."""
    file = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
    place = _libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    refused = "" if place != _FAILED else f"no mapping: {os.strerror(ctypes.get_errno())}"
    os.close(file)
    try:
        yield refused
    finally:
        if not refused:
            _libc.munmap(ctypes.c_void_p(place), mmap.PAGESIZE)


def _nodes(host: Host) -> dict[int, str]:
    """The driver's device nodes: names by device number."""
    found = {}
    for path in (*host.dev.glob("nvidia*"), *host.dev.glob("nvidia-caps/*")):
        with suppress(OSError):
            status = path.stat()
            if stat.S_ISCHR(status.st_mode):
                found[status.st_rdev] = path.name
    return found


def _held(pid: int, nodes: dict[int, str]) -> Counter[str]:
    """How many descriptors of each node a process has; none where it may not be read."""
    found = Counter[str]()
    with suppress(OSError):
        for name in os.listdir(PROC / str(pid) / "fd"):  # noqa: PTH208 - names, not paths
            with suppress(OSError):
                status = (PROC / str(pid) / "fd" / name).stat()
                if stat.S_ISCHR(status.st_mode) and status.st_rdev in nodes:
                    found[nodes[status.st_rdev]] += 1
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
