"""What keeps watch over who opens a GPU, as the service builds it. The kernel is pretended, and groups are folders."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from policies.policy_model import FencePolicy, Mode, Policy
from policies.values import FenceMode
from scrubber.config import ScrubberConfig
from scrubber.core.fencing import Container, Group, KeptOff, OpenTo
from scrubber.core.model import DeviceNumber, NodeKind
from scrubber.core.use_counter import Counted
from scrubber.fence import building
from scrubber.fence.guard import Guard
from scrubber.fence.kernel import fence, program
from scrubber.fence.kernel.fence import Counts, Fence, FenceError
from scrubber.node.cgroup_tree import Tree
from scrubber.node.processes import Processes
from tests.fakes.bpf import Bpf, Process

NUMBER = DeviceNumber(NodeKind.CHARACTER, 195, 0)
POD, LATER = "0f5b4c5e-0000-4000-8000-000000000001", "0f5b4c5e-0000-4000-8000-000000000002"


class Node:
    """A node with a service that begins."""

    def __init__(self, place: Path) -> None:
        self.kernel = Bpf(lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
        self.root, self.logs = place / "groups", place / "var/log/pods"
        for made in (self.root, self.logs, self.root / "system.slice"):
            made.mkdir(parents=True)
        (self.root / "cgroup.controllers").write_text("memory")
        self.config = ScrubberConfig(
            host_root=place,
            pod_logs_dir=Path("/var/log/pods"),
            operator_namespace=("monitoring",),
            exempt_unit=("telegraf.service",),
        )
        self.service = self.group("service")
        self.ignores_all = False  # each process that the service sees is a bystander
        self.policy = Policy(fence=FencePolicy.model_validate({"mode": FenceMode.REFUSE, "lease": "90s"}))

    def group(self, name: str) -> int:
        """The number of a group, which is made if it is not there, with a process in it."""
        group = self.root / name
        if not group.exists():
            (made := self.root.with_name("made")).mkdir()
            (made / "cgroup.events").write_text("populated 1\n")
            made.rename(group)
        return group.stat().st_ino

    @contextmanager
    def opened(self, group: int) -> Iterator[int]:
        """The directory of a group, open. OSError if it is gone."""
        place = next((it for it in self.root.rglob("*") if it.stat().st_ino == group), None)
        if place is None:
            raise OSError(errno.ESTALE, "gone")
        descriptor = os.open(place, os.O_RDONLY)
        yield descriptor
        os.close(descriptor)

    def pod(self, namespace: str, uid: str) -> Process:
        """A process of a new pod."""
        (self.logs / f"{namespace}_pod_{uid}").mkdir()
        return Process(1, (self.group("kubepods"), self.group(f"kubepods/pod{uid}")))

    def guard(self, namespace: int | None = None, *, fences: bool = True) -> Guard | str:
        """What the service builds."""
        processes = Processes(Path("/proc"), lambda _pid: None, whole_node=False)
        return building.guard(
            self.config,
            namespace,
            processes,
            lambda _device: lambda _holder: self.ignores_all,
            lambda _device: self.policy,
            fences=fences,
        )

    def opens(self, process: Process) -> bool:
        """Whether a process can open the GPU."""
        return self.kernel.opens(NUMBER, process)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    node = Node(tmp_path)
    monkeypatch.setattr(fence, "root", lambda: node.root)
    monkeypatch.setattr(building, "own_group", lambda _below: node.service)
    monkeypatch.setattr(Tree, "_opened", lambda _tree, group: node.opened(group))
    with node.kernel.booted():
        yield node


@pytest.fixture
def built(node: Node) -> Iterator[Callable[..., Guard]]:
    """Builds a guard that knows one GPU, and that nobody owns it."""
    with ExitStack() as closing:

        def one(namespace: int | None = None) -> Guard:
            guard = node.guard(namespace)
            assert isinstance(guard, Guard), guard
            closing.callback(guard.close)
            guard.rules.learn({"gpu": frozenset({NUMBER})})
            return guard

        yield one


def uses(guard: Guard) -> int:
    said = guard.count.read("gpu")
    assert isinstance(said, Counted)
    return said.uses


def test_pods_of_exempt_namespaces_are_let_in_also_later(node: Node, built: Callable[..., Guard]) -> None:
    guard, tenant = built(), node.pod("monitoring-of-a-team", POD)
    later = node.pod("monitoring", LATER)
    while later.groups[-1] not in guard._fence.members(NUMBER):
        """Its directory is a sign: nobody has to ask, and no round has to come."""
    guard.rules.renew()
    assert (node.opens(tenant), node.opens(later)) == (False, True)
    assert uses(guard) == 1
    assert guard.rules.keeps_out("gpu")
    assert 80 < (fence.inspect(node.root) or pytest.fail("no fence")).lease <= 90
    node.policy = Policy(fence=FencePolicy(mode=FenceMode.WATCH))
    guard.rules.renew()
    assert node.opens(tenant)


def test_pods_are_held_by_default_and_the_host_is_counted(node: Node, built: Callable[..., Guard]) -> None:
    """The kubelet may start later. With ``mode: observe`` nobody is held."""
    node.policy = Policy()
    guard, host = built(), Process(1, (node.group("system.slice"),))
    tenant, monitor = node.pod("team", POD), node.pod("monitoring", LATER)
    guard.rules.renew()
    assert [node.opens(each) for each in (tenant, monitor, host)] == [False, True, True]
    assert (uses(guard), guard.rules.keeps_out("gpu")) == (2, True)
    guard.rules.changed("gpu", Container(POD))
    assert node.opens(tenant)
    guard.rules.changed("gpu", OpenTo.SERVICE)
    for mode in (FenceMode.HOLD, FenceMode.REFUSE):
        node.policy = Policy(mode=Mode.OBSERVE, fence=FencePolicy(mode=mode))
        guard.rules.renew()
        assert (node.opens(tenant), guard.rules.keeps_out("gpu")) == (True, False)


def test_a_unit_that_a_flag_names_is_exempt(node: Node, built: Callable[..., Guard]) -> None:
    monitor, known, other = (
        Process(1, (node.group(f"{name}.service"),)) for name in ("telegraf", "nvidia-dcgm", "postgres")
    )
    built()
    assert [node.opens(each) for each in (monitor, known, other)] == [True, True, False]


def test_an_owner_that_runs_may_keep_the_gpu(node: Node, built: Callable[..., Guard]) -> None:
    guard, tenant = built(), node.pod("team", POD)
    guard.rules.changed("gpu", Container(POD))
    assert node.opens(tenant)
    assert not guard.rules.owner_left("gpu")
    guard.rules.changed("gpu", OpenTo.SERVICE)
    assert uses(guard) == 1


def test_only_processes_of_the_service_are_the_service(node: Node, built: Callable[..., Guard]) -> None:
    guard = built()
    assert node.opens(Process(os.getpid(), (node.service,)))
    assert guard._fence.counts(NUMBER) == Counts(0, 0)
    with subprocess.Popen(["sleep", "60"]) as child:
        assert node.opens(Process(child.pid, (node.service,)))
        while node.kernel.clock() and guard._fence.attempts.waiting():
            """The thread reads it, and nobody has asked a use counter."""
        with guard._reader.judging:
            """The thread has judged what it has read."""
        child.kill()
    assert (uses(guard), guard.openers.of("gpu")) == (0, ())
    assert node.opens(Process(1, (node.service,)))
    assert uses(guard) == 1


def test_in_a_pid_namespace_the_group_is_the_service(node: Node, built: Callable[..., Guard]) -> None:
    """A service in a PID namespace of its own. Nor are the kernel's numbers those of processes that it sees."""
    node.policy, node.ignores_all = Policy(fence=FencePolicy(mode=FenceMode.WATCH)), True
    guard = built(namespace=1)
    assert node.opens(Process(1, (node.service,)))
    assert uses(guard) == 0
    assert node.opens(Process(os.getpid()))
    assert uses(guard) == 1


