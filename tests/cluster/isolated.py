"""Run a command as a machine of its own: ``python -m tests.cluster.isolated COMMAND...`` as root.

The command gets its own processes, mounts, network (a loopback) and control groups. Nothing of them is left when it
ends, however it ends: the kernel ends all processes together with the first one, and mounts and network with the last.
What the command writes to ``/run`` and ``/var`` stays in memory. Other files are those of the machine.

In version 2 of control groups, a group with processes gives its children no controllers. There the command runs in a
leaf of its group; so does this program, in a scope that systemd delegates to it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ground import paths

RUN = Path("/run")
STATE = RUN / "autoclave-node"  # exists only on such a machine
ADDRESS = "198.51.100.1"  # of the node, on the loopback: a node's address must not be one of 127.0.0.0/8
SERVICE = "10.96.0.1"  # of the API server, as pods reach it: on the loopback, too
_DELEGATED, _ENTERED = "--delegated", "--entered"
_SELF = (sys.executable, "-m", "tests.cluster.isolated")
_SYSTEMD = Path("/run/systemd/system")  # exists where systemd runs the machine
_SCOPE = ("systemd-run", "--scope", "--quiet", "--property", "Delegate=yes", "--")
_KERNEL = ("setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", "--mount-proc")
_NAMESPACES = ("--ipc", "--mount", "--net", "--pid", "--uts")
_CLONE_NEWCGROUP = 0x02000000
_NODE, _LEAF = f"autoclave-node-{os.getpid()}", "programs"  # control groups


def main() -> int:
    """The exit status of the command."""
    arguments = sys.argv[1:]
    if arguments[:1] == [_ENTERED]:
        _prepare()
        return _first_process(arguments[1:])
    if os.geteuid() != 0:
        print("cannot run a node: this needs root", file=sys.stderr)  # noqa: T201 - the answer to a person
        return 1
    if arguments[:1] == [_DELEGATED]:
        for group in _own_groups():
            _to_leaf(group)
        return _enter(arguments[1:])
    if second_version() and _SYSTEMD.is_dir():
        os.execvp(_SCOPE[0], [*_SCOPE, *_SELF, _DELEGATED, *arguments])  # noqa: S606 - no shell is wanted
    return _enter(arguments)


def second_version() -> bool:
    """Whether the controllers of this machine are in version 2 of control groups, as Kubernetes demands since 1.35."""
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


def _enter(command: list[str]) -> int:
    groups = [group.with_name(_NODE) if group.name == _LEAF else group / _NODE for group in _own_groups()]
    whole = [*_KERNEL, *_NAMESPACES, *_SELF, _ENTERED, *command]
    try:
        for group in groups:
            _make(group)
        if second_version() and not (groups[0] / "cgroup.controllers").read_text().strip():
            why = f"the processes in {groups[0].parent} keep its controllers from a node; let systemd run the machine"
            print(f"cannot run a node: {why}", file=sys.stderr)  # noqa: T201 - the answer to a person
            return 1
        with subprocess.Popen(whole, preexec_fn=lambda: _join(groups)) as child:  # noqa: PLW1509 - one thread
            signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches the command, too: wait for its end
            signal.signal(signal.SIGTERM, lambda *_: child.kill())
            return child.wait()
    finally:
        for group in groups:
            _remove(group)


def _hierarchies() -> Iterator[tuple[str, str, str]]:
    """The mounts of control groups: path, kind, options."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _source, path, kind, options, *_ = line.split(" ")
        if kind in {"cgroup", "cgroup2"}:
            yield path, kind, options


def _own_groups() -> Iterator[Path]:
    """Our control group in each hierarchy."""
    paths: dict[str, str] = {}
    for path, kind, options in _hierarchies():
        paths |= dict.fromkeys([""] if kind == "cgroup2" else options.split(","), path)
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, group = line.split(":", 2)
        if (first := controllers.split(",")[0]) in paths:
            yield Path(paths[first] + group)


def _make(group: Path) -> None:
    group.mkdir()
    for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group of cgroup v1: no process may join
        if (group / "cgroup.clone_children").exists() and (group / file).exists():
            (group / file).write_text((group.parent / file).read_text())


def _join(groups: list[Path]) -> None:
    """Enter the groups, which are the roots of all control groups from now on, and then their leaves."""
    for group in groups:
        (group / "cgroup.procs").write_text("0")
    if ctypes.CDLL(None).unshare(_CLONE_NEWCGROUP):
        raise OSError("cannot have a namespace of control groups")
    if second_version():
        for group in groups:
            _to_leaf(group)


def _to_leaf(group: Path) -> None:
    """Go down into a leaf of our group, and let its other children have all its controllers."""
    leaf = group / _LEAF
    leaf.mkdir()
    (leaf / "cgroup.procs").write_text("0")
    controllers = (group / "cgroup.controllers").read_text().split()
    (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def _remove(group: Path) -> None:
    for directory, _, _ in os.walk(group, topdown=False):
        while (Path(directory) / "cgroup.procs").read_text():  # the kernel is ending them
            time.sleep(0.02)
        Path(directory).rmdir()


def _prepare() -> None:
    """The control groups, the mounts and the network of this machine."""
    for path, kind, options in list(_hierarchies()):
        _run("umount", path)
        _run("mount", "-t", kind, "-o", options, "node", path)  # its root is now our own control group
    _run("mount", "--make-rshared", "/")
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "node", RUN)
    upper, work = STATE / "var", STATE / "var-work"
    for directory in (upper, work):
        directory.mkdir(parents=True)
    _run("mount", "-t", "overlay", "-o", f"lowerdir=/var,upperdir={upper},workdir={work}", "node", "/var")
    shutil.rmtree(paths.STATE_DIR, ignore_errors=True)  # of an Autoclave on the machine itself: it keeps its own
    _run("ip", "link", "set", "lo", "up")
    for address in (ADDRESS, SERVICE):
        _run("ip", "address", "add", f"{address}/32", "dev", "lo")


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def _first_process(command: list[str]) -> int:
    """Start the command, wait for it, and wait for each process that its parent has left: the task of process 1."""
    signal.signal(signal.SIGINT, lambda *_: None)
    child = subprocess.Popen(command)
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
