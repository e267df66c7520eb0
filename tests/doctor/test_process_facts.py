"""Real processes and what the kernel tells of them."""

import os
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoclave.doctor.facts import process_facts
from autoclave.doctor.node_facts import Capability, CheckFault, Process
from tests.doctor.nodes import at
from tests.node.conftest import NodeProc
from tests.patience import WITHIN

_PRIVILEGES = int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16)
GIVES_UP = bool(_PRIVILEGES >> 8 & _PRIVILEGES >> 5 & 1) and shutil.which("setpriv") is not None  # CAP_SETPCAP, KILL
UNSHARES = bool(_PRIVILEGES >> 21 & 1) and shutil.which("unshare") is not None  # CAP_SYS_ADMIN
PROC = Path("/proc")
HERE = Path("/proc/self/ns/pid").stat().st_ino
SERVE = """
import socket, sys
door = socket.socket(socket.AF_UNIX)
door.bind(sys.argv[1])
door.listen()
files = [open(name) for name in sys.argv[2:]]
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def running(*command):
    """A process that says when it is ready, and ends with its input."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if sys.executable in command:
                process.stdout.readline()
            yield process
        finally:
            process.stdin.close()
            process.wait(WITHIN)


def view(tmp_path, *pids):
    """A /proc of these processes only: the rest of this machine is none of a test's business."""
    proc = tmp_path / "proc"
    proc.mkdir(exist_ok=True)
    for pid in pids:
        (proc / str(pid)).symlink_to(f"/proc/{pid}")
    return proc


@pytest.mark.parametrize("name", sorted(process_facts.MPS))
def test_mps_is_known_by_its_program_even_when_removed(tmp_path, name):
    program = tmp_path / name
    shutil.copy("/bin/cat", program)
    with running(str(program)) as process:
        proc = view(tmp_path, process.pid, os.getpid())
        assert process_facts.mps(at(tmp_path, proc)) == (f"process {process.pid}",)
        program.unlink()
        assert process_facts.mps(at(tmp_path, proc)) == (f"process {process.pid}",)
    assert process_facts.mps(at(tmp_path, proc)) == ()


def test_a_process_that_only_has_the_name_is_not_mps(tmp_path):
    program = tmp_path / "nvidia-cuda-mps-server-exporter"
    shutil.copy("/bin/cat", program)
    with running(str(program)) as process:
        assert process_facts.mps(at(tmp_path, view(tmp_path, process.pid))) == ()


def test_a_process_with_a_hidden_program_is_unknown(tmp_path):
    proc = view(tmp_path)
    (proc / "7").mkdir()
    (proc / "7" / "exe").touch()  # no link: whatever cannot be read as one
    found = process_facts.mps(at(tmp_path, proc))
    assert isinstance(found, CheckFault)
    assert found.text == "process 7 cannot be read: invalid argument"
    (proc / "8").mkdir()
    (proc / "8" / "exe").symlink_to("/usr/bin/nvidia-cuda-mps-control")
    assert process_facts.mps(at(tmp_path, proc)) == ("process 8",)


def test_the_first_process_that_cannot_be_read_is_named(tmp_path):
    proc = view(tmp_path, os.getpid())
    assert process_facts.unreadable(at(tmp_path, proc)) is None
    NodeProc(proc).add_unreadable(7)
    found = process_facts.unreadable(at(tmp_path, proc))
    assert found is not None
    assert found.text == '"program" (pid 7, no container) cannot be read: permission denied'
    assert found.to_root is (os.geteuid() == 0)


def test_without_proc_no_fact_is_proven(tmp_path):
    assert isinstance(process_facts.mps(at(tmp_path, tmp_path / "none")), CheckFault)
    assert isinstance(process_facts.sees_all(at(PROC, tmp_path / "none")), CheckFault)


def test_the_pid_namespace_of_the_node_is_recognised(monkeypatch):
    monkeypatch.setattr(process_facts, "INITIAL_PID_NAMESPACE", HERE)
    assert process_facts.sees_all(at(PROC, PROC)) is True
    monkeypatch.setattr(process_facts, "INITIAL_PID_NAMESPACE", HERE + 1)
    assert process_facts.sees_all(at(PROC, PROC)) is False


