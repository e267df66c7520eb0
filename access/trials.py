"""The order of a run: the owner first, then one outsider after the other, then what an owner leaves or hands on."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from access.attached import Attached
from access.kubernetes import Pods
from access.probe_answers import Answer, HandOver, Outcome, Refused, Unanswered, Unsuited
from access.way_verdict import Finding, Trial, has_gpu, judge, left_out
from access.ways import BY_NAME, PLAIN, WAYS, Place, Way
from containers.commands import ContainerFailed
from containers.places import STARTS_WITHIN

OUTSIDERS_WITHIN = 120.0  # seconds until an outsider runs: its image is there already
INIT_CONTAINER, LEFTOVER, HANDED_ON, KEPT_OPEN = _AFTERWARDS = tuple(
    BY_NAME[name] for name in ("init-container", "leftover", "handed-on", "kept-open")
)
Containers = Pods | Attached  # each by its role: "owner", the name of a way, "sharing-owner", and the next owners
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
NO_NODE = "it opened no node that --nodes names"
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
        self.owner()
        for way in filter(self.tries, WAYS):
            if way not in _AFTERWARDS:
                self.note(way, self.outsider(way.name, "owner"))
        left = self.leftover() if self.tries(LEFTOVER) else None
        self.containers.end("owner")
        if self.tries(INIT_CONTAINER):
            self.note(INIT_CONTAINER, self.outsider(INIT_CONTAINER.name, ""))
        if self.tries(HANDED_ON) or self.tries(KEPT_OPEN):
            self.handed_on()
        if left is not None:
            self.note(LEFTOVER, dataclasses.replace(left, known=left.known or self.waits))

    def tries(self, way: Way) -> bool:
        """Whether a way was chosen and exists here; the plain one always."""
        return (way.name in self.chosen or way is PLAIN) and self.place not in way.not_at

    def owner(self) -> None:
        """Start the owner; ContainerFailed unless it opens its own GPU by the same probe."""
        self.tell("owner: a container that is given a GPU")
        outcome: Outcome = self.containers.start("owner") or self.containers.answer("owner", STARTS_WITHIN)
        self.done.owner = outcome
        if not isinstance(outcome, Answer) or not has_gpu(outcome):
            raise ContainerFailed(f"the owner did not get its GPU: {getattr(outcome, 'why', NO_NODE)}")
        self.numbers = ",".join(sorted(outcome.numbers))
        self.ask = self.containers.address("owner")
        self.note_image("image", "owner")

    def outsider(self, role: str, owner: str) -> Outcome:
        """One outsider from its start to its end. ``owner``: who must still run after it; empty: its own pod's."""
        self.tell(f"{role}: {BY_NAME[role].tries}")
        outcome = self.containers.start(role, self.numbers, self.ask)
        answer = outcome or self.containers.answer(role, OUTSIDERS_WITHIN)
        if role == "image-variable":
            self.note_image("variable image", role)
        answered = isinstance(answer, Answer) and answer.owner == "holding"
        in_pod = role in ("second-container", "init-container")  # these wait until the owner answers
        self.reached = self.reached or (answered and not in_pod)
        self.owner_held = (self.containers.runs(owner) if owner else True) and (answered or not in_pod)
        self.containers.end(role)
        return answer

    def leftover(self) -> HandOver | None:
        """The owner is removed while its process may go on. What cannot be judged yet, without the way kept-open."""
        self.tell(f"{LEFTOVER.name}: {LEFTOVER.tries}")
        refused, owner = self.containers.leave_behind(LEFTOVER.name)
        self.numbers = ",".join(sorted(owner.numbers)) if isinstance(owner, Answer) else self.numbers
        answer = refused or self.containers.answer(LEFTOVER.name, HELD_BACK)
        still_open = isinstance(answer, Answer) and answer.owner == "holding"
        known = self.place is Place.SLURM and self.reached  # a job has ended with all of its processes, or they answer
        outcome = self.handed_over(LEFTOVER, answer, "owner", still_open=still_open, known=known)
        if not still_open and not known:
            return outcome
        self.note(LEFTOVER, outcome)
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

    def handed_on(self) -> None:
        """An owner takes part; then it ends, while its node is kept open."""
        containers, way = self.containers, HANDED_ON
        self.tell(f"{way.name}: {way.tries}")
        owner: Outcome = containers.start("sharing-owner") or containers.answer("sharing-owner", OUTSIDERS_WITHIN)
        if not isinstance(owner, Answer) or not has_gpu(owner):
            why = f"the owner that takes part did not get a GPU: {getattr(owner, 'why', NO_NODE)}"
            for each in filter(self.tries, (way, KEPT_OPEN)):
                self.note(each, owner if isinstance(owner, Refused) else Unanswered(why))
            return
        self.numbers = ",".join(sorted(owner.numbers))
        received: Outcome = containers.start(way.name) or containers.answer(way.name, OUTSIDERS_WITHIN)
        self.owner_held = containers.runs("sharing-owner")
        self.note(way, received)
        containers.end("sharing-owner")
        if self.tries(KEPT_OPEN):
            if isinstance(received, Answer) and received.opened and containers.runs(way.name):
                received = self.kept_open(way.name)
            self.note(KEPT_OPEN, received)
        containers.end(way.name)

    def kept_open(self, keeper: str) -> HandOver:
        """Whether the next container gets the GPU while the one with this role keeps its node open."""
        self.tell(f"{KEPT_OPEN.name}: {KEPT_OPEN.tries}")
        answer = self.containers.start(KEPT_OPEN.name) or self.containers.answer(KEPT_OPEN.name, HELD_BACK)
        kept = self.containers.runs(keeper)
        outcome = self.handed_over(KEPT_OPEN, answer, keeper, still_open=kept, known=kept)
        self.waits = kept and not outcome.given and outcome.given_later
        return outcome

    def note_image(self, fact: str, role: str) -> None:
        """The digest alone: the name may be that of a private registry."""
        if found := _DIGEST.search(self.containers.image(role)):
            self.done.facts[fact] = f"sha256:{found[0]}"

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