@pytest.mark.parametrize("mode", [FenceMode.HOLD, FenceMode.REFUSE])
def test_a_node_without_groups_of_pods_only_counts(node: Node, built: Callable[..., Guard], mode: FenceMode) -> None:
    (node.root / "cgroup.controllers").write_text("")
    node.policy = Policy(fence=FencePolicy(mode=mode))
    guard = built()
    assert node.opens(node.pod("team", POD))
    assert (guard.rules.kept_off("gpu"), uses(guard)) == (KeptOff.NONE, 1)
    guard.rules.changed("gpu", Container(LATER))
    assert guard.rules.opens_to_all("gpu")
    guard.rules.changed("gpu", OpenTo.SERVICE)


def test_a_second_service_builds_no_guard(node: Node) -> None:
    first = node.guard()
    assert isinstance(first, Guard)
    with pytest.raises(FenceError, match=f"process {os.getpid()}, keeps the fence"):
        Fence(node.root).keep_alone(1, 1, runs=lambda *_: True)
    first.close()
    Fence(node.root).keep_alone(1, building._started(1), runs=lambda *_: True)
    assert "another scrub service, process 1," in str(node.guard())
    Fence(node.root).keep_alone(1, building._started(1) + 1, runs=lambda *_: False)
    later = node.guard()  # another process has the number of the service that ended
    assert isinstance(later, Guard)
    later.close()


