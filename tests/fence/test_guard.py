"""The guard over the fence of this machine's kernel: who asks for a device that is not his counts as a use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from demo import groups
from ground.errors import InvalidRequest
from policies.values import FenceMode
from scrubber.core import events as ev
from scrubber.core.fencing import Container, KeptOff, open_to
from scrubber.core.guarded import Guarded, between
from scrubber.core.model import DeviceNumber, Holder, NodeKind, Owner
from scrubber.core.record import Record
from scrubber.core.use_counter import Counted, FenceReading, Missed, UseCounter
from scrubber.fence.guard import Guard
from scrubber.fence.ignored import IgnoredAttempts, Sources, Terms
from scrubber.fence.kernel import bpf, fence
from scrubber.fence.kernel.attempts import Attempt
from scrubber.fence.kernel.fence import Fence
from scrubber.fence.live_openers import Answer
from scrubber.node import proc
from scrubber.node.cgroup_tree import GroupIds, Tree
from scrubber.node.new_groups import NewGroups
from scrubber.node.processes import Processes
from scrubber.observe.observed_since import Use, compared
from tests.control_groups import FULL, OPENS, foreign, group, identity, made_group, owner, run, standing
from tests.core import lives
from tests.patience import WITHIN

__all__ = ["foreign", "group", "owner", "standing"]  # fixtures

DEVICE = lives.DEVICE.uuid
FULL_ONLY = {DEVICE: frozenset({FULL})}
ZERO = DeviceNumber(NodeKind.CHARACTER, 1, 5)  # /dev/zero


class Asking:
    """A guard of /dev/full, and what it is told about processes and pods."""

    def __init__(
        self, standing: Fence, service: Path, owner: Path, *exempt: Path, new_groups: NewGroups | None = None
    ) -> None:  # fmt: skip
        self.bystanders = set[str]()
        self.started = 0.0
        processes = Processes(Path("/proc"), lambda _pid: None, whole_node=True)
        self.found: Callable[[int], tuple[Holder, ...]] = processes.process
        self.groups = {lives.A: frozenset({identity(owner)})}
        self.terms = Terms()
        self.exempt = set(exempt)  # control groups, by the next reading
        self._exempt = frozenset[int]()
        self.named = set[str]()  # places with the name of an exempt unit
        self.ours = set[int]()  # processes that the service has started
        self.sources = Sources(
            lambda pid: self.found(pid),  # noqa: PLW0108 - a test may put another one there later
            lambda pod: self.groups.get(pod, frozenset()),
            lambda _uuid: self._is_bystander,
            lambda _uuid: replace(self.terms, exempt=self._exempt, names=self.named.__contains__),
            self._read,
            Tree(fence.root()).place,
            Tree(fence.root()).runs,
            Tree(fence.root()).is_gone,
            lambda pid: pid in self.ours,
            pids_are_free=lambda: proc.pids_are_free(Path("/proc")),
        )
        self.guard = Guard(standing, identity(service), self.sources, new_groups=new_groups)
        self.guard.start()

    def _read(self) -> None:
        self._exempt = frozenset(identity(place) for place in self.exempt if place.exists())

    def _is_bystander(self, holder: Holder) -> bool:
        return holder.command in self.bystanders

    def keep(self, record: Record, numbers: dict[str, frozenset[DeviceNumber]] = FULL_ONLY) -> None:
        self.guard.rules.learn(numbers)
        self.guard.openers.began(record, open_to(record), time.clock_gettime(time.CLOCK_BOOTTIME))
        self.guard.rules.changed(record.device.uuid, open_to(record))

    def said(self) -> Counted:
        said = self.guard.count.read(DEVICE)
        assert isinstance(said, Counted)
        assert said.by is UseCounter.FENCE
        self.until_looked_up()
        return said

    def until_looked_up(self) -> None:
        """Wait until it is known who has asked in vain: no use counter does."""
        ends = time.monotonic() + WITHIN
        while self._looks_up():
            assert time.monotonic() < ends
            time.sleep(0.001)

    def _looks_up(self) -> bool:
        with self.guard._reader.judging:  # who reads has some in its hands
            return bool(self.guard._reader._refused) or self.guard._fence.attempts.waiting()

    def uses(self) -> int:
        return self.said().uses

    def reading(self) -> FenceReading:
        said = self.guard.count.read(DEVICE)
        assert isinstance(said, Counted)
        assert said.fence is not None
        return said.fence


@pytest.fixture
def service(group: Path) -> Path:
    """The control group of the service."""
    return made_group(group / "service")


@pytest.fixture
def asking(standing: Fence, service: Path, owner: Path) -> Iterator[Asking]:
    made = Asking(standing, service, owner)
    yield made
    made.guard.close()


def test_a_short_use_of_a_clean_device_counts(
    asking: Asking, foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asking.keep(lives.CLEAN)
    assert asking.uses() == 0
    for _ in range(5):
        before = asking.uses()
        assert run(foreign, OPENS) == "opened"
        assert asking.uses() > before
    assert '"python' in capsys.readouterr().out


def test_the_service_itself_does_not_count(asking: Asking, service: Path) -> None:
    asking.keep(lives.CLEAN)
    with opener(service) as (pid, opens):
        asking.guard.rules.admit_process(pid)
        opens()
        assert asking.uses() == 0
        asking.guard.rules.dismiss_process(pid)
        opens()
        assert asking.uses() > 0, "a later process may have its number"


def test_others_in_the_group_of_the_service_count(asking: Asking, service: Path) -> None:
    """A privileged container with the control groups of the host can write itself into any of them."""
    asking.terms = Terms(refuse=True)
    asking.keep(lives.CLEAN)
    assert run(made_group(service / "below"), OPENS) == "opened", "a tool of the service must not be refused"
    assert asking.uses() > 0
    (live,) = asking.guard.openers.of(DEVICE)
    assert live.opener.refused == 0


def test_a_tool_of_the_service_does_not_count(asking: Asking, service: Path, foreign: Path) -> None:
    asking.keep(lives.CLEAN)
    with opener(service) as (pid, opens):
        asking.ours = {pid}
        opens()
        assert asking.uses() == 0
    assert asking.guard.openers.of(DEVICE) == ()
    with opener(foreign) as (pid, opens):
        asking.ours = {pid}
        opens()
        assert asking.uses() > 0, "it has left the group of the service"


def test_an_owner_counts_before_and_after_its_tenancy(asking: Asking, owner: Path) -> None:
    counted = []
    for record in (lives.GRANTED, lives.IN_USE, lives.DIRTY):
        asking.keep(record)
        before = asking.uses()
        run(owner, OPENS)
        counted.append(asking.uses() > before)
    assert counted == [True, False, True]


def test_a_pod_without_a_known_group_opens_nothing(asking: Asking, foreign: Path) -> None:
    asking.terms = Terms(refuse=True)
    asking.keep(lives.IN_USE_BY_B)
    assert run(foreign, OPENS) == "refused"
    asking.groups[lives.B] = frozenset({identity(foreign)})
    asking.guard.rules.renew()
    assert run(foreign, OPENS) == "opened"
    assert asking.uses() == 1, "it is a gap, once"


UID = "0f5b4c5e-0000-4000-8000-00000000000b"
OF_POD = lives.live(lives.GRANTED, ev.PutInUse(Owner(UID, lives.NOW, seen=True)))
TWICE = f"{OPENS}\n{OPENS}"  # the kernel sends the first refused attempt only


def during(asking: Asking, happens: Callable[[], object], *, refuse: bool = True) -> Guarded:
    """What the fence says about a tenancy of a pod whose control group is made after its beginning."""
    asking.terms = Terms(refuse=refuse)
    asking.keep(lives.CLEAN)
    before = asking.reading()  # of the look that the row rests on
    asking.keep(OF_POD)
    happens()
    return between(before, asking.reading())


def is_found(asking: Asking, group: Path) -> None:
    """The group of a pod can be found from now on, as on a node."""
    found = GroupIds(group)
    asking.sources = replace(asking.sources, groups=found.of)
    for part in (asking.guard.rules, asking.guard.rules._owners, asking.guard._reader, asking.guard._reader._ignored):
        part._sources = asking.sources


@pytest.mark.parametrize("refuse", [True, False], ids=["refused", "watched"])
def test_a_pod_whose_group_comes_late_is_no_other(asking: Asking, group: Path, foreign: Path, *, refuse: bool) -> None:
    is_found(asking, group)

    def opens() -> None:
        run(groups.of_container(group, UID), OPENS)
        run(groups.of_container(group, UID), OPENS)
        run(foreign, OPENS)

    said = during(asking, opens, refuse=refuse)
    assert (said.why, said.gaps > 0) == ("", True)
    asking.guard.rules.renew()
    before = asking.reading()
    assert run(groups.of_container(group, UID), OPENS) == "opened"
    assert between(before, asking.reading()).let_through == 0, "its group is known now"
    asking.keep(lives.DIRTY)
    assert run(groups.of_container(group, UID), OPENS) == ("refused" if refuse else "opened")
    said = between(before, asking.reading())
    assert said.let_through + said.refused == 1, "after its tenancy it is one of the others"


def test_others_before_the_group_of_a_pod_is_known_count(asking: Asking, foreign: Path) -> None:
    said = during(asking, lambda: run(foreign, OPENS))
    assert (said.refused, said.why) == (1, "")


def test_whom_an_earlier_service_let_in_is_not_the_owner(asking: Asking, standing: Fence, foreign: Path) -> None:
    """It let in itself, for example."""
    standing.set(FULL, {identity(foreign)}, refuse=True)
    asking.terms = Terms(refuse=True)
    asking.guard.rules.changed(DEVICE, Container(UID))
    asking.guard.rules.learn(FULL_ONLY)
    before = asking.reading()
    run(foreign, OPENS)
    assert between(before, asking.reading()).refused == 1


def test_a_node_whose_pods_have_no_groups_counts_all(asking: Asking, foreign: Path) -> None:
    """Those with version 1 of control groups: nobody can be told from the owner."""
    asking.terms = Terms(pods_have_groups=False)
    asking.keep(lives.IN_USE_BY_B)
    assert asking.guard.rules.pods_share_groups
    assert asking.guard.rules.opens_to_all(DEVICE)
    run(foreign, OPENS)
    assert asking.uses() > 0


def test_a_group_that_is_removed_opens_nothing(asking: Asking, foreign: Path, standing: Fence, service: Path) -> None:
    """Its pod has ended, and what it left is still in the memory. Also the next run of the service knows that."""
    refused(asking)
    asking.keep(lives.IN_USE)
    asking.groups.clear()
    asking.guard.rules.renew()
    assert run(foreign, OPENS) == "refused"
    following = Guard(standing, identity(service), asking.sources)
    following.rules.changed(DEVICE, open_to(lives.IN_USE))
    following.rules.learn(FULL_ONLY)
    assert run(foreign, OPENS) == "refused"


def test_a_pod_whose_group_is_removed_has_left(asking: Asking, standing: Fence, service: Path, owner: Path) -> None:
    """Also one that nobody has seen, and also for the next service."""
    asking.keep(lives.GRANTED)
    assert not asking.guard.rules.owner_left(DEVICE)
    asking.keep(lives.IN_USE)
    assert not asking.guard.rules.owner_left(DEVICE)
    owner.rmdir()
    asking.groups.clear()
    following = Guard(standing, identity(service), asking.sources)
    following.rules.changed(DEVICE, open_to(lives.IN_USE))
    following.rules.learn(FULL_ONLY)
    assert following.rules.owner_left(DEVICE)
    asking.guard.rules.renew()
    assert asking.guard.rules.owner_left(DEVICE)
    asking.keep(lives.CLEAN)
    assert not asking.guard.rules.owner_left(DEVICE)


def of_a_job(group: Path) -> Record:
    grant = replace(lives.grant(lives.CLEAN, announced=False), until_release=True, owner="job 7", group=identity(group))
    return lives.live(lives.CLEAN, ev.Granted(grant))


def test_a_jobs_device_is_open_to_its_group_alone(asking: Asking, group: Path, foreign: Path) -> None:
    asking.terms = Terms(refuse=True)
    job = made_group(group / "job")
    asking.keep(of_a_job(job))
    step = made_group(job / "step")
    assert (run(job, OPENS), run(step, OPENS), asking.guard.openers.of(DEVICE)) == ("opened", "opened", ())
    assert run(foreign, OPENS) == "refused"
    step.rmdir()
    job.rmdir()
    asking.guard.rules.renew()
    assert run(made_group(job), OPENS) == "refused", "a later group with its name is another one"


def of_a_claim(*pods: str) -> Record:
    return lives.live(lives.OF_CLAIM, ev.LetIn(pods), ev.PutInUse(Owner(lives.A, lives.NOW, seen=True)))


def test_a_claims_device_is_open_to_its_pods_alone(asking: Asking, owner: Path, foreign: Path, group: Path) -> None:
    refused(asking)
    second = made_group(group / "second")
    asking.keep(of_a_claim(lives.A, lives.B))
    assert [run(place, OPENS) for place in (owner, second, foreign)] == ["opened", "refused", "refused"]
    asking.groups[lives.B] = frozenset({identity(second)})
    asking.guard.rules.renew()
    assert [run(place, OPENS) for place in (owner, second, foreign)] == ["opened", "opened", "refused"]
    assert (asking.uses(), sum(it.opener.refused > 0 for it in asking.guard.openers.of(DEVICE))) == (0, 2)
    asking.keep(of_a_claim())
    assert [run(place, OPENS) for place in (owner, second, foreign)] == ["refused", "refused", "refused"]


@pytest.mark.parametrize(("stays", "uses"), [(True, 1), (False, 0)])
def test_a_pod_that_leaves_its_claim_may_have_the_device(
    asking: Asking, owner: Path, group: Path, *, stays: bool, uses: int
) -> None:
    """While another pod of the claim stays."""
    refused(asking)
    second = made_group(group / "second")
    asking.groups[lives.B] = frozenset({identity(second)})
    asking.keep(of_a_claim(lives.A, lives.B))
    with keeping(owner):
        if stays:
            asking.keep(of_a_claim(lives.B))
    asking.keep(of_a_claim(lives.B))
    assert (run(owner, OPENS), run(second, OPENS), asking.uses()) == ("refused", "opened", uses)


def test_a_later_service_lets_in_the_pods_of_a_claim(
    asking: Asking, standing: Fence, service: Path, owner: Path, foreign: Path
) -> None:
    refused(asking)
    asking.keep(of_a_claim(lives.A))
    following = Guard(standing, identity(service), asking.sources)
    following.rules.changed(DEVICE, open_to(of_a_claim(lives.A)))
    following.rules.learn(FULL_ONLY)
    assert (run(owner, OPENS), run(foreign, OPENS)) == ("opened", "refused")


def test_only_a_group_without_the_service_has_devices(asking: Asking, group: Path, service: Path) -> None:
    job = made_group(group / "job")
    asking.guard.places.demand_tenant(identity(job))
    for place in (service, group, fence.root()):
        with pytest.raises(InvalidRequest, match="holds the scrub service"):
            asking.guard.places.demand_tenant(identity(place))
    gone = identity(job)
    job.rmdir()
    with pytest.raises(InvalidRequest, match="is gone"):
        asking.guard.places.demand_tenant(gone)


OPENS_AGAIN = """
print('ready', flush=True)
for line in sys.stdin:
    os.close(os.open('/dev/full', os.O_RDONLY))
    print('opened', flush=True)
