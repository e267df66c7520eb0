"""No process remains on the device, and no protected process is ended."""

from __future__ import annotations

import os
import select
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from scrubber.core.model import Blame, Evicted, Holder, Outcome
from scrubber.devices.base import Gpu
from scrubber.devices.simulated import drills
from scrubber.node import clock
from scrubber.node.processes import Processes
from scrubber.steps import evict
from scrubber.steps.orders import Order, Report, StepContext
from tests import descriptors
from tests.hanging import hanging
from tests.patience import WITHIN

LATER = 1e9
POD = f"pod-{uuid.uuid4()}"
LEFTOVERS = Order(terminate_leftovers=True, tenancy=(0.0, LATER), grace=0.05)
FREE = Report(Outcome.PASSED, findings=Evicted((), ()))
Look = Callable[[], tuple[Holder, ...] | None]


@dataclass(frozen=True)
class Floor:
    """One GPU, and evict at work on it."""

    root: Path
    uuid: str
    look: Look
    gpu: Gpu

    def run(self, order: Order, look: Look | None = None, ours: Callable[[int], bool] = lambda _pid: False) -> Report:
        return evict.run(order, StepContext(self.gpu, look or self.look, lambda _done, _total: None, ours))


def evicted(report: Report) -> Evicted:
    assert isinstance(report.findings, Evicted)
    return report.findings


@pytest.fixture
def floor(bank) -> Floor:
    observer = Processes(Path("/proc"), bank.backend.container_of, whole_node=False)
    return Floor(
        bank.root,
        bank.first,
        lambda: observer.holders({"gpu": bank.backend.files(bank.first)})["gpu"],
        bank.gpu(bank.first),
    )


def lives(pid: int) -> bool:
    handle = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    ended = poll.poll(0)
    os.close(handle)
    return not ended


def test_evict_searches_no_device_that_was_just_seen_unused(floor: Floor) -> None:
    assert floor.run(Order(unused=True), look=lambda: None) == FREE
    assert floor.run(Order(), look=lambda: None).outcome is Outcome.FAILED


def test_evict_fails_if_a_holder_is_unknown(floor: Floor) -> None:
    report = floor.run(LEFTOVERS, look=lambda: None)
    assert (report.outcome, report.blame) == (Outcome.FAILED, Blame.TENANT)
    assert "cannot prove who uses the device" in report.detail


def test_a_leftover_that_ignores_sigterm_is_killed(floor: Floor) -> None:
    pid = drills.zombie(floor.root, floor.uuid)
    report = floor.run(LEFTOVERS)
    assert report.outcome is Outcome.PASSED
    assert evicted(report).terminated == (pid,)
    assert [holder.pid for holder in evicted(report).holders] == [pid]
    assert floor.run(LEFTOVERS) == FREE


def test_a_process_that_obeys_sigterm_is_not_killed(floor: Floor, bank, launch) -> None:
    """It has the grace to tidy up."""
    code = """
import os, signal, sys
memory = os.open(sys.argv[1], os.O_RDWR)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(1, flush=True)
signal.pause()
"""
    process = launch(code, bank.place(bank.first).memory)
    report = floor.run(replace(LEFTOVERS, grace=10.0))
    assert evicted(report).terminated == (process.pid,)
    assert process.wait(WITHIN) == 7


def test_the_process_of_a_live_container_is_never_signalled(floor: Floor) -> None:
    tenant = drills.occupy(floor.root, floor.uuid, b"secret", POD)
    leftover = drills.zombie(floor.root, floor.uuid)
    report = floor.run(Order(terminate_leftovers=True, terminate_foreign=True, tenancy=(0.0, LATER), patience=60))
    assert (report.outcome, report.blame) == (Outcome.FAILED, Blame.TENANT)
    assert POD in report.detail
    assert evicted(report).terminated == ()
    assert lives(tenant)
    assert lives(leftover)  # the tenant is told first; nothing happens on its device meanwhile


@pytest.mark.parametrize(
    "change",
    [
        {"tenancy": (LATER, LATER)},
        {"tenancy": (0.0, 0.01)},
        {"tenancy": None},
        {"terminate_leftovers": False, "terminate_foreign": True},
    ],
    ids=["started before the tenancy", "started after the tenancy", "no tenancy", "leftovers may not be ended"],
)
def test_a_process_that_must_not_be_ended_is_waited_for(floor: Floor, change) -> None:
    pid = drills.zombie(floor.root, floor.uuid)
    report = floor.run(replace(LEFTOVERS, patience=0.1, **change))
    assert (report.outcome, report.blame, evicted(report).terminated) == (Outcome.FAILED, Blame.TENANT, ())
    assert f"still on the device: pid {pid}" in report.detail
    assert lives(pid)


