"""The XIDs of each GPU, from the kernel's log and from NVML, each once. No clock, no lock: both are its owner's.

The kernel's log is the better source: it remembers what was before us, and tells the same after a restart of the
service. NVML hears the same events a moment earlier or later. So what NVML says waits a moment for the kernel's word of
it, and counts by itself only when there is none.

An event's number is the time at which it happened, in microseconds on the clock of the kernel's messages whoever told
it, and never less than that of the event before on the same GPU: nobody who has judged one number can miss the next.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from scrubber.core.model import Xid
from scrubber.devices.nvidia.health.kernel_messages import GpuError

GRACE = 0.25  # seconds for which NVML's word waits for the kernel's
SAME = 2.0  # seconds within which the same code from the other source is the same event
KEPT = 32  # events of one code and instance: a storm that a tenant raises displaces nothing but itself
AWAITED = 256  # events that wait for the other source's word: of each code, or of NVML in all

_Times = deque[float]
_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Waiting:
    heard: float
    event: GpuError
    microseconds: int


def always(_code: int) -> bool:
    """Nothing is known of the codes: then whatever happens on a GPU concerns all of it."""
    return True


class XidLog:
    """What was heard. ``now`` is in seconds on any clock that goes on; ``microseconds`` are the kernel's, see above."""

    def __init__(self, whole: Callable[[int], bool] = always) -> None:
        """Nothing was. ``whole`` says of which codes every slice of a GPU is hit, whichever is named."""
        self._whole = whole
        self._kept: dict[tuple[str, int, int | None], deque[Xid]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._last: dict[str, int] = {}
        # When the kernel's word came and NVML's did not yet, and when NVML's was believed without the kernel's.
        self._logged: dict[_Key, _Times] = defaultdict(lambda: deque(maxlen=AWAITED))
        self._alone: dict[_Key, _Times] = defaultdict(lambda: deque(maxlen=AWAITED))
        self._waiting: deque[_Waiting] = deque()  # NVML's, not believed yet

    def of(self, place: str, instance: int | None = None) -> tuple[Xid, ...]:
        """The events of a GPU or, by its GPU instance, of a slice, in order."""
        kept = [(key, list(xids)) for key, xids in self._kept.items() if key[0] == place]
        mine = (xids for (_, code, named), xids in kept if self._hits(code, named, instance))
        return tuple(sorted((xid for xids in mine for xid in xids), key=lambda xid: xid.number))

    def logged(self, event: GpuError, microseconds: int, now: float) -> bool:
        """The kernel has logged it then; whether that is news."""
        key = (event.place, event.code)
        twin = next((it for it in self._waiting if (it.event.place, it.event.code) == key), None)
        if twin is not None:
            self._waiting.remove(twin)
        elif _taken(self._alone[key], now):
            return False
        else:
            self._logged[key].append(now)
        self._note(event, microseconds)
        return True

    def told(self, event: GpuError, microseconds: int, now: float) -> None:
        """NVML has told it then: believed by ``settle``, unless the kernel tells it as well."""
        if not _taken(self._logged[event.place, event.code], now):
            self._waiting.append(_Waiting(now, event, microseconds))

    def settle(self, now: float, grace: float = GRACE) -> bool:
        """Believe what NVML told that long ago, or what is too much to wait for; whether there is news."""
        news = False
        while self._waiting and (self._waiting[0].heard + grace <= now or len(self._waiting) > AWAITED):
            its = self._waiting.popleft()
            self._alone[its.event.place, its.event.code].append(its.heard)
            self._note(its.event, its.microseconds)
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
    """Whether one of them was just now; it is used up by that."""
    while times and times[0] < now - SAME:
        times.popleft()
    if not times:
        return False
    times.popleft()
    return True
