"""What the fence says about a period: the opens of others that it has counted from one reading to another.

Values; pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.values import FenceMode
from scrubber.core.model import Facts, Moment
from scrubber.core.use_counter import Counted, FenceReading, Missed

ANEW = "the fence was put up again meanwhile, or the node restarted"
UNREAD = "the fence was not read at the start or at the end of this period"


@dataclass(frozen=True, slots=True)
class Guarded:
    """The fence of a device from one reading to another. The counts are of attempts by others."""

    since: Moment | None = None  # the first reading
    mode: FenceMode = FenceMode.OFF  # at the end of the time. OFF: nothing is known ...
    why: str = ""  # ... for this reason
    mode_before: FenceMode = FenceMode.OFF  # at its beginning
    exempt: str = ""  # at the end
    exempt_before: str = ""
    let_through: int = 0  # without those that the policy ignores
    ignored: int = 0
    refused: int = 0
    gaps: int = 0
    open_to_all: bool = False  # at some time everybody could open the device: its owner is counted as well
    below: str = ""  # ``FenceReading.below``

    @property
    def modes(self) -> str:
        """What the fence did with others: one word, or two if that changed meanwhile."""
        now = self.mode.value
        if self.mode is self.mode_before is FenceMode.WATCH and self.refused:
            return f"{now} at both ends, another mode between"
        return now if self.mode is self.mode_before else f"{self.mode_before.value}, then {now}"

    @property
    def flaws(self) -> tuple[str, ...]:
        """In words, why the count may lack others, or who else is in it; none if it has exactly the others."""
        gaps = ("with gaps",) if self.gaps else ()
        open_to_all = ("open to all for a time",) if self.open_to_all else ()
        return *gaps, *open_to_all, *((f"below {self.below} only",) if self.below else ())


UNKNOWN = Guarded(why=UNREAD)


@dataclass(frozen=True, slots=True)
class EndedTenancy:
    """A tenancy that has ended, before its device is clean: who had it, and what the fence says about that time."""

    number: int  # ``Tenancy.number``
    boot_id: str  # of the boot in which it was handed out
    ended: Moment
    began: Moment | None = None  # None: it is not known
    container: str | None = None  # of its owner
    pod: str = ""  # NAMESPACE/POD, if it was known
    acquired_by: str = ""  # a job or a claim
    receipt: str = ""  # on which it was handed out
    guarded: Guarded = UNKNOWN
    last: FenceReading | None = None  # at its end


@dataclass(frozen=True, slots=True)
class FenceMemory:
    """What a record keeps of the fence, until a proof and the next hand-over."""

    proof: FenceReading | None = None  # at the last proof
    grant: FenceReading | None = None  # when the present tenancy began
    granted: Moment | None = None
    receipt: str = ""  # on which it began
    opened: Moment | None = None  # when it was open to all first: then everybody could open it
    ended: EndedTenancy | None = None  # the last one; None: it is wiped, or nobody has had the device


def of_look(facts: Facts) -> FenceReading:
    """The fence as the look that gave these facts began."""
    match facts.use_reading:
        case Counted(fence=FenceReading() as reading):
            return reading
        case Missed(why):
            return FenceReading(facts.at, why=why)
        case _:
            return FenceReading(facts.at, why="no fence counts who opens it")


def between(began: FenceReading | None, ended: FenceReading | None, *, open_to_all: bool = False) -> Guarded:
    """What two readings say about the time between them."""
    if began is None or ended is None:
        return UNKNOWN
    if why := began.why or ended.why:
        return Guarded(began.at, why=why)
    passed, ignored = ended.passed - began.passed, ended.ignored - began.ignored
    refused, gaps = ended.refused - began.refused, ended.gaps - began.gaps
    if began.counter != ended.counter:
        return Guarded(began.at, why=ANEW)
    if not 0 <= ignored <= passed or min(refused, gaps) < 0:
        return Guarded(began.at, why=ANEW)
    return Guarded(
        since=began.at, mode=ended.mode, mode_before=began.mode, exempt=ended.exempt, exempt_before=began.exempt,
        let_through=passed - ignored, ignored=ignored, refused=refused, gaps=gaps, open_to_all=open_to_all,
        below=ended.below or began.below,
    )  # fmt: skip
