"""The XIDs of each GPU, from the kernel log and from NVML, each once. The caller provides clock and lock.

The kernel log is the better source: it has events from before the start of the service, and gives the same answer after
a restart. NVML reports the same events a moment earlier or later. So an event from NVML waits a moment for the same
event in the kernel log, and counts by itself only if the log does not have it.

The number of an event is its time in microseconds, on the clock of kernel messages for both sources. Numbers of a GPU
always increase, so a reader that has seen one number never misses the next event.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from scrubber.core.model import Xid
from scrubber.devices.nvidia.health.kernel_messages import GpuError

GRACE = 0.25  # seconds that an event from NVML waits for the kernel log
SAME = 2.0  # seconds within which the same code from both sources is one event
KEPT = 32  # events of one code and instance, so that a storm of one code displaces no other
AWAITED = 256  # events that wait for the other source: of each code, or of NVML in all

_Times = deque[float]
_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Waiting:
    received: float
    event: GpuError
    microseconds: int


def always(_code: int) -> bool:
    """The default without a catalogue of codes: every event concerns the whole GPU."""
    return True


class XidLog:
    """All events. ``now``: seconds on any monotonic clock; ``microseconds``: on the clock of kernel messages."""

    def __init__(self, whole: Callable[[int], bool] = always) -> None:
        """Start empty. ``whole`` says which codes concern every slice of a GPU, even if they name one slice."""
        self._whole = whole
        self._kept: dict[tuple[str, int, int | None], deque[Xid]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._last: dict[str, int] = {}
        # Times of events in the kernel log only, and times of events that counted by NVML only.
        self._logged: dict[_Key, _Times] = defaultdict(lambda: deque(maxlen=AWAITED))
        self._unlogged: dict[_Key, _Times] = defaultdict(lambda: deque(maxlen=AWAITED))
        self._waiting: deque[_Waiting] = deque()  # from NVML, not counted yet

    def of(self, place: str, instance: int | None = None) -> tuple[Xid, ...]:
        """The events of a GPU, or of the slice with this GPU instance, in order."""
        kept = [(key, list(xids)) for key, xids in self._kept.items() if key[0] == place]
        found = (xids for (_, code, named), xids in kept if self._hits(code, named, instance))
        return tuple(sorted((xid for xids in found for xid in xids), key=lambda xid: xid.number))

    def add_logged(self, event: GpuError, microseconds: int, now: float) -> bool:
        """Add an event of the kernel log; returns whether it is new."""
        key = (event.place, event.code)
        twin = next((it for it in self._waiting if (it.event.place, it.event.code) == key), None)
        if twin is not None:
            self._waiting.remove(twin)
        elif _taken(self._unlogged[key], now):
            return False
        else:
            self._logged[key].append(now)
        self._note(event, microseconds)
        return True

    def add_reported(self, event: GpuError, microseconds: int, now: float) -> None:
        """Add an event of NVML; ``settle`` counts it unless the kernel log has it as well."""
        if not _taken(self._logged[event.place, event.code], now):
            self._waiting.append(_Waiting(now, event, microseconds))

    def settle(self, now: float, grace: float = GRACE) -> bool:
        """Count NVML events that waited long enough, or that exceed the limit; returns whether any counted."""
        news = False
        while self._waiting and (self._waiting[0].received + grace <= now or len(self._waiting) > AWAITED):
            waiting = self._waiting.popleft()
            self._unlogged[waiting.event.place, waiting.event.code].append(waiting.received)
            self._note(waiting.event, waiting.microseconds)
            news = True
        return news

    def _hits(self, code: int, named: int | None, instance: int | None) -> bool:
        return instance is None or named in (None, instance) or self._whole(code)

    def _note(self, event: GpuError, microseconds: int) -> None:
        # Two processors may log in the same microsecond, or a little out of order.
        number = max(microseconds, self._last.get(event.place, 0) + 1)
        self._last[event.place] = number
        xid = Xid(number, event.code, microseconds / 1e6, event.action)
        self._kept[event.place, event.code, event.instance].append(xid)


def _taken(times: _Times, now: float) -> bool:
    """Whether a recent time is in the list; remove that time."""
    while times and times[0] < now - SAME:
        times.popleft()
    if not times:
        return False
    times.popleft()
    return True
