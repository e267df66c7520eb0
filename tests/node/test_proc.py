"""Threads of the kernel are told apart, by what the kernel says of them and by nothing else."""

from __future__ import annotations

import os
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


@pytest.mark.parametrize(
    ("pid_max", "loadavg", "are_free"),
    [
        ("4194304\n", "8.57 7.63 6.25 13/100000 19779\n", True),
        ("32768\n", "8.57 7.63 6.25 13/5461 19779\n", True),
        ("32768\n", "8.57 7.63 6.25 13/5462 19779\n", False),
        ("", "8.57 7.63 6.25 13/394 19779\n", False),
        ("4194304\n", "8.57 7.63\n", False),
        ("4194304\n", "", False),
    ],
)
def test_pids_are_free_only_if_many_of_them_are(tmp_path, pid_max, loadavg, are_free) -> None:
    assert not proc.pids_are_free(tmp_path)
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/pid_max").write_text(pid_max)
    (tmp_path / "loadavg").write_text(loadavg)
    assert proc.pids_are_free(tmp_path) is are_free


@pytest.mark.parametrize(
    ("line", "unit"),
    [
        ("0::/system.slice/mymon.service", "mymon.service"),
        ("1:name=systemd:/system.slice/system-mon.slice/mon@7.service/payload", "mon@7.service"),
        ("0::/../../system.slice/mymon.service", "mymon.service"),
        ("4:memory:/system.slice/mymon.service", ""),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/mine.service", ""),
        ("0::/user.slice/user-1000.slice/session-3.scope", ""),
        ("0::/system.slice/evil.scope/mymon.service", ""),
        ("0::/", ""),
    ],
)
def test_the_unit_of_a_process_is_a_system_service(tmp_path, line, unit) -> None:
    assert proc.unit(str(tmp_path), 7.0) == ""
    (tmp_path / "cgroup").write_text(f"{line}\n")
    ticks = 7 * os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(f"8 (my) mon) S 1 {' '.join(['0'] * 17)} {ticks} 0\n")
    assert (proc.unit(str(tmp_path), 7.0), proc.unit(str(tmp_path), 7.5)) == (unit, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="what runs no program is shown to root only")
@pytest.mark.skipif(named(KTHREADD) != "kthreadd", reason="threads of the kernel are not shown here")
def test_kernel_threads_are_searched_only_if_the_driver_lists_them(tmp_path, launch, monkeypatch) -> None:
    memory = tmp_path / "memory"
    memory.touch()
    process = launch(WRITE, memory)
    observer, files = Processes(Path("/proc"), lambda _pid: None, whole_node=False), {"gpu": [str(memory)]}
    looked, separate = [], open_files.separate_tables

    def output(task: str, timer: open_files.Timer) -> list[str]:
        looked.append(task)
        return separate(task, timer)

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