def test_a_foreign_process_is_ended_where_the_policy_says_so(floor: Floor) -> None:
    pid = drills.zombie(floor.root, floor.uuid)
    assert evicted(floor.run(Order(terminate_foreign=True, grace=0.05))).terminated == (pid,)


@pytest.mark.parametrize("container", [None, "pod-a"], ids=["on the host", "in the pod of the service"])
def test_a_worker_of_the_service_is_never_ended(floor: Floor, container: str | None) -> None:
    at = (floor.root, floor.uuid)
    pid = drills.occupy(*at, b"", container) if container else drills.zombie(*at)
    report = floor.run(replace(LEFTOVERS, patience=0.3, terminate_foreign=True), ours=lambda it: it == pid)
    assert (report.outcome, report.blame, evicted(report).terminated) == (Outcome.FAILED, Blame.TENANT, ())
    assert f"still on the device: pid {pid}" in report.detail
    assert lives(pid)


def test_a_foreign_process_that_ends_in_time_is_enough(floor: Floor) -> None:
    pid = drills.zombie(floor.root, floor.uuid)
    looks: list[object] = []

    def look() -> tuple[Holder, ...] | None:
        looks.append(found := floor.look())
        if len(looks) == 2:
            os.kill(pid, signal.SIGKILL)
        return found

    report = floor.run(Order(patience=30), look)
    assert report.outcome is Outcome.PASSED
    assert evicted(report).terminated == ()
    assert [holder.pid for holder in evicted(report).holders] == [pid]


def test_a_process_that_closes_the_device_is_not_ended(floor: Floor, bank, launch) -> None:
    code = """
import os, signal, sys
memory = os.open(sys.argv[1], os.O_RDWR)
signal.signal(signal.SIGUSR1, lambda *_: os.close(memory))
print(1, flush=True)
while True:
    signal.pause()
"""
    process = launch(code, bank.place(bank.first).memory)
    process.send_signal(signal.SIGUSR1)
    assert floor.run(Order(patience=30)).outcome is Outcome.PASSED
    assert lives(process.pid)


@pytest.mark.parametrize(
    "change",
    [{"started": 1.0}, {"container": POD}],
    ids=["the number has gone to another process", "it is in a container now"],
)
def test_another_process_with_the_same_pid_is_not_signalled(floor: Floor, change) -> None:
    pid = drills.zombie(floor.root, floor.uuid)
    first = floor.look()
    assert first is not None
    looks = [first, tuple(replace(holder, **change) for holder in first), ()]
    report = floor.run(LEFTOVERS, lambda: looks.pop(0))
    assert evicted(report).terminated == ()
    assert lives(pid)


def test_a_process_that_may_be_another_one_is_not_signalled(floor: Floor) -> None:
    pid = drills.zombie(floor.root, floor.uuid)
    looks = [floor.look(), None, None]
    assert floor.run(LEFTOVERS, lambda: looks.pop(0)).outcome is Outcome.FAILED
    assert lives(pid)


def test_a_process_that_survives_all_signals_is_stuck(floor: Floor, bank, tmp_path: Path) -> None:
    with hanging(bank.place(bank.first).memory, tmp_path / "nowhere") as process:
        report = floor.run(LEFTOVERS)
        assert process.state == "D"
        assert (report.outcome, report.blame, evicted(report).terminated) == (Outcome.FAILED, Blame.TENANT, ())
        assert [(it.pid, it.state) for it in evicted(report).stuck] == [(process.pid, "D")]
        assert f'pid {process.pid} ("python' in report.detail
        assert "in no container, stuck in the kernel (state D)" in report.detail
        process.let_go()
        assert floor.run(LEFTOVERS).outcome is Outcome.PASSED
    assert process.process.returncode == -signal.SIGTERM, "the first signal it was sent"


def test_a_process_not_signalled_is_not_called_stuck(floor: Floor, bank, tmp_path: Path) -> None:
    with hanging(bank.place(bank.first).memory, tmp_path / "nowhere") as process:
        report = floor.run(replace(LEFTOVERS, tenancy=(clock.now().uptime + 1, LATER)))
        assert (report.outcome, evicted(report).stuck) == (Outcome.FAILED, ())
        assert f'pid {process.pid} ("python' in report.detail
        assert process.state == "S", "nothing was sent to it"


def test_a_dead_process_holds_no_device(floor: Floor) -> None:
    assert floor.run(Order(), lambda: (Holder(2**22 + 1, 1.0, "gone", None, state="Z"),)).outcome is Outcome.PASSED


def test_no_descriptor_is_left_behind(floor: Floor) -> None:
    drills.zombie(floor.root, floor.uuid)
    before = descriptors.opened()
    floor.run(Order(patience=0.01))
    floor.run(LEFTOVERS)
    assert descriptors.opened() <= before