def test_the_server_of_a_socket_is_found_with_its_rights(short_tmp, monkeypatch):
    monkeypatch.setattr(process_facts, "INITIAL_PID_NAMESPACE", HERE)
    with running(sys.executable, "-c", SERVE, str(short_tmp / "a.sock")) as process:
        found = process_facts.server(short_tmp / "a.sock", PROC)
        status = Path(f"/proc/{process.pid}/status").read_text()
    assert isinstance(found, Process)
    assert found.sees_all
    assert f"CapEff:\t{found.capabilities:016x}\n" in status
    assert isinstance(process_facts.server(short_tmp / "a.sock", PROC), CheckFault)  # it has ended


@pytest.mark.skipif(not GIVES_UP, reason="takes root, to give up a privilege")
def test_a_dropped_privilege_is_reported_as_missing(short_tmp):
    give_up = ("setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace", sys.executable)
    with running(*give_up, "-c", SERVE, str(short_tmp / "a.sock")):
        found = process_facts.server(short_tmp / "a.sock", PROC)
    assert isinstance(found, Process)
    assert (found.may(Capability.SYS_PTRACE), found.may(Capability.KILL)) == (False, True)


@pytest.mark.skipif(not UNSHARES, reason="takes root, to make a namespace")
def test_a_server_in_another_pid_namespace_misses_processes(short_tmp, monkeypatch):
    monkeypatch.setattr(process_facts, "INITIAL_PID_NAMESPACE", HERE)
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", SERVE, str(short_tmp / "a.sock")]
    with running(*command):
        found = process_facts.server(short_tmp / "a.sock", PROC)
    assert isinstance(found, Process)
    assert found.sees_all is False


@pytest.mark.skipif(not UNSHARES, reason="takes root, to make a namespace")
def test_a_server_outside_the_own_pid_namespace_is_hidden(short_tmp):
    look = (
        "import sys, pathlib as p; from autoclave.doctor.facts.process_facts import server; "
        "print(server(*map(p.Path, sys.argv[1:])))"
    )
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(short_tmp / "a.sock"))
        listening.listen()
        command = ["unshare", "--pid", "--fork", sys.executable, "-c", look, str(short_tmp / "a.sock"), "/proc"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "its process is not visible in this PID namespace" in output


def test_a_socket_without_a_server_is_a_fault(short_tmp):
    found = process_facts.server(short_tmp / "none.sock", PROC)
    assert isinstance(found, CheckFault)
    assert found.absent
    assert isinstance(process_facts.server(short_tmp / ("x" * 200), PROC), CheckFault)


def test_a_process_without_any_facts_is_a_fault(short_tmp):
    proc = short_tmp / "proc" / str(os.getpid())
    (proc / "ns").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(short_tmp / "a.sock"))
        listening.listen()

        def found() -> object:
            return process_facts.server(short_tmp / "a.sock", short_tmp / "proc")

        assert isinstance(found(), CheckFault)
        (proc / "ns/pid").touch()
        assert isinstance(found(), CheckFault)
        (proc / "status").write_text("Name:\tx\n")
        assert isinstance(found(), CheckFault)
        (proc / "status").write_text("Name:\tx\nCapEff:\t0000000000000020\n")
        assert found() == Process(False, 1 << Capability.KILL.value)


@pytest.mark.parametrize("place", ["here.sock", "proc/7/root/run/nvidia-persistenced/socket"])
def test_a_daemon_that_the_service_can_ask_prevents_no_reset(short_tmp, place):
    device, address = short_tmp / "dev/nvidia0", "0000:3b:00.0"
    information = short_tmp / f"proc/driver/nvidia/gpus/{address}/information"
    for file, words in ((device, ""), (information, "Device Minor: \t 0\n"), (short_tmp / place, "")):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(words)
    (short_tmp / place).unlink()
    with running(sys.executable, "-c", SERVE, str(short_tmp / place), str(device)) as process:
        proc = view(short_tmp, process.pid)
        found = process_facts.openers(at(short_tmp, proc, service_pids=(7,)), {"GPU-1": address})
    assert [holder.pid for holder in found["GPU-1"]] == ([process.pid] if place == "here.sock" else [])
