"""One question to the service and its answer: the loop, the connection, and what to say when nobody answers."""

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
    """The answer; Unreachable says what is missing as exactly as can be told from here."""
    return asyncio.run(_ask(paths.admin_socket(run_dir), question))


async def _ask(socket: Path, question: Callable[[client.AdminClient], Awaitable[T]]) -> T:
    async with client.AdminClient(socket) as admin:
        try:
            return await question(admin)
        except Unreachable as error:
            raise Unreachable(f"cannot reach the scrub service at {socket}: {_hint(socket)}") from error


def asker() -> str:
    """Who sits here, for the ledger."""
    uid = os.getuid()
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:  # a container's user need not have a name
        return f"uid {uid}"


def _hint(socket: Path) -> str:
    try:
        socket.stat()
    except PermissionError:
        return f"{socket.parent} may not be entered by this user; become the user that runs the service (root, usually)"
    except OSError:
        return "there is no such socket; start `autoclave scrubber`, or name its --run-dir"
    return "nobody answers there; start `autoclave scrubber` again"
