"""The other plugins of this node: kills one that holds a lock and hangs, and finds one that the kubelet may use.

The holder of a lock answers on a socket beside it: it accepts a connection, and closes it. A process that is stopped,
or whose event loop hangs, does not answer. Such a process is killed instead of passed over. So it cannot wake up and
serve beside its successor, and a call of the kubelet that waits for it fails instead of delaying all pods of the node.
After the kill the kernel frees its lock, and ends its calls. Only a process in the PID namespace of this one can be
killed, so the containers of a pod share a PID namespace.

A rival is found by the names that NVIDIA's plugin and its forks use. From Kubernetes 1.37 on, the kubelet keeps both
plugins of a resource, and informs neither of them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from ground import log, unix_sockets

logger = log.get("registration")

ASKED_EVERY = 1.0  # seconds
ANSWERS_WITHIN = 4.0  # seconds; on a very busy machine a plugin that works can take two
SILENT = 2  # questions in a row without an answer: one alone may be due to a pause of the process that asks
RIVALS_EVERY = 5.0  # seconds between two looks for rivals
NOT_PROVEN = "another plugin serves in the kubelet's directory: what it hands out is not proven"


class Answers:
    """The answers of this process, until they are closed. The caller holds the lock that they are for."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)  # of a holder that was killed
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(0)
        self._socket.bind(os.fspath(path))
        self._socket.listen()
        asyncio.get_running_loop().add_reader(self._socket, self._answer)

    def close(self) -> None:
        """Stop answering. The caller still holds the lock."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _answer(self) -> None:
        connection, _ = self._socket.accept()
        connection.close()


async def watch_hung(path: Path) -> None:
    """Until cancelled, kill the process that should answer here, whenever it hangs."""
    silent, killed = 0, -1
    while True:
        await asyncio.sleep(ASKED_EVERY)
        if await _answers(path):
            silent, killed = 0, -1
            continue
        silent += 1
        # The next holder may hang before it has answered once; one that does not end is killed once.
        if silent >= SILENT and (holder := _holder(path)) != killed:
            silent, killed = 0, holder if _kill(path) else -1


def _holder(path: Path) -> int:
    """The process that should answer here; 0 if it is not known."""
    try:
        return unix_sockets.listener(path)
    except OSError:
        return 0


async def _answers(path: Path) -> bool:
    """Whether the holder of the lock answers.

    Also true if no process has to answer: the lock is free, or its holder is older.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as question:
            question.settimeout(0)
            question.connect(os.fspath(path))
            try:
                async with asyncio.timeout(ANSWERS_WITHIN):
                    await asyncio.get_running_loop().sock_recv(question, 1)
            except TimeoutError:
                question.recv(1)  # the answer may be there: it was this process that did not run
    except BlockingIOError:  # no answer, or it has left too many questions without one
        return False
    except OSError:  # it has ended, or cannot be asked
        return True
    return True


def _kill(path: Path) -> bool:
    """Kill the process that should answer here. False if it is another process by now, which must be asked first."""
    try:
        pid = unix_sockets.listener(path)
        process = os.pidfd_open(pid)  # an error for 0, a process of another PID namespace
        try:
            if pid == os.getpid() or unix_sockets.listener(path) != pid:
                return False
            signal.pidfd_send_signal(process, signal.SIGKILL)
            logger.error("killed another plugin of this node: it did not answer", pid=pid)
        finally:
            os.close(process)
    except OSError as error:
        logger.error("cannot kill another plugin of this node that does not answer", error=str(error))  # noqa: TRY400 - expected
    return True


def serving(kubelet_dir: Path, resource_prefix: str) -> set[Path]:
    """The sockets of such plugins that answer."""
    sockets = kubelet_dir.glob(f"{resource_prefix.partition('.')[0]}-*.sock")
    return {socket for socket in sockets if unix_sockets.connect_error(socket) is None}


async def watch_rivals(kubelet_dir: Path, resource_prefix: str, report: Callable[[str], None]) -> None:
    """Until cancelled, report the socket of another plugin, or an empty text."""
    before = ""
    while True:
        socket = min(map(str, serving(kubelet_dir, resource_prefix)), default="")
        if socket not in ("", before):
            logger.error(NOT_PROVEN, socket=socket)
        before = socket
        report(socket)
        await asyncio.sleep(RIVALS_EVERY)
