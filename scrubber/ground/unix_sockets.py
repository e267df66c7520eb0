"""Unix sockets: a private directory, a path that fits, and never taking a live one away from anybody.

gRPC unlinks whatever lies at the path it binds, without an error; so the directory is locked first, and a socket that
still answers is left alone.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from pathlib import Path

from scrubber.ground.errors import FatalError

LONGEST = 107  # bytes of a socket path, by the kernel's sockaddr_un
OURS_ONLY = 0o700
OWNER_ONLY = 0o600


def prepare(directory: Path) -> int:
    """Make the run directory ours alone; the descriptor that is returned holds its lock until it is closed."""
    try:
        directory.mkdir(mode=OURS_ONLY, parents=True, exist_ok=True)
        _demand_private(directory)
        lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, OWNER_ONLY)
    except OSError as error:
        raise FatalError(
            f"cannot use run directory {directory}: {error.strerror}; give another with --run-dir"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise FatalError(f"cannot start: another autoclave scrubber runs in {directory}") from None
    return lock


def _demand_private(directory: Path) -> None:
    """Whoever may write here could put a socket of their own in the place of ours."""
    found = directory.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077 == 0:
        return
    remedy = "make it a directory of this user with mode 0700, or give another with --run-dir"
    raise FatalError(f"cannot use run directory {directory}: others may enter it; {remedy}")


def claim(path: Path) -> str:
    """Clear a stale socket away and say where gRPC may bind. The caller holds the directory's lock."""
    if len(os.fsencode(path)) > LONGEST:
        raise FatalError(f"cannot use socket path {path}: longer than {LONGEST} bytes; give a shorter --run-dir")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return f"unix:{path}"
    if not stat.S_ISSOCK(mode):
        raise FatalError(f"cannot use socket path {path}: something else lies there; remove it")
    if _answers(path):
        raise FatalError(f"cannot start: somebody else answers on {path}; stop that first")
    path.unlink()
    return f"unix:{path}"


def _answers(path: Path) -> bool:
    """Whether anybody listens. Only a refused connection is a no."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True
