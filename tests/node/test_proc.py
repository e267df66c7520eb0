"""Threads of the kernel are told apart, by what the kernel says of them and by nothing else."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from scrubber.node import open_files, proc
from scrubber.node.processes import Processes
from tests.node.open_programs import WRITE

KTHREADD = 2


def named(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


@pytest.mark.skipif(os.geteuid() != 0, reason="what runs no program is shown to root only")
@pytest.mark.skipif(named(KTHREADD) != "kthreadd", reason="threads of the kernel are not shown here")
def test_kernel_threads_are_searched_only_if_the_driver_lists_them(tmp_path, launch, monkeypatch) -> None:
    memory = tmp_path / "memory"
    memory.touch()
    process = launch(WRITE, memory)
    observer, files = Processes(Path("/proc"), lambda _pid: None, whole_node=False), {"gpu": [str(memory)]}
    looked, separate = [], open_files.separate_tables

    def output(task: str) -> list[str]:
        looked.append(task)
        return separate(task)

    monkeypatch.setattr(open_files, "separate_tables", output)
    assert [holder.pid for holder in observer.holders(files)["gpu"] or ()] == [process.pid]
    assert f"/proc/{process.pid}" in looked
    assert f"/proc/{KTHREADD}" not in looked
    found = observer.holders(files, listed={"gpu": {KTHREADD}})["gpu"]
    assert [holder.pid for holder in found or ()] == [KTHREADD, process.pid]


def test_only_processes_without_a_program_are_kernel_threads(launch) -> None:
    process = launch("import os; print(1, flush=True); os._exit(0)")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended: its program is gone, its number is not
    for pid in (os.getpid(), process.pid, 2**22 + 1):
        assert not proc.of_kernel(f"/proc/{pid}")


def test_processor_time_counts_threads_that_have_ended() -> None:
    before = proc.processor_time(os.getpid())
    spent: list[int] = []

    def run() -> None:
        while not sum(spent):
            spent.append(time.thread_time_ns())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    after = proc.processor_time(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before >= spent[-1]


def test_an_ended_process_has_no_processor_time(launch) -> None:
    process = launch("print(1, flush=True)")
    process.wait()
    assert proc.processor_time(process.pid) is None


@pytest.mark.parametrize(
    ("pids", "loadavg", "known"),
    [("7", "of the kernel", b"7"), ("4711\t7", "of the kernel", None), ("7", "of another file system", None)],
)
def test_the_latest_pid_is_that_of_the_processes_shown(node_proc, pids: str, loadavg: str, known: bytes | None) -> None:
    """Not in a /proc of an outer pid namespace, nor from LXCFS, which asks the kernel every few seconds only."""
    (node_proc.path / "self/status").write_text(f"Name:\tprogram\nNSpid:\t{pids}\n")
    if loadavg != "of the kernel":
        (node_proc.path / "loadavg").unlink()
        (node_proc.path / "loadavg").symlink_to("/proc/loadavg")
    assert proc.latest_pid(node_proc.path) == known


def test_this_process_sees_its_latest_start(launch) -> None:
    before = proc.latest_pid(Path("/proc"))
    launch("import time; print(flush=True); time.sleep(60)")
    assert None not in (before, after := proc.latest_pid(Path("/proc")))
    assert after != before
