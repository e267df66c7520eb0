"""Unix sockets: a private directory with a lock, a path that fits, and no socket taken from a living server.

gRPC removes any file at the path that it binds, without an error. So a server locks the directory first, and refuses a
path on which another server still answers.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

from ground import private_files
from ground.errors import FatalError

LOCK = "lock"  # in a directory with sockets: the file that its server holds locked
MAX_PATH_BYTES = 107  # bytes of a socket path, by the kernel's sockaddr_un
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def lock_run_dir(directory: Path) -> int | None:
    """Make the run directory and lock it: the descriptor that holds the lock until it is closed.

    None while another service holds the lock.
    """
    private_files.make_directory(directory, "run", private_files.NOT_TO_ENTER)
    try:
        return private_files.try_lock(directory / LOCK)
    except OSError as error:
        raise FatalError(
            f"cannot use run directory {directory}: {error.strerror}", "give another with --run-dir"
        ) from error


def claim(path: Path) -> str:
    """Remove a stale socket and return the address for gRPC to bind. The caller holds the directory's lock."""
    demand_free(path, "give a shorter --run-dir")
    path.unlink(missing_ok=True)
    return f"unix:{path}"


def demand_free(path: Path, if_too_long: str) -> None:
    """Raise a FatalError unless the path fits the kernel's limit and is absent or a socket without a server."""
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise FatalError(f"cannot use socket path {path}: it is longer than {MAX_PATH_BYTES} bytes", if_too_long)
    try:
        mode = path.lstat().st_mode
    except OSError:  # absent, or in a directory that this user may not enter: then gRPC fails to bind
        return
    if not stat.S_ISSOCK(mode):
        raise FatalError(f"cannot use socket path {path}: it is not a socket", "remove it")
    if not isinstance(connect_error(path), (ConnectionRefusedError, FileNotFoundError)):
        raise FatalError(f"cannot use socket path {path}: another server answers on it", "stop that server first")


def connect_error(path: Path) -> OSError | None:
    """Why no process accepts connections on the path, or None if one does. A process that hangs accepts them, too."""
    try:
        listener(path)
    except OSError as error:
        return error
    return None


def listener(path: Path) -> int:
    """The pid of the process that listens on the path; 0 if this PID namespace does not show it. Sends no request.

    OSError if there is no connection. A unix socket connects or fails without a wait.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        probe.connect(os.fspath(path))
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])
