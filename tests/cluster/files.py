"""Wait for what a program writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from asyncinotify import Inotify, Mask

from tests.patience import WITHIN

T = TypeVar("T")


async def until(path: Path, look: Callable[[], T | None]) -> T:
    """What ``look`` finds, as soon as it finds something; it looks again after each change of a file or directory."""
    with Inotify() as inotify:
        inotify.add_watch(path, Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO)
        async with asyncio.timeout(WITHIN):
            while not (found := look()):
                await inotify.get()
            return found
