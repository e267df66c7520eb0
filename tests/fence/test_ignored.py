"""Whose attempts are ignored, by one process after the other with one number."""

from __future__ import annotations

import pytest

from scrubber.core.model import DeviceNumber, Holder, NodeKind
from scrubber.fence.ignored import IgnoredAttempts, Sources, Terms
from scrubber.fence.kernel.attempts import Attempt
from scrubber.node import clock
from scrubber.node.cgroup_tree import GroupPlace

PID, GROUP, ANOTHER = 7, 70, 71


def asked(uptime: float, group: int = GROUP) -> Attempt:
    return Attempt(DeviceNumber(NodeKind.CHARACTER, 195, 0), uptime, PID, "dcgm", group, (), refused=False)


def looked_up(
    running: list[Holder], place: GroupPlace | None = None, *, pids_are_free: bool = False
) -> IgnoredAttempts:
    """Where this process runs, in this place. ``pids_are_free``: so no later process has its number so soon."""
    sources = Sources(
        process=lambda _pid: tuple(running),
        groups=lambda _pod: frozenset(),
        bystanders=lambda _uuid: lambda holder: holder.command == "dcgm",
        terms=lambda _uuid: Terms(),
        read=lambda: None,
        place=lambda _group: place,
        runs=lambda _group: True,
        pids_are_free=lambda: pids_are_free,
    )
    return IgnoredAttempts(1, sources)


def is_ignored(ignored: IgnoredAttempts, attempt: Attempt) -> bool:
    judged = ignored.judge("gpu", attempt)
    assert judged is not None, "it is not of the service"
    return judged.ignored


def test_a_bystander_is_known_for_a_moment_after_its_end() -> None:
    running = [Holder(PID, 1.0, "dcgm", None)]
    ignored = looked_up(running)
    assert is_ignored(ignored, asked(10.0))
    running.clear()
    assert not is_ignored(ignored, asked(11.0, ANOTHER)), "another process with its number and its name"
    assert is_ignored(ignored, asked(11.5))
    assert not is_ignored(ignored, asked(14.0))


@pytest.mark.parametrize(
    ("started", "pids_are_free", "known"),
    [(9.98, False, True), (9.995, True, True), (9.995, False, False), (10.005, True, False)],
    ids=["before", "as it started", "perhaps a later process", "a later process"],
)
def test_a_bystander_is_known_from_its_start_on(*, started: float, pids_are_free: bool, known: bool) -> None:
    """The kernel tells the start of a process in hundredths of a second, rounded down."""
    ignored = looked_up([Holder(PID, started, "dcgm", None)], pids_are_free=pids_are_free)
    assert is_ignored(ignored, asked(10.0)) is known


def test_an_attempt_has_the_time_of_the_kernel() -> None:
    """The kernel keeps what is asked while no service runs."""
    now = clock.now()
    attempt = asked(now.uptime - 3600.0)
    judged = looked_up([]).judge("gpu", attempt)
    assert judged is not None
    opener = judged.opener(attempt, "", exempt=False)
    assert opener.first == opener.last == pytest.approx(now.wall - 3600.0, abs=60.0)


def test_the_name_of_a_control_group_becomes_text() -> None:
    """Users who may make control groups choose their names, and a row of the ledger is text."""
    ignored = looked_up([], GroupPlace(b"/user/\xff\n".decode(errors="surrogateescape"), None, frozenset({GROUP})))
    judged = ignored.judge("gpu", asked(10.0))
    assert judged is not None
    assert judged.place == "/user/??"
