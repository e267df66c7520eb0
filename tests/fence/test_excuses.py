"""Who is excused, by one process after the other with one number."""

from __future__ import annotations

from scrubber.core.model import DeviceNumber, Holder, NodeKind
from scrubber.fence.excuses import Excuses, Sources, Terms
from scrubber.fence.kernel.questions import Question
from scrubber.node.cgroup_tree import GroupPlace

PID, GROUP, ANOTHER = 7, 70, 71


def asked(uptime: float, group: int = GROUP) -> Question:
    return Question(DeviceNumber(NodeKind.CHARACTER, 195, 0), uptime, PID, "dcgm", group, (), refused=False)


def looked_up(running: list[Holder], place: GroupPlace | None = None) -> Excuses:
    """Where this process runs, in this place."""
    sources = Sources(
        process=lambda _pid: tuple(running),
        groups=lambda _pod: frozenset(),
        bystanders=lambda _uuid: lambda holder: holder.command == "dcgm",
        terms=lambda _uuid: Terms(),
        read=lambda: None,
        place=lambda _group: place,
        runs=lambda _group: True,
    )
    return Excuses(1, sources)


def test_a_bystander_is_known_for_a_moment_after_its_end() -> None:
    running = [Holder(PID, 1.0, "dcgm", None)]
    excuses = looked_up(running)
    assert excuses.cover("gpu", asked(10.0))
    running.clear()
    assert not excuses.cover("gpu", asked(11.0, ANOTHER)), "another process with its number and its name"
    assert excuses.cover("gpu", asked(11.5))
    assert not excuses.cover("gpu", asked(14.0))


def test_the_name_of_a_control_group_becomes_text() -> None:
    """Users who may make control groups choose their names, and a row of the ledger is text."""
    excuses = looked_up([], GroupPlace(b"/user/\xff\n".decode(errors="surrogateescape"), None, frozenset({GROUP})))
    excuses.cover("gpu", asked(10.0))
    assert [asker.opener.place for asker in excuses.askers.of("gpu")] == ["/user/??"]
