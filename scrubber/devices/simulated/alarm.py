"""Watch simulated GPUs: a rename replaces a document, or a line is appended to the event log."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable

from asyncinotify import Inotify, Mask

from scrubber.devices.simulated.layout import GpuFiles

_MOST = 64 * 1024  # bytes for each read; the events themselves are not used


class Alarm:
    """A watch over all present GPUs. Changes of their memory do not count."""

    def __init__(self, places: Iterable[GpuFiles]) -> None:
        self._inotify = Inotify()
        for place in places:
            self._inotify.add_watch(place.directory, Mask.MOVED_TO | Mask.ONLYDIR)
            if place.events.exists():  # without it, ``vitals`` fails
                self._inotify.add_watch(place.events, Mask.MODIFY)

    def fileno(self) -> int:
        """The file descriptor, readable after a change."""
        return self._inotify.fd

    def clear_alarm(self) -> None:
        """Reset the alarm until the next change."""
        poll = select.poll()
        poll.register(self._inotify.fd, select.POLLIN)
        while poll.poll(0):
            os.read(self._inotify.fd, _MOST)

    def close(self) -> None:
        """Stop to watch."""
        self._inotify.close()
