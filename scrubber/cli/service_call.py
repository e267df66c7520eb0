"""One request to the service, from an event loop of its own, with a helpful error when the service does not answer."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from scrubber.api import client
from scrubber.ground import paths
from scrubber.ground.errors import Unreachable

T = TypeVar("T")


def ask(run_dir: Path, question: Callable[[client.AdminClient], Awaitable[T]]) -> T:
    """The answer. Unreachable says why the service cannot be reached, as far as this process can find out."""
    return asyncio.run(_ask(paths.admin_socket(run_dir), question))


async def _ask(socket: Path, question: Callable[[client.AdminClient], Awaitable[T]]) -> T:
    async with client.AdminClient(socket) as admin:
        try:
            return await question(admin)
        except Unreachable as error:
            raise Unreachable(f"cannot reach the scrub service at {socket}: {_hint(socket)}") from error


def asker() -> str:
    """The user at this shell, for the ledger."""
    uid = os.getuid()
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:  # a container's user need not have a name
        return f"uid {uid}"


def _hint(socket: Path) -> str:
    try:
        socket.stat()
    except PermissionError:
        return f"this user may not open {socket.parent}; run the command as the user of the service (usually root)"
    except OSError:
        return "the socket does not exist; start `autoclave scrubber`, or pass its --run-dir"
    return "no process listens on it; start `autoclave scrubber` again"
