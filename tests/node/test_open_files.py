"""What a process holds is looked for where it may be looked for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from scrubber.node import open_files
from scrubber.node.open_files import Search, Timer
from tests.node.conftest import DEAD_LEADER, NodeProc
from tests.patience import WITHIN

# Imported as root, because the checkout may not be readable to anybody else.
LEFT_BY_ITS_LEADER = """
import ctypes, os, signal, sys, tempfile, threading, time
from pathlib import Path
from scrubber.node.processes import Processes
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
with tempfile.TemporaryDirectory() as directory:
    file = Path(directory, "memory")
    file.touch()
    hears, says = os.pipe()
    user = os.fork()
    if user == 0:
        ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: as after any exec, and not as after setuid
        os.dup2(says, 1)
        code, sys.argv = sys.argv[1], ["", str(file)]
        exec(code)
    os.close(says)
    assert os.read(hears, 1)
    found = Processes(Path("/proc"), lambda pid: None, whole_node=False).holders({"gpu": [str(file)]})["gpu"]
    os.kill(user, signal.SIGKILL)
    os.waitpid(user, 0)
    print([holder.pid == user for holder in found])
"""


def test_unreadable_mappings_are_not_taken_for_none(
    tmp_path: Path, node_proc: NodeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, open_ = node_proc.add(4711, "0::/"), os.open

    def opening(path: str, *rest: int) -> int:
        if path == f"{process}/maps":
            raise PermissionError(path)
        return open_(path, *rest)

    monkeypatch.setattr(os, "open", opening)
    with pytest.raises(PermissionError):
        Search({"gpu": [str(tmp_path)]}).held_by(str(process), Timer())


def test_threads_with_shared_files_are_read_once() -> None:
    stop = threading.Event()
    others = [threading.Thread(target=stop.wait) for _ in range(3)]
    for other in others:
        other.start()
    try:
        assert len(list(Path("/proc/self/task").iterdir())) > 3
        assert open_files.separate_tables(f"/proc/{os.getpid()}", Timer()) == [f"/proc/{os.getpid()}"]
    finally:
        stop.set()
        for other in others:
            other.join()


def test_without_kcmp_every_thread_is_read(tmp_path: Path) -> None:
    process = tmp_path / str(2**22 + 1)  # no such process: the kernel cannot say
    (process / "task" / process.name).mkdir(parents=True)
    (process / "task" / str(2**22 + 2)).mkdir()
    assert open_files.separate_tables(str(process), Timer()) == [str(process), f"{process}/task/{2**22 + 2}"]


def test_a_process_that_is_gone_has_no_threads(tmp_path: Path) -> None:
    assert open_files.separate_tables(str(tmp_path / "4711"), Timer()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming somebody else takes root")
def test_threads_of_an_unreadable_dead_leader_are_read() -> None:
    """The kernel shows what has ended to root only, and the thread that lives on to its owner as well."""
    command = [sys.executable, "-c", LEFT_BY_ITS_LEADER, DEAD_LEADER]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=WITHIN).stdout == "[True]\n"


def test_a_listing_that_ended_with_a_thread_is_repeated(tmp_path: Path, monkeypatch) -> None:
    """The kernel ends a listing where the thread that it has come to ends. Those after it would stay unread."""
    process = tmp_path / "4711"
    for task in ("4711", str(2**22 + 2)):
        (process / "task" / task).mkdir(parents=True)
    cut, listdir = [["4711"]], os.listdir
    monkeypatch.setattr(os, "listdir", lambda place: cut.pop() if cut else listdir(place))
    assert open_files.separate_tables(str(process), Timer()) == [str(process), f"{process}/task/{2**22 + 2}"]
