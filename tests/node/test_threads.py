"""Only threads with files of their own are looked at one by one."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from scrubber.node import threads


def test_threads_that_share_their_files_are_one_look() -> None:
    stop = threading.Event()
    others = [threading.Thread(target=stop.wait) for _ in range(3)]
    for other in others:
        other.start()
    try:
        assert len(list(Path("/proc/self/task").iterdir())) > 3
        assert threads.apart(f"/proc/{os.getpid()}") == [f"/proc/{os.getpid()}"]
    finally:
        stop.set()
        for other in others:
            other.join()


def test_where_the_kernel_will_not_compare_every_thread_is_looked_at(tmp_path: Path) -> None:
    process = tmp_path / str(2**22 + 1)  # no such process: the kernel cannot say
    (process / "task" / process.name).mkdir(parents=True)
    (process / "task" / str(2**22 + 2)).mkdir()
    assert threads.apart(str(process)) == [str(process), f"{process}/task/{2**22 + 2}"]


def test_a_process_that_is_gone_has_no_threads(tmp_path: Path) -> None:
    assert threads.apart(str(tmp_path / "4711")) == []
