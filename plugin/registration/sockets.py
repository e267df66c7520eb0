"""The files of the plugin's sockets: locked, hidden, published, removed; and a watch of their directories.

One plugin on a node, paths that fit, no file of another program removed.

gRPC removes any file at the path that it binds, and again at its end. So a socket is bound under a hidden name and
renamed once it serves: clients find it only when it answers, and gRPC does not remove it at its final path.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from asyncinotify import Inotify, Mask

from ground import log, private_files, unix_sockets
from ground.aio import Changed
from ground.errors import FatalError

logger = log.get("registration")

SUBDIRECTORY = "autoclave"  # at its start the kubelet removes the sockets of its directory, not those one level below
PRESENT = unix_sockets.LOCK  # the name of the lock of the plugin that serves
GROUP_MAY_ENTER = 0o750
CHANGES = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE | Mask.MOVED_FROM | Mask.DELETE_SELF | Mask.MOVE_SELF
LOOKS_EVERY = 0.5  # seconds, for a directory that the kubelet has not made yet
POLL_EVERY = 5.0  # seconds; also the longest time that a replaced directory is not watched

Identity = tuple[int, int, int]


async def until_made(directory: Path, flag: str) -> None:
    """Return as soon as this directory exists: a node's first kubelet may make it after the plugin has started."""
    made = directory.exists
    if not made():
        logger.warning("waiting for the directory of the kubelet", directory=str(directory), flag=flag)
    while not made():  # noqa: ASYNC110 - the directories above it may be missing, too
        await asyncio.sleep(LOOKS_EVERY)


@contextmanager
def sole_instance(kubelet_dir: Path) -> Iterator[None]:
    """Lock the plugin's directory: two plugins for one resource would replace each other's registration forever."""
    held = lock(kubelet_dir)
    if held is None:
        own = kubelet_dir / SUBDIRECTORY
        raise FatalError(f"cannot start: another autoclave plugin runs in {own}", "stop that first, or use --standby")
    try:
        yield
    finally:
        os.close(held)


def lock(kubelet_dir: Path, name: str = PRESENT) -> int | None:
    """The descriptor that holds a lock in the plugin's directory; None while another plugin holds it."""
    with _own_directory(kubelet_dir) as own:
        return private_files.try_lock(own / name)


def await_lock(kubelet_dir: Path, name: str, *, shared: bool = False) -> int:
    """The descriptor of a lock, after the plugin that holds the lock has ended. This blocks the thread."""
    with _own_directory(kubelet_dir) as own:
        return private_files.await_lock(own / name, shared=shared)


def answers(kubelet_dir: Path, name: str) -> Path:
    """The socket on which the holder of a lock answers whether it works."""
    return kubelet_dir / SUBDIRECTORY / f"{name}.ask"


@contextmanager
def _own_directory(kubelet_dir: Path) -> Iterator[Path]:
    """The plugin's directory, which is made if it is missing.

    An error of the system in the block becomes a FatalError.
    """
    own = kubelet_dir / SUBDIRECTORY
    try:
        own.mkdir(mode=GROUP_MAY_ENTER, exist_ok=True)
        if not private_files.is_private(own, 0o027):
            remedy = "make it a directory of this user, with mode 0750 or tighter"
            raise FatalError(f"cannot use directory {own}: other users may use it", remedy)
        yield own
    except OSError as error:
        raise FatalError(f"cannot use directory {own}: {error.strerror}", "remove it, or run as its owner") from error


def endpoint(resource: str) -> str:
    """A new path for a resource's socket, relative to the kubelet's directory."""
    return f"{SUBDIRECTORY}/{resource.replace('/', '_')}-{secrets.token_urlsafe(3)}.sock"


def hidden(path: Path) -> Path:
    """The path at which a socket is bound: as long as its final path; the kubelet ignores names with a leading dot."""
    return path.with_name(f".{path.name.removesuffix('.sock')}.new")


def claim(path: Path) -> None:
    """Return if the plugin may serve on this path. A FatalError says what the operator must change."""
    if not path.parent.is_dir():
        raise FatalError(
            f"cannot use socket path {path}: there is no directory {path.parent}", "mount or make it, then start again"
        )
    unix_sockets.demand_free(path, "use a shorter directory or name")


def publish(path: Path) -> Identity:
    """Rename a serving socket from its hidden path to its final path, over a stale socket; returns its identity."""
    try:
        hidden(path).chmod(private_files.PRIVATE_FILE)
        hidden(path).replace(path)
    except OSError as error:
        raise FatalError(
            f"cannot use socket path {path}: {error.strerror}", "make its directory writable for this user"
        ) from error
    published = identity(path)
    if published is None:
        raise FatalError(
            f"cannot use socket path {path}: another program removed it immediately", "find that program, and stop it"
        )
    return published


def withdraw(path: Path, ours: Identity) -> None:
    """Remove the socket, unless the path now has another program's socket."""
    if same(identity(path), ours):
        path.unlink(missing_ok=True)


def remove_dead(directory: Path, names: str) -> None:
    """Remove the sockets with such names that killed programs have left behind."""
    for path in directory.glob(names):
        if isinstance(unix_sockets.connect_error(path), ConnectionRefusedError):
            path.unlink(missing_ok=True)


def identity(path: Path) -> Identity | None:
    """What distinguishes a socket from its successor; None without a socket.

    It contains ctime because inode numbers are reused.
    """
    try:
        status = path.stat()  # follows a link: a distribution may keep its sockets elsewhere
    except OSError:
        return None  # absent or inaccessible: either way the plugin cannot connect
    return (status.st_dev, status.st_ino, status.st_ctime_ns) if stat.S_ISSOCK(status.st_mode) else None


def same(other: Identity | None, ours: Identity) -> bool:
    """Whether it is the plugin's own socket. While it serves, its inode is not reused; its ctime may change."""
    return other is not None and other[:2] == ours[:2]


class FileWatch(Changed):
    """Notifies about changes of files while ``run`` runs."""

    def __init__(self, *directories: Path) -> None:
        super().__init__()
        self._directories = directories

    async def run(self) -> None:
        """Watch until cancelled."""
        blind = False
        while True:
            self.notify()  # waiting tasks run only when this task waits: by then the watch is in place
            try:
                with Inotify() as inotify:
                    await self._watch(inotify)
            except OSError as error:  # the node has too many watches: poll instead
                if not blind:
                    logger.warning("cannot watch files: polling every few seconds instead", error=str(error))
                blind = True
                await asyncio.sleep(POLL_EVERY)

    async def _watch(self, inotify: Inotify) -> None:
        """Add each directory again at every poll: it may have been replaced meanwhile.

        One inotify instance serves all the time: the kernel may close one slowly, and that would block the event loop.
        """
        while True:
            for directory in self._directories:
                with suppress(FileNotFoundError):  # it may appear later: the next poll adds it
                    inotify.add_watch(directory, CHANGES)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_EVERY):
                    async for _ in inotify:
                        self.notify()
            self.notify()
