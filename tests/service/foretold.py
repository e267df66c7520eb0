"""The predicted state of a node after a day of random events under policy ``default``, written from the documentation.

The prediction uses no rule of the service. It knows the order of events and the ten minutes in which error codes
repeat: a fault that ends by itself within a slot has ended at the end of the slot.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.service.noise import Event

COUNTED = {13, 31, 43, 45, 94, 63, 92}  # an application's own, and those for which nothing is asked
OF_ONE_PROCESS = {13, 31, 43, 45, 94}  # any number of them takes nothing out
FOR_SUPPORT = {61, 125}
TOO_MANY, WITHIN = 5, 600.0
KEPT = 32  # of one code the driver's log remembers no more
FLAP_LIMIT = 3
SHOWN = {"pcie", "heat", "short hang", "leak"}  # takes nothing out by itself
SILENT = {"lost", "hangs"}
UNTIL_RESET = {"remap-pending", "reset-required"}
OF_A_PERSON = {"sram", "remap-failed", "bad-memory"}
UNSEEN = {"bad-memory", "reset-fails"}  # until something is done to the device
REASONS = {"hangs": "unresponsive", "bad-memory": "memory-fault", "reset-fails": "reset-failed"}
OF_NO_TRIAL = {*OF_A_PERSON, "support", "operator"}
UNTIL_OVER = {"fabric", "reboot-required", "pcie", "heat"}  # all else is tried with a reset
TOLD_FIRST = {"operator", "remap-failed"}  # waits for a person by itself, so that flapping adds nothing


@dataclass
class Fate:
    """One device. ``out`` is the reason of its quarantine: empty without one, ``?`` where several are possible."""

    out: str = ""
    person: bool = False
    sick: str = ""  # while in use
    used: bool = False
    returns: int = 0
    heard: Counter[int] = field(default_factory=Counter)  # while it was not out
    log: list[tuple[float, int]] = field(default_factory=list)
    judged: int = 0  # so many of these
    wrong: set[str] = field(default_factory=set)  # what is the matter now
    unjudged: set[str] = field(default_factory=set)  # what was reported while it was out

    @property
    def offered(self) -> bool:
        """Whether the device may be advertised as healthy."""
        return not self.out and not self.sick


class Foretold:
    """The predicted states of all devices. Call it with each event once, in order."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        """All is well."""
        self.fates = {device: Fate() for device in devices}

    def tell(self, event: Event) -> bool:
        """One more event; whether what is asked for by it is granted."""
        match event.kind:
            case "slot":
                for fate in self.fates.values():
                    self._rest(fate)
            case "start":
                self._look_over()
            case "reboot":
                self._reboot()
            case "kill":
                pass
            case _:
                return self._tell(event, self.fates[event.device])
        return True

    def _tell(self, event: Event, fate: Fate) -> bool:
        match event.kind:
            case "xids" | "announced":
                self._reported(fate, event)
            case "begins":
                self._begins(fate, event.what)
            case "over":
                fate.wrong.discard(event.what)
            case "repaired":
                fate.wrong -= OF_A_PERSON
            case "arrives":
                fate.used = fate.offered and not fate.used
                return fate.used
            case "leaves":
                self._leaves(fate)
            case "quarantine":
                self._by_hand(fate)
            case _:
                return self._asked_back(fate, event.kind)
        return True

    # -- what is reported

    def _reported(self, fate: Fate, event: Event) -> None:
        fate.log += [(event.at, code) for code in event.codes]
        counted = COUNTED | ({154} if event.what == "none" else set())
        fatal = {code for code in event.codes if code not in counted}
        if not fate.out:
            fatal |= _too_many(fate)
            fate.judged = len(fate.log)
        if fatal:
            self._stricken(fate, "support" if fatal & FOR_SUPPORT else "xid")
        elif fate.offered:
            fate.heard.update(event.codes)

    def _begins(self, fate: Fate, what: str) -> None:
        if what == "leak":
            if fate.offered and not fate.used:  # it is scrubbed with a reset
                self._judge(fate)
        elif what == "ecc":
            self._stricken(fate, what)
        elif what not in SHOWN:
            fate.wrong.add(what)
            if what not in UNSEEN:
                self._stricken(fate, what)

    def _stricken(self, fate: Fate, what: str) -> None:
        """Something takes it out, at once or when it is free."""
        if fate.out:
            fate.unjudged |= {what} & {"ecc", "xid", "support"}
            graver = what in OF_NO_TRIAL - UNSEEN and not fate.wrong & SILENT
            fate.person = fate.person or graver
            fate.out = "?" if graver or what == "lost" else fate.out
        elif fate.used:
            fate.sick = max(fate.sick, what, key=_asks) if fate.sick else what
        else:
            self._take_out(fate, what)

    def _take_out(self, fate: Fate, what: str) -> None:
        flaps = fate.returns >= FLAP_LIMIT
        fate.out = REASONS.get(what, "xid" if what == "support" else what)
        fate.person = flaps or what in OF_NO_TRIAL
        fate.out = "flapping" if flaps and what not in TOLD_FIRST else fate.out
        fate.out = "?" if flaps and what == "lost" else fate.out
        fate.sick = ""

    # -- owners and operators

    def _leaves(self, fate: Fate) -> None:
        if not fate.used:
            return
        fate.used = False
        if fate.sick:
            self._take_out(fate, fate.sick)
        else:
            self._judge(fate)

    def _by_hand(self, fate: Fate) -> None:
        if fate.used:
            fate.sick = "operator"
        else:
            several = fate.person
            self._take_out(fate, "operator")
            fate.out = "?" if several or "lost" in fate.wrong else fate.out

    def _asked_back(self, fate: Fate, deed: str) -> bool:
        """By evidence, or by a person's word, which leaves no more than what is wrong with it now."""
        if not fate.out:
            return False
        if not fate.wrong & SILENT:  # what it has reported is written down: the person's word comes after it
            fate.unjudged &= {"ecc"}
            fate.judged = len(fate.log)
        if deed == "excuse":
            fate.out, fate.person, fate.returns = "", False, 0
            self._judge(fate)
        elif not (faults := self._faults(fate)):
            fate.out, fate.person, fate.returns = "", False, 0
        else:
            self._convict(fate, faults)
        return True

    # -- what a scrub finds

    @staticmethod
    def _faults(fate: Fate) -> set[str]:
        """What keeps a scrub with a reset from its end; what was reported is judged once, when it can be heard."""
        if silent := fate.wrong & SILENT:
            return silent
        found = (fate.wrong - UNTIL_RESET) | fate.unjudged | ({"xid"} if _too_many(fate) else set())
        fate.wrong -= UNTIL_RESET
        fate.unjudged, fate.judged = set(), len(fate.log)
        return found

    def _judge(self, fate: Fate) -> None:
        """A scrub of a device that is not out."""
        if faults := self._faults(fate):
            self._convict(fate, faults)

    def _convict(self, fate: Fate, faults: set[str]) -> None:
        """It failed: what waits for a person goes on waiting."""
        waits = fate.person
        self._take_out(fate, max(faults, key=_asks))
        fate.person = fate.person or waits
        if waits or len(faults) > 1 or faults & SILENT:  # any of them, or the step at which it was met
            fate.out = "?"

    def _rest(self, fate: Fate) -> None:
        """What was tried until the end of a slot."""
        held = fate.wrong - OF_A_PERSON - UNTIL_RESET - UNSEEN
        if not fate.out or fate.person or held:
            return
        faults = self._faults(fate)
        if faults & OF_NO_TRIAL:
            self._convict(fate, faults)
        else:
            fate.out, fate.returns = "", fate.returns + 1

    # -- the node

    def _look_over(self) -> None:
        """After a restart the service scrubs every free device."""
        for fate in self.fates.values():
            if fate.offered and not fate.used:
                self._judge(fate)

    def _reboot(self) -> None:
        """A reboot ends all processes and reports. A quarantined device stays in quarantine."""
        for fate in self.fates.values():
            fate.log.clear()
            fate.unjudged.clear()
            fate.judged = 0
            self._leaves(fate)
        self._look_over()


def _asks(what: str) -> int:
    """How much a reason asks for: of two reasons the one that asks for more counts."""
    return 2 if what in OF_NO_TRIAL else 0 if what in UNTIL_OVER else 1


def _too_many(fate: Fate) -> set[int]:
    """Codes of which too many came within the window, at least the last of them since it was judged."""
    found = set()
    for code in {code for _, code in fate.log[fate.judged :]} - OF_ONE_PROCESS:
        kept = [(number, at) for number, (at, other) in enumerate(fate.log) if other == code][-KEPT:]
        ends = [at for number, at in kept if number >= fate.judged]
        if any(sum(end - WITHIN <= at <= end for _, at in kept) >= TOO_MANY for end in ends):
            found.add(code)
    return found
