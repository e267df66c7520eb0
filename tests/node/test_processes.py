"""Whoever uses a file is found, however they use it; what cannot be proven is None."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scrubber.core.model import Holder
from scrubber.node import clock, processes
from scrubber.node.processes import Processes

PROC = Path("/proc")
SLEEP = "; print(1, flush=True); time.sleep(60)"
OPEN = "import os, sys, time; os.open(sys.argv[1], os.O_RDWR)" + SLEEP
MAP = """
import ctypes, os, sys, time
handle = os.open(sys.argv[1], os.O_RDWR)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
assert libc.mmap(None, 4096, 3, 1, handle, 0) != ctypes.c_void_p(-1).value
os.close(handle)
print(1, flush=True)
time.sleep(60)
"""
UNSHARED_THREAD = """
import ctypes, os, sys, threading, time
ready = threading.Event()
def run():
    assert ctypes.CDLL(None).unshare(0x400) == 0  # CLONE_FILES
    os.open(sys.argv[1], os.O_RDWR)
    ready.set()
    time.sleep(60)
threading.Thread(target=run).start()
ready.wait()
print(1, flush=True)
"""
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "memory"
    path.write_bytes(bytes(8192))
    return path


def nobody(_pid: int) -> None:
    """No process belongs to a container."""


def look(file: Path, exclude: tuple[int, ...] = ()) -> tuple[Holder, ...]:
    found = Processes(PROC, nobody, full_sight=False).holders({"gpu": [str(file)]}, exclude)["gpu"]
    assert found is not None
    return found


def pids(file: Path) -> list[int]:
    return [holder.pid for holder in look(file)]


def test_nobody_uses_a_file_that_nobody_has_open(file: Path) -> None:
    assert look(file) == ()


def test_a_process_with_the_file_open_is_described(file: Path, launch) -> None:
    before = clock.now().uptime
    process = launch(OPEN, file)
    [holder] = look(file)
    assert (holder.pid, holder.container, holder.state) == (process.pid, None, "S")
    assert before - 0.01 <= holder.started <= clock.now().uptime
    assert holder.command == Path(f"/proc/{process.pid}/comm").read_text().strip()


@pytest.mark.parametrize("code", [OPEN, MAP, UNSHARED_THREAD], ids=["open", "map", "a thread with its own files"])
def test_a_user_is_found_however_it_uses_the_file(file: Path, launch, code: str) -> None:
    process = launch(code, file)
    assert pids(file) == [process.pid]


def test_a_process_whose_first_thread_has_ended_still_uses_the_file_with_another(file: Path, launch) -> None:
    process = launch(DEAD_LEADER, file)
    [holder] = look(file)
    assert (holder.pid, holder.state) == (process.pid, "S")


@pytest.mark.parametrize("code", [OPEN, MAP], ids=["open", "map"])
def test_a_renamed_file_is_the_same_file(file: Path, launch, code: str) -> None:
    process = launch(code, file)
    assert pids(file.rename(file.with_name("other"))) == [process.pid]


def test_a_file_that_has_taken_the_name_is_another_file(file: Path, launch) -> None:
    launch(OPEN, file)
    file.unlink()
    file.write_bytes(b"")
    assert look(file) == ()


def test_one_look_answers_for_all_devices(tmp_path: Path, launch) -> None:
    files = {name: [str(tmp_path / name)] for name in ("a", "b", "c")}
    for name in files:
        (tmp_path / name).write_bytes(b"x")
    one, both = (
        launch(OPEN, tmp_path / "a"),
        launch(f"import os, sys; os.open(sys.argv[2], 0); {OPEN}", *files["a"], *files["b"]),
    )
    found = Processes(PROC, nobody, full_sight=False).holders(files)
    users = {name: {holder.pid for holder in holders or ()} for name, holders in found.items()}
    assert users == {"a": {one.pid, both.pid}, "b": {both.pid}, "c": set()}


def test_this_process_and_those_left_out_are_no_holders(file: Path, launch) -> None:
    process = launch(OPEN, file)
    with file.open("rb"):
        assert pids(file) == [process.pid]
    assert look(file, exclude=(process.pid,)) == ()


def test_a_process_that_has_ended_and_was_not_collected_uses_nothing(file: Path, launch) -> None:
    process = launch(OPEN, file)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert look(file) == ()


def test_the_container_is_asked_for_by_pid(file: Path, launch) -> None:
    process = launch(OPEN, file)
    sight = Processes(PROC, {process.pid: "pod-a"}.get, full_sight=False)
    [holder] = sight.holders({"gpu": [str(file)]})["gpu"] or ()
    assert holder.container == "pod-a"


def test_a_command_cannot_write_to_the_terminal_of_whoever_reads_it(file: Path, launch) -> None:
    launch("open('/proc/self/comm', 'w').write('\x1b[2J all well'); " + OPEN, file)
    [holder] = look(file)
    assert holder.command == "?[2J all well"


def test_what_a_command_was_given_stays_its_own(file: Path, launch) -> None:
    """A password on a command line would stay in the ledger for ever."""
    launch(OPEN, file, "--password=hunter2")
    [holder] = look(file)
    assert "hunter2" not in holder.command


def test_a_name_with_spaces_and_parentheses_does_not_shift_the_fields(file: Path, launch) -> None:
    before = clock.now().uptime
    launch("import sys; open('/proc/self/comm', 'w').write('a) Z 1 (b'); " + OPEN, file)
    [holder] = look(file)
    assert holder.state == "S"
    assert before - 0.01 <= holder.started <= clock.now().uptime


def test_a_device_node_is_what_it_leads_to_and_not_its_name(tmp_path: Path, launch) -> None:
    """A container has its own node for the same device."""
    zero = Path("/dev/zero").stat().st_rdev
    try:
        os.mknod(tmp_path / "node", 0o600 | 0o020000, zero)
        process = launch(OPEN, tmp_path / "node")
    except PermissionError:
        pytest.skip("making device nodes takes root")
    assert process.pid in pids(Path("/dev/zero"))
    assert process.pid not in pids(Path("/dev/full"))


def test_a_device_without_files_or_with_a_missing_one_is_not_proven_free(file: Path) -> None:
    files = {"none": [], "missing": [str(file), f"{file}-missing"], "good": [str(file)]}
    found = Processes(PROC, nobody, full_sight=False).holders(files)
    assert found == {"none": None, "missing": None, "good": ()}


def initial_namespace() -> bool:
    return Path("/proc/self/ns/pid").stat().st_ino == processes._INITIAL_PID_NAMESPACE


def view(tmp_path: Path, *pids: int) -> Path:
    """A /proc that shows some processes only, with full sight of each."""
    proc = tmp_path / "proc"
    proc.mkdir()
    for name in ("self", *map(str, pids)):
        (proc / name).symlink_to(f"/proc/{name}")
    return proc


@pytest.mark.skipif(not initial_namespace(), reason="this test run is in a container")
def test_full_sight_of_all_processes_is_proof(tmp_path: Path, file: Path, launch) -> None:
    process = launch(OPEN, file)
    free = tmp_path / "free"
    free.touch()
    found = Processes(view(tmp_path, process.pid), nobody, full_sight=True).holders(
        {"a": [str(file)], "b": [str(free)]}
    )
    assert [holder.pid for holder in found["a"] or ()] == [process.pid]
    assert found["b"] == ()


def test_outside_the_initial_pid_namespace_nothing_is_proven(tmp_path: Path, file: Path) -> None:
    for proc in (tmp_path / "container", tmp_path / "empty"):
        proc.mkdir()
    (tmp_path / "container/self/ns").mkdir(parents=True)
    (tmp_path / "container/self/ns/pid").touch()
    for proc in (tmp_path / "container", tmp_path / "empty"):
        assert Processes(proc, nobody, full_sight=True).holders({"gpu": [str(file)]}) == {"gpu": None}
        assert Processes(proc, nobody, full_sight=False).holders({"gpu": [str(file)]}) == {"gpu": ()}


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming somebody else takes root")
def test_with_full_sight_one_process_that_may_not_be_looked_into_spoils_the_proof(launch) -> None:
    """Somebody who is not root looks for users of a file of theirs, with a process of root's beside them."""
    process = launch("import time; print(1, flush=True); time.sleep(60)")
    code = """
import os, sys, tempfile
from pathlib import Path
from scrubber.node.processes import Processes
with tempfile.TemporaryDirectory() as directory:
    proc, file = Path(directory, "proc"), Path(directory, "memory")
    file.touch()
    proc.mkdir()
    for name in ("self", sys.argv[1]):
        (proc / name).symlink_to(f"/proc/{name}")
    Processes._sees_all = lambda self: True
    looks = [Processes(proc, lambda pid: None, full_sight=full).holders({"gpu": [str(file)]}) for full in (True, False)]
    os.write(1, repr(looks).encode())
"""
    # Imported as root, because the checkout may not be readable to anybody else.
    drop = "import scrubber.node.processes, tempfile, os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    command = [sys.executable, "-c", drop + code, str(process.pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    assert done.stdout == repr([{"gpu": None}, {"gpu": ()}])
