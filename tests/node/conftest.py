"""Processes that end with the test, as in the tests of the devices, and a /proc of a test's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from scrubber.node import proc
from tests.devices.conftest import launch
from tests.node.control_groups import enter, group

__all__ = ["enter", "group", "launch"]

DEAD_LEADER = """
import ctypes, os, sys, threading, time
os.open(sys.argv[1], os.O_RDWR)
libc = ctypes.CDLL(None)
leader = os.getpid()
def run():
    while " Z " not in open(f"/proc/{leader}/task/{leader}/stat").read():
        time.sleep(0.001)
    os.write(1, b"ready\\n")
    time.sleep(60)
threading.Thread(target=run).start()
libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # exit(), of this thread only
"""


@dataclass(frozen=True)
class NodeProc:
    """A /proc of the node: what stands in it is what there is."""

    path: Path

    def add(self, pid: int, cgroup: str, state: str = "S", *, ending: bool = False) -> Path:
        """A process with one thread, which holds nothing."""
        directory = self.path / str(pid)
        _stand(directory, pid, cgroup, state, ending=ending)
        _stand(directory / f"task/{pid}", pid, cgroup, state, ending=ending)
        (directory / "comm").write_text("program\n")
        (directory / "maps").touch()
        for name in ("fd", "map_files", "ns"):
            (directory / name).mkdir()
        return directory

    def add_unreadable(self, pid: int) -> None:
        """A process that root cannot read either, as under SELinux or AppArmor: its mappings refuse to be read."""
        maps = self.add(pid, "0::/\n") / "maps"
        maps.unlink()
        maps.symlink_to("/proc/sys/vm/compact_memory")  # nobody may read it, whatever the capabilities

    def add_thread(self, pid: int, tid: int, cgroup: str, state: str = "S", *, ending: bool = False) -> None:
        """One more thread."""
        _stand(self.path / f"{pid}/task/{tid}", tid, cgroup, state, ending=ending)


def _stand(directory: Path, number: int, cgroup: str, state: str, *, ending: bool) -> None:
    directory.mkdir(parents=True)
    (directory / "cgroup").write_text(cgroup)
    flags = 0x40404 if ending else 0x400000
    (directory / "stat").write_text(f"{number} (pro) Z 1 (gram) {state} 1 1 1 0 -1 {flags} {'0 ' * 12}4711 0 0\n")


@pytest.fixture
def node_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeProc:
    """Empty, and of the initial pid namespace, which is our own."""
    namespace = tmp_path / "proc/self/ns/pid"
    namespace.parent.mkdir(parents=True)
    namespace.touch()
    (tmp_path / "proc/self/status").write_text("Name:\tprogram\nNSpid:\t7\n")
    monkeypatch.setattr(proc, "INITIAL_PID_NAMESPACE", namespace.stat().st_ino)
    return NodeProc(tmp_path / "proc")
