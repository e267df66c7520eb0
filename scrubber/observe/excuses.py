"""Tells which questions about a device are no uses, and remembers who asked the others.

A bystander is recognised while its process runs, by the same rules as a holder. A control group that is exempt may also
have begun after it was last looked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from ground import log, process_names
from scrubber.core.model import Holder
from scrubber.fence.questions import Question
from scrubber.node import clock
from scrubber.node.cgroup_tree import GroupPlace
from scrubber.observe.askers import Askers

logger = log.get("fence")

IsBystander = Callable[[Holder], bool]
_JUDGED_FOR = 1.0  # seconds in which a group that was not exempt is not looked up again
_JUDGED = 256  # groups
_TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds: by so much a process may have started later than /proc says
_RECOGNISED_FOR = 2.0  # seconds in which a bystander that has ended is still known


@dataclass(frozen=True, slots=True)
class Terms:
    """What the policy says of a device."""

    refuse: bool = False  # others, or only count them
    fenced: bool = True
    lease: float = 600.0  # seconds for which others are still refused without the service
    exempt: frozenset[int] = frozenset()  # the control groups that may open it at any time


@dataclass(frozen=True, slots=True)
class Sources:
    """What tells about processes, control groups and the policy."""

    process: Callable[[int], tuple[Holder, ...]]  # a process by its pid; empty if it has ended
    groups: Callable[[str], frozenset[int]]  # the control groups of a pod or container
    bystanders: Callable[[str], IsBystander]  # for each device, who does not count
    terms: Callable[[str], Terms]  # for each device
    read: Callable[[], None]  # which groups there are, and the policy: what ``terms`` says until the next reading
    place: Callable[[int], GroupPlace | None]  # what a control group is; None if it is gone
    runs: Callable[[int], bool]  # whether a process is in a control group, or may be


class Excuses:
    """The excuses of those who ask. A question that nobody could look into has none."""

    def __init__(self, sources: Sources) -> None:
        self.askers = Askers(lambda: clock.now().wall)
        self._sources = sources
        self._judged: dict[int, tuple[float, GroupPlace | None]] = {}  # groups that asked lately, until which uptime
        self._recognised: dict[tuple[int, str, int], float] = {}  # bystanders that asked lately, until this uptime

    def cover(self, uuid: str, question: Question) -> bool:
        """Whether the question is no use of the device."""
        try:
            holder = next(iter(self._sources.process(question.pid)), None)
        except OSError:
            holder = None
        if holder is not None and holder.started > question.uptime - _TICK:
            holder = None  # it may be a later process with this pid
        if self._is_of_bystander(uuid, question, holder):
            return True
        place = self._place(question.group, question.uptime)
        if place is not None and place.groups & self._sources.terms(uuid).exempt:
            return True
        container = (holder and holder.container) or (place and place.container)
        where = container or (place and place.name) or ("no container" if holder is not None else "")
        command = holder.command if holder is not None else question.command
        asker = self.askers.add(uuid, command, question.pid, where, refused=question.refused)
        if asker is not None:
            who = process_names.describe(command, question.pid, where or "it has ended")
            times = {"times": asker.times, "refused": asker.refused}
            logger.warning("a process asked for a GPU that is not its own", device=uuid, process=who, **times)
        return False

    def _is_of_bystander(self, uuid: str, question: Question, holder: Holder | None) -> bool:
        who = (question.pid, question.command, question.group)
        if holder is None:
            recognised = self._recognised.get(who, 0.0) > question.uptime
        else:
            recognised = self._sources.bystanders(uuid)(holder)
        if recognised:
            self._recognised = {it: until for it, until in self._recognised.items() if until > question.uptime}
            self._recognised[who] = question.uptime + _RECOGNISED_FOR
        return recognised

    def _place(self, group: int, uptime: float) -> GroupPlace | None:
        """Where a process ran. Exempt groups are read again for a group that has not asked lately."""
        until, place = self._judged.pop(group, (0.0, None))
        if until <= uptime:
            until, place = uptime + _JUDGED_FOR, self._sources.place(group)
            self._sources.read()
        self._judged[group] = until, place
        if len(self._judged) > _JUDGED:
            del self._judged[next(iter(self._judged))]
        return place
