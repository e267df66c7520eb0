"""Forks the programs of Autoclave from one process that has imported most of them already.

``python -m autoclave scrubber`` spends most of its time on imports, and tests start hundreds of services and plugins.
A fork runs the same ``__main__``, with the arguments, environment, streams, session and parent that ``Popen`` gives.
Tests of the start itself execute Python: those with the fixture ``executed``, the demo and the tutorial.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import json
import os
import random
import resource
import runpy
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

PROGRAM = [sys.executable, "-m", "autoclave"]
BEFORE_MAIN = ("PYTHON", "LD_")  # only a new interpreter obeys these variables ...
IGNORED = "PYTHONDONTWRITEBYTECODE"  # ... and tests/conftest.py takes this one away, later than HERE is read
NO_FORK = ("executable", "preexec_fn", "pass_fds", "shell")
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
STREAMS = ("p2cread", "c2pwrite", "errwrite")
EXECUTE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined] # private to subprocess
MOST = 2**20  # bytes of an order
SUBREAPER = 36  # for prctl
LIBC = ctypes.CDLL(None, use_errno=True)

EXECUTED = subprocess.Popen
SERVERS: set[int] = set()  # process ids of the servers that this process has started


class Popen(subprocess.Popen[Any]):
    """A child process. A program of Autoclave is a fork; each other program is executed."""

    def _execute_child(self, *arguments: object) -> None:
        it: dict[str, Any] = EXECUTE.bind(self, *arguments).arguments
        words = list(map(os.fspath, it["args"])) if isinstance(it["args"], list | tuple) else []
        env, streams = dict(os.environ if it["env"] is None else it["env"]), [it[name] for name in STREAMS]
        if words[:3] != PROGRAM or any(it[name] for name in NO_FORK) or (_before_main(env), _limits()) != HERE:
            super()._execute_child(*arguments)  # type: ignore[misc] # private to subprocess
            return
        order = [words[3:], env, str(it["cwd"] or Path.cwd()), it["start_new_session"]]
        given = [own if theirs == -1 else theirs for own, theirs in enumerate(streams)]
        self.pid = _server(os.getpid()).fork(order, given)
        self._child_created = True
        self._close_pipe_fds(*(it[name] for name in PIPES))  # type: ignore[attr-defined] # private to subprocess


def _before_main(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(BEFORE_MAIN) and name != IGNORED}


def _limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(kind) for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)]


HERE = _before_main(os.environ), _limits()  # a child with others is executed


class _Server:
    """The process that forks, for one process that asks."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.forking", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])  # it ends with the socket
        SERVERS.add(self._process.pid)

    def fork(self, order: list[object], streams: list[int]) -> int:
        """The process id of a new child of this process."""
        with self._lock:
            LIBC.prctl(SUBREAPER, 1, 0, 0, 0)  # an orphan becomes a child of this process
            try:
                socket.send_fds(self._socket, [json.dumps(order).encode()], streams)
                return int(self._socket.recv(MOST))
            finally:
                LIBC.prctl(SUBREAPER, 0, 0, 0, 0)

    def close(self) -> None:
        """End the server."""
        self._socket.close()
        self._process.wait()


@cache
def _server(_pid: int) -> _Server:
    return _Server()


def close() -> None:
    """End the server of this process, if it has one."""
    if _server.cache_info().currsize:
        _server(os.getpid()).close()


@contextmanager
def forking(popen: type[subprocess.Popen[Any]]) -> Iterator[None]:
    """Programs of Autoclave are forks meanwhile; or not, with the ``Popen`` of the standard library."""
    before = subprocess.Popen
    subprocess.Popen = popen  # type: ignore[misc, assignment] # for a while
    try:
        yield
    finally:
        subprocess.Popen = before  # type: ignore[misc] # private to subprocess


def _serve(orders: socket.socket) -> None:
    """Fork for each order, until the pipe of orders is closed. Returns in each fork, ready to run."""
    while True:
        order, streams, _, _ = socket.recv_fds(orders, MOST, 3)
        if not order:
            os._exit(0)
        read, write = os.pipe()
        if (between := os.fork()) == 0:
            if (pid := os.fork()) == 0:
                os.close(read)
                os.close(write)
                orders.close()
                words, env, cwd, session = json.loads(order)
                _become(words, env, cwd, streams, session=session)
                return
            os.write(write, str(pid).encode())
            os._exit(0)  # its child is an orphan now
        os.close(write)
        for handle in streams:
            os.close(handle)
        os.waitpid(between, 0)
        orders.send(os.read(read, MOST))
        os.close(read)


def _become(words: list[str], env: dict[str, str], cwd: str, streams: list[int], *, session: bool) -> None:
    if session:
        os.setsid()
    for own, given in enumerate(streams):
        os.dup2(given, own)
    for given in streams:
        os.close(given)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    random.seed()
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - open for good
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - open for good
    sys.argv = ["autoclave", *words]


if __name__ == "__main__":
    verbs = [f"autoclave.cli.verbs.{verb}" for verb in ("plugin", "dra", "scrubber")]
    for name in ("plugin.plugin_process", "plugin.dra.driver_process", "plugin.cluster.apiserver", *verbs):
        importlib.import_module(name)
    gc.freeze()  # no fork walks through what all of them share
    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("autoclave", run_name="__main__", alter_sys=True)
