"""The files of our sockets: one instance a node, paths that fit, never another's file in our hands.

gRPC unlinks whatever lies at the path it binds, and at its end whatever lies there then. So a socket is bound under a
hidden name and moved to its own name once it serves: it appears complete, and only we remove it, if it is still ours.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scrubber.ground.errors import FatalError

LONGEST = 107  # bytes of a socket path, by the kernel's sockaddr_un
SUBDIRECTORY = "autoclave"  # the kubelet removes all sockets of its directory when it starts, not those one level below
GROUP_MAY_ENTER = 0o750
OWNER_ONLY = 0o600

Identity = tuple[int, int, int]


@contextmanager
def sole_instance(kubelet_dir: Path) -> Iterator[None]:
    """Hold our directory in the kubelet's; two plugins for one resource would throw each other out for ever."""
    own = kubelet_dir / SUBDIRECTORY
    lock = _open_lock(kubelet_dir, own)
    try:
        _lock(lock, own)
        yield
    finally:
        os.close(lock)


def _lock(lock: int, own: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FatalError(f"cannot start: another autoclave plugin runs in {own}; stop that first") from None


def _open_lock(kubelet_dir: Path, own: Path) -> int:
    if not kubelet_dir.is_dir():
        remedy = "start the kubelet first, mount its directory here, or give another with --kubelet-dir"
        raise FatalError(f"cannot use kubelet directory {kubelet_dir}: it does not exist; {remedy}")
    try:
        own.mkdir(mode=GROUP_MAY_ENTER, exist_ok=True)
        _demand_ours(own)
        return os.open(own / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, OWNER_ONLY)
    except OSError as error:
        raise FatalError(f"cannot use directory {own}: {error.strerror}; remove it, or run as its owner") from error


def _demand_ours(own: Path) -> None:
    """Whoever may write here could put a socket of their own in the place of ours."""
    found = own.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & 0o027 == 0:
        return
    raise FatalError(f"cannot use directory {own}: others may use it; make it ours, with mode 0750 or tighter")


def endpoint(resource: str) -> str:
    """Where a resource is served, relative to the kubelet's directory."""
    return f"{SUBDIRECTORY}/{resource.replace('/', '_')}.sock"


def hidden(path: Path) -> Path:
    """Where a socket is bound first: as long as its own name, and ignored by the kubelet for its dot."""
    return path.with_name(f".{path.name.removesuffix('.sock')}.new")


def claim(path: Path) -> None:
    """Make sure that our socket may lie there, or say what has to be done first."""
    if len(os.fsencode(path)) > LONGEST:
        raise FatalError(f"cannot use socket path {path}: longer than {LONGEST} bytes; use a shorter directory or name")
    if not path.parent.is_dir():
        raise FatalError(
            f"cannot use socket path {path}: there is no directory {path.parent}; mount or make it, then start again"
        )
    if not os.path.lexists(path):
        return
    if identity(path) is None:
        raise FatalError(f"cannot use socket path {path}: something else lies there; remove it")
    if not isinstance(knock(path), (ConnectionRefusedError, FileNotFoundError)):
        raise FatalError(f"cannot use socket path {path}: somebody else answers there; stop that first")


def publish(path: Path) -> Identity:
    """Move a socket that serves from its hidden name to its own, over a stale one; says what tells it from others."""
    try:
        hidden(path).chmod(OWNER_ONLY)
        hidden(path).replace(path)
    except OSError as error:
        raise FatalError(
            f"cannot use socket path {path}: {error.strerror}; make its directory ours to change"
        ) from error
    found = identity(path)
    if found is None:
        raise FatalError(f"cannot use socket path {path}: it was taken away at once; find out by whom")
    return found


def announce(path: Path) -> None:
    """Let the file appear once more, for whoever watches its directory."""
    path.rename(hidden(path))
    hidden(path).rename(path)


def withdraw(path: Path, ours: Identity) -> None:
    """Remove the file of our socket, unless somebody else's lies there by now."""
    if same(identity(path), ours):
        path.unlink(missing_ok=True)


def identity(path: Path) -> Identity | None:
    """What tells a socket from its successor; None where there is none. Inode numbers are used again, hence ctime."""
    try:
        found = path.stat()  # through a link, should a distribution keep its sockets elsewhere
    except OSError:
        return None  # absent, or not for us to see: both mean that there is nothing to talk to
    return (found.st_dev, found.st_ino, found.st_ctime_ns) if stat.S_ISSOCK(found.st_mode) else None


def same(found: Identity | None, ours: Identity) -> bool:
    """Whether this is our own socket. Its inode is pinned while we serve, and a relabelling of its file is no loss."""
    return found is not None and found[:2] == ours[:2]


def knock(path: Path) -> OSError | None:
    """Why nobody listens there, or None if somebody does. A unix socket connects or fails at once: nothing blocks."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            return error
    return None
