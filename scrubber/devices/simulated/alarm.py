"""Rings when something happens to a simulated GPU: a document is replaced by a move, its event log is appended to."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable

from asyncinotify import Inotify, Mask

from scrubber.devices.simulated.layout import GpuFiles

_MOST = 64 * 1024  # bytes of one read; what was told is of no interest


class Alarm:
    """One watch over all GPUs that there are now. Their memory is no document: it may change as it likes."""

    def __init__(self, places: Iterable[GpuFiles]) -> None:
        """Watch."""
        self._inotify = Inotify()
        for place in places:
            self._inotify.add_watch(place.directory, Mask.MOVED_TO | Mask.ONLYDIR)
            if place.events.exists():  # if not, its vitals say so
                self._inotify.add_watch(place.events, Mask.MODIFY)

    def fileno(self) -> int:
        """Readable after a change."""
        return self._inotify.fd

    def clear_alarm(self) -> None:
        """Until the next change."""
        poll = select.poll()
        poll.register(self._inotify.fd, select.POLLIN)
        while poll.poll(0):
            os.read(self._inotify.fd, _MOST)

    def close(self) -> None:
        """Watch no more."""
        self._inotify.close()