"""


@contextmanager
def opener(place: Path) -> Iterator[tuple[int, Callable[[], None]]]:
    """A process in this control group, and what makes it open the device. Its name is that of its program."""
    enter = f"import os, sys; open({str(place / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    command = [sys.executable, "-S", "-c", enter + OPENS_AGAIN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:

        def opens() -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            assert process.stdout.readline() == "opened\n"

        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"  # Popen returns before the process has its name
        yield process.pid, opens
        process.stdin.close()


@pytest.mark.parametrize("is_exempt", [False, True])
def test_a_bystander_does_not_count(asking: Asking, foreign: Path, *, is_exempt: bool) -> None:
    asking.exempt = {foreign} if is_exempt else set()
    asking.keep(lives.CLEAN)
    asking.guard.rules.renew()
    with opener(foreign) as (pid, opens):
        asking.bystanders = {Path(f"/proc/{pid}/comm").read_text().strip()}
        for _ in range(2):
            opens()
            assert asking.uses() == 0
        (live,) = asking.guard.openers.of(DEVICE)
        assert (live.ignored, live.opener.exempt) == (True, is_exempt), "who is let in, or would be refused, is named"
        assert not asking.guard.openers.asked(DEVICE)
        asking.bystanders = set()
        opens()
        assert asking.uses() > 0


def test_a_bystander_may_open_a_device_at_its_start(asking: Asking, foreign: Path) -> None:
    """As a program does that a script starts: within the hundredth of a second in which it was started."""
    asking.keep(lives.CLEAN)
    asking.bystanders = {"dd"}
    enter = f"echo $$ > {foreign / 'cgroup.procs'}; dd if=/dev/full of=/dev/null 2>/dev/null"
    for _ in range(5):  # it needs longer at times
        before = asking.guard.openers.attempts
        with subprocess.Popen(["/bin/sh", "-c", enter], start_new_session=True) as shell:
            try:
                ends = time.monotonic() + WITHIN
                while asking.guard.openers.attempts == before:
                    assert time.monotonic() < ends
                    time.sleep(0.001)
                assert asking.uses() == 0
            finally:
                os.killpg(shell.pid, signal.SIGKILL)


def test_a_fence_that_was_taken_away_counts_as_used(asking: Asking, group: Path, foreign: Path) -> None:
    asking.keep(lives.CLEAN)
    asking.guard.count.proven(DEVICE, "proof-1", asking.uses())
    fence.take_down(group)
    run(foreign, OPENS)
    assert (said := asking.said()).uses == 1
    assert said.missed == "somebody had taken the fence out of the kernel", "nobody is blamed for a use"
    assert asking.guard.count.at_proof(DEVICE, "proof-1") == Counted(UseCounter.FENCE, 0)
    assert run(foreign, OPENS) == "opened"
    assert (said := asking.said()).uses > 1, "it stands again"
    assert said.missed == ""


def test_a_fence_that_somebody_keeps_detached_stands_again(asking: Asking, group: Path, foreign: Path) -> None:
    """Then the kernel has the program still, and nobody is asked about."""
    refused(asking)
    asking.keep(lives.CLEAN)
    before, opened = asking.uses(), os.open(group, os.O_RDONLY)
    [attached] = bpf.attached(opened, fence.NAME)
    with bpf.by_id(attached.id):
        fence.take_down(group)
        asking.guard.rules.renew()
        assert run(foreign, OPENS) == "refused"
        assert asking.uses() == before + 1
    os.close(opened)


# A program that says yes after our no: ``bpf_set_retval(0); return 1``.
OVERRULES = bytes.fromhex("b701000000000000 85000000bb000000 b700000001000000 9500000000000000")


def test_a_later_program_that_overrules_the_fence_is_a_gap(asking: Asking, group: Path, foreign: Path) -> None:
    """The count alone would say of an open that succeeds that it was refused."""
    refused(asking)
    asking.keep(lives.CLEAN)
    before, opened = asking.reading(), os.open(group, os.O_RDONLY)
    later = bpf.load("later", OVERRULES)
    bpf.attach(opened, later)
    assert run(foreign, OPENS) == "opened"
    said = asking.said()
    assert said.missed == "another program could let in whom the fence refuses"
    assert said.fence is not None
    assert (said.fence.passed, said.fence.gaps) == (before.passed, before.gaps + 1)
    assert run(foreign, OPENS) == "refused", "the fence answers last again"
    assert asking.reading().gaps == said.fence.gaps
    for it in (opened, later):
        os.close(it)


def test_the_fence_taken_away_for_a_moment_is_a_gap(asking: Asking, group: Path, foreign: Path) -> None:
    """The same program, with the same number, stands at its place again."""
    refused(asking)
    asking.keep(lives.CLEAN)
    before, opened = asking.reading(), os.open(group, os.O_RDONLY)
    if bpf.in_order(opened)[1] == 0:
        pytest.skip("the kernel does not say how often its programs were changed: Linux 6.17 does")
    [attached] = bpf.attached(opened, fence.NAME)
    with bpf.by_id(attached.id) as loaded:
        bpf.detach(opened, attached.id)
        assert run(foreign, OPENS) == "opened"
        bpf.attach(opened, loaded)
    assert asking.reading().gaps == before.gaps + 1
    os.close(opened)


def test_uses_are_counted_on_when_a_device_is_forgotten(asking: Asking, foreign: Path) -> None:
    """As while the driver's module is loaded again. Who has used it meanwhile is not known."""
    asking.keep(lives.CLEAN)
    run(foreign, OPENS)
    before = asking.uses()
    asking.guard.rules.learn({DEVICE: frozenset()})
    assert asking.guard.count.read(DEVICE) is None
    asking.guard.rules.learn(FULL_ONLY)
    again = asking.uses()
    assert again > before
    run(foreign, OPENS)
    assert asking.uses() > again


