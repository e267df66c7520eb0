"""One request to the service from an event loop of its own; what to do when nothing answers on its socket."""

from __future__ import annotations

import asyncio
import os
import pwd
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click
from click.core import ParameterSource

from autoclave.cli.output import human
from ground import errors, paths, private_files, threads, unix_sockets
from ground.documents import units
from ground.errors import Unreachable
from scrub_api import admin_client, client, views
from scrubber.node import proc

T = TypeVar("T")
C = TypeVar("C", admin_client.AdminClient, client.ScrubberClient)

# What a connection attempt finds while a service starts. Another error, such as a denied access, does not go away.
STARTING = (FileNotFoundError, ConnectionRefusedError)
SAID_AFTER = 0.5  # seconds of waiting without a word
# For a verb that outlives a restart of the service.
RETRY = 0.5  # seconds
QUIET = 30.0  # seconds to wait for an event
RETRYING = "service not reachable, retrying"
TRIED_EVERY = 0.05  # seconds


def ask(
    run_dir: Path, question: Callable[[admin_client.AdminClient], Awaitable[T]], timeout: float | None = None
) -> T:  # fmt: skip
    """The answer. If no process listens on the socket, first wait for a service that starts (``--service-wait``).

    ``timeout``: how long the verb waits in any case. It counts if it is longer, and nobody has set that flag.
    """
    socket = paths.admin_socket(run_dir)
    within = _service_wait(timeout)
    began, warned = time.monotonic(), False
    while isinstance(unix_sockets.connect_error(socket), STARTING):
        waited = time.monotonic() - began
        if waited >= SAID_AFTER and not warned:
            human.warn(f"waiting at most {units.format_duration(within)} for the scrub service at {socket}")
            warned = True
        if waited >= within:
            break
        time.sleep(TRIED_EVERY)
    return ask_now(run_dir, question)


def _service_wait(timeout: float | None) -> float:
    ctx = click.get_current_context(silent=True)
    if ctx is None:  # a caller that is not a verb does not wait
        return 0.0
    root = ctx.find_root()
    within: float = root.params.get("service_wait", 0.0)
    is_default = root.get_parameter_source("service_wait") is ParameterSource.DEFAULT
    return max(within, timeout) if timeout is not None and is_default else within


def ask_now(run_dir: Path, question: Callable[[admin_client.AdminClient], Awaitable[T]]) -> T:
    """The answer. Unreachable says why the service cannot be reached, as far as this process can find out."""
    return asyncio.run(_explained(admin_client.AdminClient, paths.admin_socket(run_dir), question))


def ask_for_devices(run_dir: Path, request: Callable[[client.ScrubberClient], Awaitable[T]]) -> T:
    """The answer of the socket for programs that hand out devices. It knows devices by UUID only."""
    return asyncio.run(_explained(client.ScrubberClient, paths.scrubber_socket(run_dir), request))


async def _explained(kind: Callable[[Path], C], socket: Path, question: Callable[[C], Awaitable[T]]) -> T:
    if lack := threads.shortage():
        raise _unreachable(socket, *lack)
    async with kind(socket) as connection:
        try:
            return await question(connection)
        except Unreachable as error:
            raise _unreachable(socket, *_hint(socket)) from error


async def find(admin: admin_client.AdminClient, names: Sequence[str]) -> dict[str, views.DeviceStatus]:
    """The GPUs with these names by UUID, in the order of their index; all GPUs without a name."""
    return {device.device: device for device in (await admin.status(names)).devices}


def caller() -> str:
    """The user at this shell, for the ledger."""
    uid = os.getuid()
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:  # a container's user need not have a name
        return f"uid {uid}"


def _unreachable(socket: Path, why: str, *remedies: str) -> Unreachable:
    return Unreachable(f"cannot reach the scrub service at {socket}: {why}", *remedies)


def _hint(socket: Path) -> tuple[str, ...]:
    """Why the service cannot be reached, and what to do."""
    pid = private_files.lock_holder(socket.parent / unix_sockets.LOCK)
    if pid is not None and isinstance(unix_sockets.connect_error(socket), STARTING):
        return f"the service (pid {pid}) has no socket, because it starts or stops", "if this lasts, read its log"
    of_kubernetes = paths.of_kubernetes()
    start, restart = errors.start(on_kubernetes=of_kubernetes), errors.restart(on_kubernetes=of_kubernetes)
    try:
        pid = unix_sockets.listener(socket)
    except FileNotFoundError:
        return "the socket does not exist", f"pass the --run-dir of the service, or {start}"
    except PermissionError:
        return f"this user may not open {socket}", "run the command as the user of the service (usually root)"
    except ConnectionRefusedError:
        return "no process listens on it", start
    except OSError as error:
        return f"{error.strerror}", restart
    try:
        process = proc.status(f"/proc/{pid}")
    except OSError:  # of another PID namespace
        return "its process listens and does not answer", restart
    since = human.local(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + process.started)
    why = f"it does not answer: pid {pid}, which runs since {since}"
    stopped = f"it is stopped by a signal: `kill -CONT {pid}`, or {restart}"
    return why, stopped if process.state == "T" else restart
