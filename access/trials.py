"""The order of a run: the owner first, then one outsider after the other, then what an owner leaves or hands on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from access.attached import Attached
from access.kubernetes import Pods
from access.probe_answers import Answer, HandOver, Outcome, Unanswered, Unsuited
from access.way_verdict import Finding, Trial, has_gpu, judge, left_out
from access.ways import BY_NAME, PLAIN, WAYS, Kind, Place, Way
from containers.commands import ContainerFailed
from containers.places import STARTS_WITHIN

OUTSIDERS_WITHIN = 120.0  # seconds until an outsider runs: its image is there already
Containers = Pods | Attached  # each by its role: "owner", the name of a way, "sharing-owner", and the next owners
HELD_BACK = 60.0  # seconds in which the next container must get the GPU, or it is held back; and once more afterwards


@dataclass
class Run:
    """What was found, as far as the run came."""

    owner: Outcome = field(default_factory=lambda: Unanswered("it was not started"))
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    ended_by: BaseException | None = None
    left_behind: str = ""  # why the clean-up failed


def run(place: Place, containers: Containers, chosen: Collection[str], tell: Callable[[Finding | str], None]) -> Run:
    """Try the chosen ways. Nothing is left of it, however it ends, unless ``left_behind`` says so."""
    trials = _Trials(place, containers, chosen, tell, Run())
    done = trials.done
    try:
        containers.begin()
        done.facts = containers.facts()
        trials.all()
    except (ContainerFailed, KeyboardInterrupt) as error:
        done.ended_by = error
    finally:
        try:
            containers.close()
        except ContainerFailed as error:
            done.left_behind = error.why
    tried = {finding.way.name for finding in done.findings}
    why = "it was interrupted before" if isinstance(done.ended_by, KeyboardInterrupt) else "the run ended before"
    done.findings += [trials.finding(way, Unanswered(why)) for way in WAYS if way.name not in tried]
    done.findings.sort(key=lambda finding: WAYS.index(finding.way))
    return done


@dataclass
class _Trials:
    place: Place
    containers: Containers
    chosen: Collection[str]
    tell: Callable[[Finding | str], None]
    done: Run
    plain_ran: bool = False
    owner_held: bool = False
    numbers: str = ""
    ask: str = ""
    reached: bool = False  # an outsider has asked the owner, and the owner has answered
    waits: bool = False  # a GPU was not given on while another process had it open

    def all(self) -> None:
        """Each way, in an order in which one GPU is enough."""
        self.own("owner", STARTS_WITHIN)
        for way in self.to_try(Kind.OUTSIDER, Kind.IN_POD):
            if way.name != "init-container":
                self.note(way, self.outsider(way.name, "owner"))
        leftover, handed_on, kept_open = (BY_NAME[name] for name in ("leftover", "handed-on", "kept-open"))
        left = self.leftover(leftover) if leftover in self.to_try(Kind.HAND_OVER) else None
        self.containers.end("owner")
        for way in self.to_try(Kind.IN_POD):
            if way.name == "init-container":
                self.note(way, self.outsider(way.name, ""))
        if handed_on in self.to_try(Kind.HANDED_ON) or kept_open in self.to_try(Kind.HAND_OVER):
            self.handed_on(handed_on, kept_open)
        if left is not None:
            self.note(leftover, dataclasses.replace(left, known=left.known or self.waits))

    def to_try(self, *kinds: Kind) -> Iterator[Way]:
        """The ways of these kinds that were chosen and exist here; the plain one always."""
        for way in WAYS:
            if way.kind in kinds and (way.name in self.chosen or way is PLAIN) and self.place not in way.not_at:
                yield way

    def own(self, role: str, within: float) -> Answer:
        """Start an owner; ContainerFailed unless it opens its own GPU by the same probe."""
        self.tell(f"{role}: a container that is given a GPU")
        outcome: Outcome = self.containers.start(role) or self.containers.answer(role, within)
        self.done.owner = outcome
        if not isinstance(outcome, Answer) or not has_gpu(outcome):
            why = "it opened no node" if isinstance(outcome, Answer) else getattr(outcome, "why", "")
            raise ContainerFailed(f"the {role} did not get its GPU: {why}")
        self.numbers = ",".join(sorted(outcome.numbers))
        self.ask = self.containers.address(role)
        return outcome

    def outsider(self, role: str, owner: str) -> Outcome:
        """One outsider from its start to its end. ``owner``: who must still run after it; empty: its own pod's."""
        self.tell(f"{role}: {BY_NAME[role].tries}")
        outcome = self.containers.start(role, self.numbers, self.ask)
        answer = outcome or self.containers.answer(role, OUTSIDERS_WITHIN)
        answered = isinstance(answer, Answer) and answer.owner == "holding"
        in_pod = role in ("second-container", "init-container")  # these wait until the owner answers
        self.reached = self.reached or (answered and not in_pod)
        self.owner_held = (self.containers.runs(owner) if owner else True) and (answered or not in_pod)
        self.containers.end(role)
        return answer

    def leftover(self, way: Way) -> HandOver | None:
        """The owner is removed while its process may go on. What cannot be judged yet, without the way kept-open."""
        self.tell(f"{way.name}: {way.tries}")
        refused, owner = self.containers.leave_behind(way.name)
        self.numbers = ",".join(sorted(owner.numbers)) if isinstance(owner, Answer) else self.numbers
        answer = refused or self.containers.answer(way.name, HELD_BACK)
        still_open = isinstance(answer, Answer) and answer.owner == "holding"
        known = self.place is Place.SLURM and self.reached  # a job has ended with all of its processes, or they answer
        outcome = self.handed_over(way, answer, "owner", still_open=still_open, known=known)
        if not still_open and not known:
            return outcome
        self.note(way, outcome)
        return None

    def handed_over(self, way: Way, answer: Outcome, holder: str, *, still_open: bool, known: bool) -> HandOver:
        """How it went. If the next container was not given the GPU, one must get it after the holder's end."""
        given = has_gpu(answer)
        self.containers.end(way.name)
        self.containers.end(holder)
        later = not given and self.given_later(way.name)
        same = isinstance(answer, Answer) and set(self.numbers.split(",")) == answer.numbers
        return HandOver(given=given, same=same, still_open=still_open, known=known, given_later=later)

    def given_later(self, role: str) -> bool:
        """Whether a container gets the GPU within a time: one may come too early, and another one takes its place."""
        ends, number, given = time.monotonic() + HELD_BACK, 1, False
        while not given and time.monotonic() < ends:
            number += 1
            again = f"{role}-{number}"
            given = has_gpu(self.containers.start(again) or self.containers.answer(again, HELD_BACK))
            self.containers.end(again)
        return given

    def handed_on(self, way: Way, then: Way) -> None:
        """An owner that takes part; then the same while its node is kept open."""
        containers = self.containers
        if refused := containers.start("sharing-owner"):
            self.note(way, refused)
            self.note(then, refused)
            return
        self.tell(f"{way.name}: {way.tries}")
        owner = containers.answer("sharing-owner", OUTSIDERS_WITHIN)
        if not isinstance(owner, Answer) or not has_gpu(owner):
            why = f"the owner that takes part did not get a GPU: {getattr(owner, 'why', 'it opened no node')}"
            self.note(way, Unanswered(why))
            self.note(then, Unanswered(why))
            return
        self.numbers = ",".join(sorted(owner.numbers))
        received = containers.start(way.name) or containers.answer(way.name, OUTSIDERS_WITHIN)
        self.owner_held = containers.runs("sharing-owner")
        self.note(way, received)
        containers.end("sharing-owner")
        if self.place not in then.not_at and then.name in self.chosen:
            if isinstance(received, Answer) and received.opened and containers.runs(way.name):
                self.tell(f"{then.name}: {then.tries}")
                answer = containers.start(then.name) or containers.answer(then.name, HELD_BACK)
                kept = containers.runs(way.name)
                outcome = self.handed_over(then, answer, way.name, still_open=kept, known=kept)
                self.waits = kept and not outcome.given and outcome.given_later
                self.note(then, outcome)
            else:
                self.note(then, received)
        containers.end(way.name)

    def note(self, way: Way, outcome: Outcome) -> None:
        """Judge it, and tell."""
        if way is PLAIN:
            self.plain_ran = isinstance(outcome, Answer) and outcome.control
        if way.name in self.chosen or way is PLAIN:
            self.done.findings.append(self.finding(way, outcome))
            self.tell(self.done.findings[-1])

    def finding(self, way: Way, outcome: Outcome) -> Finding:
        """The verdict on a way."""
        if self.place in way.not_at:
            outcome = Unsuited(way.not_at[self.place])
        elif way.name not in self.chosen and way is not PLAIN:
            return left_out(way, "it was left out")
        return judge(Trial(way, outcome, self.owner_held, self.plain_ran))