def test_a_device_with_another_number_may_have_been_used(asking: Asking, foreign: Path) -> None:
    asking.keep(lives.CLEAN)
    run(foreign, OPENS)
    before = asking.said()
    asking.guard.count.proven(DEVICE, "proof-1", before.uses)
    asking.guard.rules.learn({DEVICE: frozenset({ZERO})})
    now = asking.said()
    assert compared(before, now) == (now, Use())
    assert asking.guard.count.at_proof(DEVICE, "proof-1") is None
    run(foreign, OPENS.replace("full", "zero"))
    assert asking.uses() > now.uses


def test_a_number_of_two_devices_guards_neither(asking: Asking) -> None:
    asking.keep(lives.CLEAN)
    asking.guard.rules.learn({DEVICE: frozenset({FULL}), "GPU-2": frozenset({FULL})})
    assert asking.guard.count.read(DEVICE) is None


def test_a_rule_that_the_kernel_refuses_counts_as_used(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    asking.keep(lives.CLEAN)
    assert asking.uses() == 0

    def full(*_arguments: object, **_more: object) -> None:
        raise OSError(7, "Argument list too long")

    with monkeypatch.context() as broken:
        broken.setattr(Fence, "set", full)
        asking.keep(lives.IN_USE)
        assert isinstance(asking.guard.count.read(DEVICE), Missed)
        assert "does not take the rule" in asking.guard.rules.lacks(DEVICE)
    assert asking.uses() == 1
    assert asking.guard.rules.lacks(DEVICE) == ""


def test_a_later_process_with_the_pid_is_not_ignored(asking: Asking, foreign: Path) -> None:
    asking.keep(lives.CLEAN)
    asking.started = time.clock_gettime(time.CLOCK_BOOTTIME) + 60
    asking.bystanders = {"python"}
    asking.found = lambda pid: (Holder(pid, asking.started, "python", None),)
    run(foreign, OPENS)
    assert asking.uses() > 0


def test_a_later_service_learns_of_uses_before_its_start(
    group: Path, service: Path, owner: Path, foreign: Path
) -> None:
    """The kernel counts on. Bystanders of before stay ignored."""
    first = Asking(Fence(group), service, owner)
    first.keep(lives.CLEAN)
    first.guard.count.proven(DEVICE, "proof-1", first.uses())
    first.guard.close()
    for proof, asked, uses in (("proof-1", False, 0), ("proof-2", False, None), ("proof-1", True, 0)):
        if asked:
            run(foreign, OPENS)
        later = Asking(Fence(group), service, owner)
        later.keep(lives.CLEAN)
        then = later.guard.count.at_proof(DEVICE, proof)
        assert (then.uses if then is not None else None) == uses
        assert (later.uses() > 0) is asked
        later.guard.close()


def test_a_proof_of_an_earlier_run_holds_for_its_numbers(group: Path, service: Path, owner: Path) -> None:
    """Nobody has counted those that came meanwhile, as when another module of the driver is loaded."""
    first = Asking(Fence(group), service, owner)
    first.keep(lives.CLEAN)
    first.guard.count.proven(DEVICE, "proof-1", first.uses())
    first.guard.close()
    later = Asking(Fence(group), service, owner)
    later.guard.rules.learn({DEVICE: frozenset({FULL, ZERO})})
    assert later.guard.count.at_proof(DEVICE, "proof-1") is None
    later.guard.close()


def test_a_device_without_numbers_is_not_guarded(asking: Asking, foreign: Path) -> None:
    asking.keep(lives.CLEAN)
    asking.keep(lives.CLEAN, {})
    run(foreign, OPENS)
    assert asking.guard.count.read(DEVICE) is None
    assert "no device file" in asking.guard.rules.lacks(DEVICE)


@pytest.mark.parametrize("gap", ["no gap", "taken down", "another rule", "lease over"])
def test_since_when_a_fence_stands_ends_with_a_gap(
    asking: Asking, group: Path, monkeypatch: pytest.MonkeyPatch, gap: str
) -> None:
    refused(asking)
    asking.keep(lives.CLEAN)
    asking.guard.rules.renew()
    since = asking.guard.rules.stands_since
    if gap == "taken down":
        fence.take_down(group)
    elif gap == "another rule":
        another = Fence(group)
        another.forget([FULL])
        another.close()
    elif gap == "lease over":
        later = time.clock_gettime(time.CLOCK_BOOTTIME) + asking.terms.lease + 1
        monkeypatch.setattr(time, "clock_gettime", lambda _clock: later)
    asking.guard.count.read(DEVICE)
    asking.guard.rules.renew()
    assert (asking.guard.rules.stands_since > since) is (gap != "no gap")


def refused(asking: Asking) -> Terms:
    asking.terms = Terms(refuse=True)
    return asking.terms


def test_a_refused_attempt_is_no_use(asking: Asking, foreign: Path) -> None:
    """Otherwise anybody could end the proofs of a node by asking."""
    refused(asking)
    asking.keep(lives.CLEAN)
    assert run(foreign, OPENS) == "refused"
    assert asking.uses() == 0
    (live,) = asking.guard.openers.of(DEVICE)
    assert live.opener.times == live.opener.refused > 0
    assert asking.guard.openers.asked(DEVICE) == {Answer(refused=True, held=False): live.opener.refused}


def test_who_was_refused_is_known_after_a_stop(asking: Asking, foreign: Path) -> None:
    """A later service cannot read the attempt again."""
    refused(asking)
    asking.keep(lives.CLEAN)
    asking.guard._reader.looks_again = time.monotonic() + 2 * WITHIN
    assert run(foreign, OPENS) == "refused"
    ends = time.monotonic() + WITHIN
    while not asking.guard._reader._refused:
        assert time.monotonic() < ends
        time.sleep(0.001)
    asking.guard.close()
    assert asking.guard.openers.of(DEVICE)


def test_an_attempt_in_a_tenancy_is_counted_apart(asking: Asking, foreign: Path) -> None:
    refused(asking)
    asking.keep(lives.IN_USE)
    with asking.guard._reader.judging:  # it is read after the end of the tenancy
        assert run(foreign, OPENS) == "refused"
        asking.keep(lives.DIRTY)
    asking.until_looked_up()
    assert {*asking.guard.openers.asked(DEVICE)} == {Answer(refused=True, held=True)}


def test_a_running_guard_renews_the_lease(asking: Asking, group: Path, foreign: Path, standing: Fence) -> None:
    standing.refuse_for(-1)
    refused(asking)
    asking.keep(lives.CLEAN)
    assert run(foreign, OPENS) == "refused", "from the moment at which the devices are known"
    standing.refuse_for(-1)
    assert run(foreign, OPENS) == "opened"
    asking.guard.rules.renew()
    assert run(foreign, OPENS) == "refused"
    stands = fence.inspect(group)
    assert stands is not None
    assert 0 < asking.terms.lease - stands.lease < 60


def test_watching_gives_no_lease(asking: Asking, group: Path, standing: Fence) -> None:
    standing.refuse_for(-1)
    asking.keep(lives.CLEAN)
    asking.guard.rules.renew()
    stands = fence.inspect(group)
    assert stands is not None
    assert stands.lease == 0
    assert [(rule.device, rule.refuse) for rule in stands.rules] == [(FULL, False)]


def test_another_policy_comes_into_force_with_the_next_round(asking: Asking, foreign: Path) -> None:
    asking.keep(lives.CLEAN)
    for terms, said, kept_off, closed in (
        (Terms(refuse=True), "refused", KeptOff.ALL, True),
        (Terms(held=frozenset({identity(foreign)})), "refused", KeptOff.PODS, True),
        (Terms(held=frozenset()), "opened", KeptOff.PODS, False),
        (Terms(), "opened", KeptOff.NONE, False),
        (Terms(fenced=False), "opened", None, False),
    ):
        asking.terms = terms
        asking.guard.rules.renew()
        assert run(foreign, OPENS) == said
        assert (asking.guard.rules.kept_off(DEVICE), asking.guard.rules.keeps_out(DEVICE)) == (kept_off, closed)
    assert asking.guard.count.read(DEVICE) is None


def test_others_are_kept_out_for_the_lease_only(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    asking.keep(lives.CLEAN)
    asking.terms = Terms(refuse=True, lease=60.0)
    asking.guard.rules.renew()
    renewed = time.clock_gettime(time.CLOCK_BOOTTIME)
    for after, refuses in ((59.0, True), (61.0, False)):
        with monkeypatch.context() as later:
            later.setattr(time, "clock_gettime", lambda _clock, now=renewed + after: now)
            assert asking.guard.rules.keeps_out(DEVICE) is refuses
            lacks = "" if refuses else "the service has not renewed the lease of the fence"
            assert (asking.guard.rules.lacks(DEVICE), asking.guard.rules.lease_left > 0) == (lacks, refuses)


def test_a_device_that_was_not_fenced_may_have_been_used(group: Path, service: Path, owner: Path) -> None:
    """Also by a service that has ended since, and whose policy was another one."""
    for fenced, used in ((True, False), (False, None), (True, True)):
        one = Asking(Fence(group), service, owner)
        one.terms = Terms(fenced=fenced)
        one.keep(lives.CLEAN)
        if used is not None:
            then = one.guard.count.at_proof(DEVICE, "proof-1")
            assert (one.uses() > (then.uses if then is not None else 0)) is used
            one.guard.count.proven(DEVICE, "proof-1", one.uses())
        one.guard.close()


def test_an_exempt_group_is_let_in_and_counted(asking: Asking, foreign: Path) -> None:
    """Its namespace or unit lets it in. Nobody but a program of the list is no user."""
    refused(asking)
    asking.exempt = {foreign}
    asking.keep(lives.CLEAN)
    asking.guard.rules.renew()
    assert run(made_group(foreign / "below"), OPENS) == "opened"
    assert asking.uses() > 0
    (live,) = asking.guard.openers.of(DEVICE)
    assert (live.opener.exempt, live.opener.refused) == (True, 0)


def test_a_unit_that_asked_before_it_was_exempt_is_exempt(asking: Asking, foreign: Path) -> None:
    """A plan that says otherwise would lead somebody to take it out of the values again."""
    asking.keep(lives.CLEAN)
    run(foreign, OPENS)
    asking.uses()
    (live,) = asking.guard.openers.of(DEVICE)
    assert not asking.guard.places.exempts(DEVICE, "", live.opener.place)
    asking.exempt = {foreign}
    asking.guard.rules.renew()
    assert asking.guard.places.exempts(DEVICE, "", live.opener.place)
    assert not asking.guard.places.exempts(DEVICE, "", "/another.service")
    assert asking.guard.places.exempts(DEVICE, "", f"{live.opener.place}/below"), "as the kernel has it"
    assert not asking.guard.places.exempts(DEVICE, "", f"{live.opener.place}-2")
    asking.exempt = set()
    asking.guard.rules.renew()
    assert not asking.guard.places.exempts(DEVICE, "", live.opener.place, before=True)


def test_a_unit_that_has_ended_is_exempt_by_its_name(asking: Asking) -> None:
    asking.named = {"/system.slice/check.service"}
    for before in (True, False):
        assert asking.guard.places.exempts(DEVICE, "", "/system.slice/check.service", before=before) is before
    assert not asking.guard.places.exempts(DEVICE, "", "/system.slice/other.service", before=True)


def test_a_container_is_exempt_by_the_group_above_it(asking: Asking, foreign: Path) -> None:
    asking.groups["container:ab"] = frozenset({identity(made_group(foreign / "container"))})
    for exempt in (True, False):
        asking.exempt = {foreign} if exempt else set()
        asking.guard.rules.renew()
        assert asking.guard.places.exempts(DEVICE, "", "container:ab", before=True) is exempt
    assert not asking.guard.places.exempts(DEVICE, "", "", before=True)


def test_a_group_exempt_since_the_last_round_is_refused_once(asking: Asking, foreign: Path) -> None:
    refused(asking)
    asking.keep(lives.CLEAN)
    asking.exempt = {foreign}
    assert run(foreign, OPENS) == "refused"
    asking.uses()
    assert run(foreign, OPENS) == "opened"


def test_an_exempt_group_is_let_in_when_it_is_made(
    standing: Fence, service: Path, owner: Path, group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = Asking(standing, service, owner, group / "late", new_groups=NewGroups(group, tmp_path))
    refused(asking)
    asking.keep(lives.CLEAN)
    write, is_let_in = standing.set, threading.Event()

    def written(*args: Any, exempt: Collection[int], **kwargs: Any) -> None:  # noqa: ANN401 - passed on
        write(*args, exempt=exempt, **kwargs)
        if exempt:
            is_let_in.set()

    monkeypatch.setattr(standing, "set", written)
    made_group(group / "late")
    is_let_in.wait()
    assert run(group / "late", OPENS) == "opened"
    asking.guard.close()


def test_a_job_below_an_exempt_group_does_not_count(asking: Asking, group: Path) -> None:
    exempt = made_group(group / "user")
    asking.exempt = {exempt}
    job = made_group(exempt / "job")
    asking.keep(of_a_job(job))
    asking.guard.rules.renew()
    run(job, OPENS)
    assert asking.uses() == 0


KEEPS = "keeps = os.open('/dev/full', os.O_RDONLY)\nprint('opened', flush=True)\nsys.stdin.read()"


@contextmanager
def keeping(place: Path) -> Iterator[None]:
    """While a process in this control group has the device open."""
    enter = f"import os, sys; open({str(place / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    command = [sys.executable, "-S", "-c", enter + KEEPS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "opened\n"
        yield
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize(("stays", "uses"), [(True, 1), (False, 0)])
def test_an_earlier_owner_that_runs_may_have_the_device(asking: Asking, group: Path, *, stays: bool, uses: int) -> None:
    job = made_group(group / "job")
    asking.keep(of_a_job(job))
    with keeping(made_group(job / "step")):
        if stays:
            asking.keep(lives.CLEAN)
    asking.keep(lives.CLEAN)
    assert asking.uses() == uses
    asking.guard.rules.renew()
    assert asking.uses() == uses


def test_a_gap_of_two_nodes_is_one_line(asking: Asking, owner: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_nodes = {DEVICE: frozenset({FULL, ZERO})}
    asking.keep(lives.IN_USE, two_nodes)
    with keeping(owner):
        asking.keep(lives.CLEAN, two_nodes)
    assert capsys.readouterr().out.count("the fence may have missed somebody") == 1


def test_many_attempts_of_a_program_are_one_line(
    asking: Asking, foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named by its control group, also after its end."""
    asking.found = lambda _pid: ()
    asking.keep(lives.CLEAN)
    unit = made_group(foreign / "telegraf.service")
    for _ in range(5):
        run(unit, OPENS)
        asking.uses()
    (live,) = asking.guard.openers.of(DEVICE)
    assert (live.opener.place.endswith("/foreign/telegraf.service"), live.opener.refused) == (True, 0)
    assert live.opener.times >= 5
    lines = [line for line in capsys.readouterr().out.splitlines() if "asked for a GPU" in line]
    assert len(lines) == 1
    assert "telegraf.service" in lines[0]


FLOODS = """
import time
until = time.monotonic() + 1000
print('ready', flush=True)
while time.monotonic() < until:
    try: os.close(os.open('/dev/full', os.O_RDONLY))
    except PermissionError: pass
"""


@contextmanager
def flood(place: Path) -> Iterator[None]:
    """While a process in this control group asks as often as it can."""
    enter = f"import os, sys; open({str(place / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    with subprocess.Popen([sys.executable, "-S", "-c", enter + FLOODS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.kill()


def test_a_refused_flood_ends_no_proof(asking: Asking, foreign: Path) -> None:
    refused(asking)
    asking.keep(lives.CLEAN)
    asked = 0
    with flood(foreign):
        while asked < 20_000:
            assert asking.guard.count.read(DEVICE) == Counted(UseCounter.FENCE, 0)
            stands = fence.inspect(foreign.parent)
            assert stands is not None
            asked = stands.rules[0].counts.refused
    while not asking.guard.openers.asked(DEVICE):
        """No use counter waits for it: the thread looks up who was refused."""
    assert sum(asking.guard.openers.asked(DEVICE).values()) < 2000


def test_a_process_is_looked_up_once_a_second(asking: Asking) -> None:
    looked_up = list[int]()

    def found(pid: int) -> tuple[Holder, ...]:
        looked_up.append(pid)
        return ()

    asking.found = found
    ignored = IgnoredAttempts(0, asking.sources)
    for seconds, times in ((10.0, 1), (10.9, 1), (11.1, 2)):
        judged = ignored.judge(DEVICE, Attempt(FULL, seconds, 7, "cuda", 4, (), refused=False))
        assert judged is not None, "each attempt has its opener"
        assert (judged.ignored, len(looked_up)) == (False, times)


@pytest.mark.parametrize("refuses", [True, False])
def test_a_use_counter_waits_for_no_look_up(asking: Asking, foreign: Path, refuses: bool) -> None:  # noqa: FBT001 - a parameter
    """An attempt to the driver that waits for /proc looks like a driver that hangs.

    Whoever was refused has not used the device. Of the others nobody knows then.
    """
    asking.terms = Terms(refuse=refuses)
    asking.keep(lives.CLEAN)
    assert asking.uses() == 0
    looking, goes_on = threading.Event(), threading.Event()

    def hangs(_pid: int) -> tuple[Holder, ...]:
        looking.set()
        goes_on.wait()
        return ()

    asking.found = hangs
    run(foreign, OPENS)
    looking.wait()
    said = asking.guard.count.read(DEVICE)
    asking.keep(lives.GRANTED)  # nor does a row of the ledger
    goes_on.set()
    assert isinstance(said, Counted if refuses else Missed)
    assert asking.uses() == (0 if refuses else 1)


def test_a_rule_that_somebody_removed_is_missed(asking: Asking, group: Path, foreign: Path) -> None:
    refused(asking)
    asking.keep(lives.CLEAN)
    before = asking.uses()
    another = Fence(group)
    another.forget([FULL])
    another.close()
    assert run(foreign, OPENS) == "opened"
    assert isinstance(asking.guard.count.read(DEVICE), Missed)
    assert asking.uses() > before
    assert run(foreign, OPENS) == "refused"


@pytest.mark.parametrize("record", [lives.IN_USE, lives.IN_USE_BY_B], ids=["to its owner", "to all"])
def test_a_proof_ends_when_the_device_is_opened(asking: Asking, record: Record) -> None:
    """Else it would revive with an old copy of the ledger: the owner's own uses are not counted."""
    asking.terms = Terms(pods_have_groups=False)
    asking.keep(lives.CLEAN)
    asking.guard.count.proven(DEVICE, "proof-1", asking.uses())
    asking.keep(lives.GRANTED)
    assert asking.guard.count.at_proof(DEVICE, "proof-1") == Counted(UseCounter.FENCE, 0)
    asking.keep(record)
    asking.keep(lives.CLEAN)
    assert asking.guard.count.at_proof(DEVICE, "proof-1") is None


def test_a_container_that_is_gone_is_named_by_its_pod(asking: Asking, foreign: Path) -> None:
    asking.found = lambda _pid: ()
    asking.keep(lives.CLEAN)
    asking.guard.close()  # nobody reads for now
    pod = made_group(made_group(foreign / "kubepods") / f"pod{lives.A}")
    container = made_group(pod / "container")
    run(container, OPENS)
    container.rmdir()
    later = Asking(Fence(foreign.parent), foreign.parent / "service", foreign.parent / "owner")
    later.found = asking.found
    later.keep(lives.CLEAN)
    later.uses()
    assert [opener.opener.place for opener in later.guard.openers.of(DEVICE)] == [
        f"/{foreign.relative_to(fence.root())}/kubepods/pod{lives.A}"
    ]
    later.guard.close()


def test_readings_of_pods_without_groups_know_nothing(asking: Asking) -> None:
    asking.keep(lives.CLEAN)
    assert asking.reading().mode is FenceMode.WATCH
    asking.terms = Terms(pods_have_groups=False)
    said = asking.reading()
    assert (said.mode, said.why) == (FenceMode.OFF, "pods have no control groups of their own on this node")


def test_the_counts_of_another_boot_are_of_another_counter(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel numbers its maps from the beginning again."""
    asking.keep(lives.CLEAN)
    before = asking.reading().counter
    assert asking.reading().counter == before
    monkeypatch.setattr(asking.guard.count, "_boot_id", "another")
    asking.guard.count._counters.clear()
    assert asking.reading().counter != before


def test_a_reading_has_bystanders_apart_from_others(asking: Asking, foreign: Path) -> None:
    asking.keep(lives.CLEAN)
    before = asking.reading()
    with opener(foreign) as (pid, opens):
        asking.bystanders = {Path(f"/proc/{pid}/comm").read_text().strip()}
        opens()
        assert asking.uses() == 0
    said = between(before, asking.reading())
    assert (said.let_through, said.ignored > 0, said.mode, said.flaws) == (0, True, FenceMode.WATCH, ())