def test_a_killed_service_keeps_the_fence_no_longer(node: Node) -> None:
    with subprocess.Popen(["sleep", "60"]) as killed:
        Fence(node.root).keep_alone(killed.pid, building._started(killed.pid), runs=lambda *_: False)
        assert f"another scrub service, process {killed.pid}," in str(node.guard())
        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie from then on
        later = node.guard()
        assert isinstance(later, Guard)
        later.close()


def counted(node: Node) -> int:
    fenced = Fence(node.root)
    try:
        return fenced.read([NUMBER]).passed
    finally:
        fenced.close()


def test_who_starts_is_let_in_before_its_guard_is_built(node: Node, built: Callable[..., Guard]) -> None:
    built().close()
    node.service = node.group("next")
    starts = Process(os.getpid(), (node.service,))
    assert not node.opens(starts)
    building.enter(node.config, fences=True)
    before = counted(node)
    assert node.opens(starts)
    assert counted(node) == before
    node.opens(Process(9, (node.service,)))
    assert counted(node) > before, "whoever else is in its group"
    building.enter(node.config, fences=False)
    assert node.opens(Process(8))


def test_where_it_is_off_no_fence_is_left(node: Node, built: Callable[..., Guard]) -> None:
    built().close()
    assert not node.opens(Process(8))
    assert node.guard(fences=False) == ""
    assert node.opens(Process(8))


def test_another_layout_counts_where_the_service_reads(
    node: Node, built: Callable[..., Guard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an update the program must not write on into maps of the last version, though it is the same code.

    A proof that was kept at a count of that version would hide as many uses.
    """
    first = built()
    node.opens(Process(1, (node.service,)))
    first.count.proven("gpu", "proof", uses(first))
    first.close()
    renamed = {"fence9_counts" if name == program.COUNTERS else name: shape for name, shape in program.MAPS.items()}
    monkeypatch.setattr(program, "MAPS", renamed)
    monkeypatch.setattr(program, "COUNTERS", "fence9_counts")
    guard = built()
    assert guard.count.at_proof("gpu", "proof") is None
    guard.rules.learn({})
    guard.rules.learn({"gpu": frozenset({NUMBER})})
    before = uses(guard)
    node.opens(Process(os.getpid()))
    node.policy = Policy(fence=FencePolicy(mode=FenceMode.WATCH))
    guard.rules.renew()
    assert node.opens(Process(8))
    assert uses(guard) > before


def test_a_kernel_that_refuses_a_guard_is_reported(node: Node, built: Callable[..., Guard]) -> None:
    """And the service goes on without it. A guard that is built knows who could open the GPU before."""
    earlier = built()
    earlier.rules.changed("gpu", Group(7))
    earlier.close()
    for at in range(1, 40):
        left = at

        def says_no(_command: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(12, os.strerror(12))

        node.kernel.before = says_no
        guard = node.guard()
        node.kernel.before = lambda _command: None
        if isinstance(guard, Guard):
            assert 7 in guard._fence.members(NUMBER)
            guard.close()
        else:
            assert "Cannot allocate memory" in guard


def test_groups_that_cannot_be_read_are_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "root", lambda: tmp_path)
    processes = Processes(Path("/proc"), lambda _pid: None, whole_node=False)
    lacks = building.guard(
        ScrubberConfig(), None, processes, lambda _device: bool, lambda _device: Policy(), fences=True
    )
    missing = tmp_path / "cgroup.controllers"
    assert lacks == f"cannot fence the GPUs: cannot read {missing}: No such file or directory"
