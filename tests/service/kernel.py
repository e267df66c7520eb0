"""The fence of a simulated node: what the kernel keeps and answers, with the attempts of ``fence.kernel``.

It outlives the service, and ends with the node. The guard over it is the real one. Kinder than a real one: it tells
each attempt that has room in its ring, however many come, and whoever is in the group of the service is a process of
it. The guard alone is judged over the fence itself: ``tests/fence/guarded.py``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from scrubber.core.model import DeviceNumber
from scrubber.fence.kernel import program
from scrubber.fence.kernel.attempts import Attempt
from scrubber.fence.kernel.fence import Counts, KeptInKernel, Read
from scrubber.node.cgroup_tree import GroupPlace

_ROOM = program.RING_BYTES // (program.ATTEMPT.size + 8)  # attempts in the ring
SERVICE, HOST, PODS = 1, 2, 3  # control groups; those of the pods are below the last one, with higher numbers


@dataclass(frozen=True)
class Rule:
    """To whom a device is open."""

    members: Mapping[int, int]  # what each is
    everybody: bool
    refuse: bool


class Ring:
    """The attempts that nobody has read yet."""

    def __init__(self) -> None:
        self.asked: list[Attempt] = []
        self.sent = 0

    def new(self) -> Iterator[Attempt]:
        """Those since the last call."""
        while self.asked:
            yield self.asked.pop(0)

    def waiting(self) -> bool:
        """Whether there are some."""
        return bool(self.asked)

    def end(self) -> int:
        """How many there were."""
        return self.sent


class Kernel:
    """One boot of a kernel with a fence."""

    def __init__(self, uptime: Callable[[], float]) -> None:
        self.fails = False  # it does not answer
        self.in_between: Callable[[], object] = lambda: (
            None
        )  # called before each rule and reading: others open a device then
        self.removed: set[str] = set()  # containers whose control group was removed
        self.attempts = Ring()
        self._uptime = uptime
        self._groups: dict[str, int] = {}
        self._rules: dict[DeviceNumber, Rule] = {}
        self._not_taken: set[DeviceNumber] = set()  # whose last rule came while it did not answer
        self._counts: defaultdict[DeviceNumber, Counts] = defaultdict(lambda: Counts(0, 0))
        self._kept: dict[DeviceNumber, KeptInKernel] = {}
        self._lease = 0.0

    # -- who opens a device

    def group(self, container: str | None) -> int:
        """The control group of a container, or of the host."""
        return HOST if container is None else self._groups.setdefault(container, PODS + 1 + len(self._groups))

    def place(self, group: int) -> GroupPlace | None:
        """What a control group of a container, or of the service, is."""
        if group == SERVICE:
            return GroupPlace("/autoclave.service", "/autoclave.service", frozenset({group}))
        names = (name for name, number in self._groups.items() if number == group and name not in self.removed)
        return next((GroupPlace(f"/{name}", name, frozenset({group})) for name in names), None)

    def groups_of(self, container: str) -> frozenset[int]:
        """What the service finds of a container's control groups: nothing before the runtime has made one."""
        return frozenset() if container in self.removed else frozenset({self._groups.get(container, 0)} - {0})

    def is_closed(self, number: DeviceNumber) -> bool:
        """Whether it is open to the service alone, and to who is exempt, as far as the kernel took what it was told."""
        rule = self._rules.get(number)
        if rule is None or number in self._not_taken:
            return True
        others = {group for group, role in rule.members.items() if role != program.EXEMPT} - {SERVICE, PODS}
        return not rule.everybody and not others

    def opens(self, number: DeviceNumber, group: int, pid: int) -> bool:
        """Whether a process in this group can open the device. Others than its members are counted."""
        rule = self._rules.get(number)
        if rule is None or rule.members.get(group, program.EXEMPT) != program.EXEMPT:
            return True
        let_in = rule.everybody or group in rule.members
        kept_off = rule.refuse or (group > PODS and PODS in rule.members)
        refused = not let_in and kept_off and self._uptime() < self._lease
        counts = self._counts[number]
        self._counts[number] = Counts(counts.asked + 1, counts.refused + refused)
        if len(self.attempts.asked) < _ROOM:
            self.attempts.sent += 1
            self.attempts.asked.append(Attempt(number, self._uptime(), pid, "python", group, (), refused))
        return not refused

    # -- scrubber.fence.kernel.fence.Fence

    counter = 1  # of all lives: nobody builds another fence

    def stand(self) -> str:
        """Nobody takes it away."""
        return ""

    def still_rules(self, _numbers: Iterable[DeviceNumber]) -> bool:
        """Nobody changes a rule."""
        return True

    def members(self, number: DeviceNumber) -> Mapping[int, int]:
        """Those that can open a device, or could when not everybody could."""
        rule = self._rules.get(number)
        return rule.members if rule is not None else {}

    def set(
        self,
        number: DeviceNumber,
        open_to: Collection[int] | None,
        *,
        refuse: bool,
        held: Collection[int] = (),
        exempt: Collection[int] = (),
        service: int | None = None,
    ) -> None:
        """Let these groups open a device."""
        self.in_between()
        self._not_taken.add(number)
        self._answer()
        self._not_taken.remove(number)
        members = dict(self.members(number)) if open_to is None else dict.fromkeys(open_to, program.OWNER)
        members = dict.fromkeys(held, program.HELD) | members | dict.fromkeys(exempt, program.EXEMPT)
        if service is not None:
            members[service] = program.SERVICE
        self._rules[number] = Rule(members, open_to is None, refuse)

    def numbers(self) -> frozenset[DeviceNumber]:
        """The devices that are fenced."""
        return frozenset(self._rules)

    def forget(self, numbers: Iterable[DeviceNumber]) -> None:
        """Fence these devices no longer."""
        for number in numbers:
            self.miss(number)
            del self._rules[number]

    def miss(self, number: DeviceNumber) -> None:
        """Somebody may have a device open who is not counted."""
        kept = self.kept(number)
        self.keep(number, replace(kept, gaps=kept.gaps + 1))

    def counts(self, number: DeviceNumber) -> Counts:
        """What was counted of a device."""
        self._answer()
        return self._counts[number]

    def read(self, numbers: Iterable[DeviceNumber]) -> Read:
        """What was counted of devices."""
        self.in_between()
        counts, kept = [self.counts(it) for it in numbers], [self.kept(it) for it in numbers]
        passed, refused = sum(it.asked - it.refused for it in counts), sum(it.refused for it in counts)
        return Read(passed, refused, sum(it.ignored for it in kept), sum(it.gaps for it in kept))

    def kept(self, number: DeviceNumber) -> KeptInKernel:
        """What was kept of a device."""
        self._answer()
        return self._kept.get(number, KeptInKernel())

    def keep(self, number: DeviceNumber, kept: KeptInKernel) -> None:
        """Keep this of a device."""
        self._answer()
        self._kept[number] = kept

    def refuse_for(self, seconds: float) -> None:
        """Renew the lease."""
        self._answer()
        self._lease = self._uptime() + seconds

    def _answer(self) -> None:
        if self.fails:
            raise OSError(5, "it does not answer")
