"""The fence in the kernel of this machine, below a control group of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scrubber.fence import numbers
from scrubber.fence.kernel import bpf, fence, program
from scrubber.fence.kernel.fence import Counts, Fence, FenceError
from scrubber.fence.kernel.instructions import R0, assemble, end, load_map, put
from tests.control_groups import FULL, OPENS, foreign, group, identity, made_group, owner, run, standing

__all__ = ["foreign", "group", "owner", "standing"]  # fixtures

WAYS = {
    "open": "os.open('/dev/full', os.O_RDONLY)",
    "for writing": "os.open('/dev/full', os.O_WRONLY)",
    "by a directory": "os.open('full', os.O_RDONLY, dir_fd=os.open('/dev', os.O_RDONLY))",
    "by a path only, then through /proc": (
        "os.open(f\"/proc/self/fd/{os.open('/dev/full', os.O_PATH)}\", os.O_RDONLY)"
    ),
    "by a node of its own": "os.mknod(sys.argv[1], 0o20666, os.makedev(1, 7)); os.open(sys.argv[1], os.O_RDONLY)",
    "by a link": "os.symlink('/dev/full', sys.argv[1]); os.open(sys.argv[1], os.O_RDONLY)",
    "access": "os.access('/dev/full', os.R_OK) or os.open('/dev/full', os.O_RDONLY)",
    "by a thread": (
        "import threading; opened = []\n"
        "def work():\n try: opened.append(os.open('/dev/full', os.O_RDONLY))\n except PermissionError: pass\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join(); opened[0]"
    ),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_foreign_process_is_refused_and_counted(standing: Fence, owner, foreign, tmp_path: Path, way: str) -> None:
    standing.set(FULL, {identity(owner)}, refuse=True)
    body = "\n".join(f"    {line}" for line in way.splitlines())
    code = f"try:\n{body}\n    print('opened')\nexcept (PermissionError, IndexError):\n    print('refused')"
    assert run(foreign, code, str(tmp_path / "node")) == "refused"
    counts = standing.counts(FULL)
    assert counts is not None
    assert counts.asked == counts.refused > 0
    (first, *_) = standing.attempts.new()
    assert (first.device, first.group, first.refused) == (FULL, identity(foreign), True)
    assert first.command == Path(sys.executable).resolve().name[:15] or first.command.startswith("python")


def test_an_owner_and_the_groups_below_it_open_uncounted(standing: Fence, owner: Path) -> None:
    standing.set(FULL, {identity(owner)}, refuse=True)
    below = made_group(made_group(owner / "container") / "nested")
    assert run(owner, OPENS) == "opened"
    assert run(below, OPENS) == "opened"
    assert standing.counts(FULL) == Counts(0, 0)
    assert list(standing.attempts.new()) == []


def test_who_was_an_owner_is_refused(standing: Fence, owner: Path, foreign: Path) -> None:
    standing.set(FULL, {identity(owner)}, refuse=True)
    standing.set(FULL, {identity(foreign)}, refuse=True)
    assert run(owner, OPENS) == "refused"
    assert run(foreign, OPENS) == "opened"


def test_other_devices_are_left_alone(standing: Fence, owner: Path, foreign: Path) -> None:
    standing.set(FULL, {identity(owner)}, refuse=True)
    assert run(foreign, OPENS.replace("full", "zero")) == "opened"
    standing.forget([FULL])
    assert run(foreign, OPENS) == "opened"
    assert standing.counts(FULL) == Counts(0, 0)


def test_who_is_refused_by_its_container_does_not_count(standing: Fence, owner: Path, foreign: Path) -> None:
    """Any pod may make a node and ask for it: it must not end the proofs of a node's GPUs."""
    standing.set(FULL, {identity(owner)}, refuse=False)
    code = [load_map(1, program.RULES), put(R0, 0), end()]
    maps = {program.RULES: bpf.make_map("any", 1, 8, 8, 1)}
    opened = os.open(foreign, os.O_RDONLY)
    bpf.attach(opened, bpf.load("runtime", assemble(code, maps)))
    assert run(foreign, OPENS) == "refused"
    assert standing.counts(FULL) == Counts(0, 0)
    os.close(opened)


def test_anybody_may_make_a_node(standing: Fence, owner: Path, foreign: Path, tmp_path: Path) -> None:
    """Runtimes make all nodes of the host in a privileged container."""
    standing.set(FULL, {identity(owner)}, refuse=True)
    assert run(foreign, f"os.mknod({str(tmp_path / 'node')!r}, 0o20666, os.makedev(1, 7)); print('made')") == "made"
    assert standing.counts(FULL) == Counts(0, 0)


def test_watching_counts_names_and_refuses_none(standing: Fence, owner: Path, foreign: Path) -> None:
    standing.set(FULL, {identity(owner)}, refuse=False)
    assert run(foreign, OPENS) == "opened"
    counts = standing.counts(FULL)
    assert counts is not None
    assert counts.asked > 0
    assert counts.refused == 0
    attempts = list(standing.attempts.new())
    assert len(attempts) == counts.asked
    assert {(it.group, it.refused) for it in attempts} == {(identity(foreign), False)}


def test_a_device_that_is_open_to_all_counts(standing: Fence, foreign: Path) -> None:
    standing.set(FULL, None, refuse=True)
    assert run(foreign, OPENS) == "opened"
    counts = standing.counts(FULL)
    assert counts is not None
    assert counts.asked > 0
    assert counts.refused == 0


def test_without_a_renewal_none_is_refused(standing: Fence, owner: Path, foreign: Path) -> None:
    """A node whose service is gone is not kept from its GPUs. The counts go on."""
    standing.set(FULL, {identity(owner)}, refuse=True)
    standing.refuse_for(-1)
    assert run(foreign, OPENS) == "opened"
    counts = standing.counts(FULL)
    assert counts is not None
    assert counts.asked > 0
    assert counts.refused == 0
    standing.refuse_for(600)
    assert run(foreign, OPENS) == "refused"


BUILDS = """
import os, sys, signal
from pathlib import Path
from scrubber.core.model import DeviceNumber, NodeKind
from scrubber.fence.kernel.fence import Fence
standing = Fence(Path(sys.argv[1]))
standing.set(DeviceNumber(NodeKind.CHARACTER, 1, 7), {int(sys.argv[2])}, refuse=True)
standing.refuse_for(600)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_fence_outlives_its_maker_and_is_found_again(group: Path, owner: Path, foreign: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", BUILDS, str(group), str(identity(owner))], check=False)
    assert killed.returncode == -9
    assert (run(owner, OPENS), run(foreign, OPENS)) == ("opened", "refused")
    found = Fence(group)
    try:
        counts = found.counts(FULL)
        assert counts is not None
        assert counts.refused > 0
        found.set(FULL, {identity(foreign)}, refuse=True)  # the owner of an earlier life is removed
        assert found.counts(FULL) == counts
    finally:
        found.close()
    assert (run(owner, OPENS), run(foreign, OPENS)) == ("refused", "opened")


def test_another_version_follows_without_a_gap(
    group: Path, owner: Path, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Fence(group)
    first.set(FULL, {identity(owner)}, refuse=True)
    first.refuse_for(600)
    tries = (
        "import signal\nopened = ended = 0\n"
        "def end(*_):\n    global ended; ended = 1\n"
        "signal.signal(signal.SIGTERM, end)\nready = False\n"
        "while not ended:\n"
        "    try: os.close(os.open('/dev/full', os.O_RDONLY)); opened += 1\n"
        "    except PermissionError: pass\n"
        "    ready = ready or print('ready', flush=True) or True\n"
        "print(opened)"
    )
    enter = f"import os, sys; open({str(foreign / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    with subprocess.Popen([sys.executable, "-c", enter + tries], stdout=subprocess.PIPE, text=True) as trying:
        assert trying.stdout is not None
        assert trying.stdout.readline() == "ready\n"
        tags = set()
        for levels in (3, 4, 5, 6, 7):
            monkeypatch.setattr(program, "LEVELS", levels)
            Fence(group).close()
            (attached,) = attached_to(group)
            tags.add(attached.tag)
        trying.terminate()
        assert trying.stdout.readline() == "0\n"
    assert len(tags) == 5
    counts = first.counts(FULL)
    assert counts is not None
    assert counts.refused > 0
    first.close()


def attached_to(group: Path) -> list[bpf.Attached]:
    opened = os.open(group, os.O_RDONLY)
    try:
        return bpf.attached(opened, fence.NAME)
    finally:
        os.close(opened)


def test_a_fence_can_be_taken_down(standing: Fence, group: Path, owner: Path, foreign: Path) -> None:
    standing.set(FULL, {identity(owner)}, refuse=True)
    assert fence.take_down(group)
    assert run(foreign, OPENS) == "opened"
    assert not fence.take_down(group)
    assert standing.stand()
    assert run(foreign, OPENS) == "refused"


@pytest.mark.parametrize(("refuse", "most"), [(True, 1), (False, 64)])
def test_many_attempts_are_counted_and_few_are_sent(
    standing: Fence, owner: Path, foreign: Path, *, refuse: bool, most: int
) -> None:
    """In each tenth of a second. A flood of them costs the service next to nothing."""
    standing.set(FULL, {identity(owner)}, refuse=refuse)
    asks = (
        "import time; began = time.monotonic_ns()\n"
        "for _ in range(3000):\n"
        "    try: os.close(os.open('/dev/full', os.O_RDONLY))\n    except PermissionError: pass\n"
        "print((time.monotonic_ns() - began) // 100_000_000 + 2)"
    )
    tenths = int(run(foreign, asks))
    attempts, counts = list(standing.attempts.new()), standing.counts(FULL)
    assert counts is not None
    assert counts.asked >= 3000
    assert most <= len(attempts) <= most * tenths


def test_attempts_from_many_groups_are_few_too(standing: Fence, owner: Path, foreign: Path) -> None:
    """A user may make groups below its own."""
    standing.set(FULL, {identity(owner)}, refuse=True)
    places = [str(made_group(foreign / f"{number}") / "cgroup.procs") for number in range(40)]
    asks = (
        "import time; began = time.monotonic_ns()\n"
        f"for place in {places!r}:\n"
        "    open(place, 'w').write('0')\n"
        "    try: os.open('/dev/full', os.O_RDONLY)\n    except PermissionError: pass\n"
        "print((time.monotonic_ns() - began) // 100_000_000 + 2)"
    )
    tenths = int(run(foreign, asks))
    assert len(list(standing.attempts.new())) <= program.OF_ALL * tenths
    counts = standing.counts(FULL)
    assert counts is not None
    assert counts.refused == 40


def test_who_is_let_through_hides_no_refused_one(standing: Fence, owner: Path, foreign: Path, group: Path) -> None:
    """Under `hold`: a program of the host opens the device all the time, and then a pod tries."""
    pod = made_group(group / "pod")
    standing.set(FULL, {identity(owner)}, refuse=False, held={identity(pod)})
    several = f"for _ in range({program.OF_ALL + 1}): os.close(os.open('/dev/full', os.O_RDONLY))"
    once = f"open({str(pod / 'cgroup.procs')!r}, 'w').write('0'); os.open('/dev/full', os.O_RDONLY)"
    run(foreign, f"{several}\ntry:\n    {once}\nexcept PermissionError: pass")
    assert [it.refused for it in standing.attempts.new()][-1:] == [True]


def test_an_attempt_that_was_read_is_not_read_again(standing: Fence, owner: Path, foreign: Path) -> None:
    """Its reader may be killed while it judges. The next one must not ignore the attempt a second time."""
    standing.set(FULL, {identity(owner)}, refuse=False)
    run(foreign, OPENS)
    waiting = standing.attempts.new()
    next(waiting)
    counts = standing.counts(FULL)
    assert counts is not None
    assert len(list(standing.attempts.new())) == counts.asked - 1


def test_a_member_that_is_exempt_passes_and_counts(standing: Fence, owner: Path, foreign: Path) -> None:
    standing.set(FULL, {identity(owner)}, refuse=True, exempt={identity(foreign)})
    nested = made_group(foreign / "nested")
    assert run(nested, OPENS) == "opened"
    counts = standing.counts(FULL)
    assert counts is not None
    assert counts.asked > counts.refused == 0
    (first, *_) = standing.attempts.new()
    assert (first.group, first.above[-2:]) == (identity(nested), (identity(foreign), identity(nested)))


def test_pods_are_held_and_the_host_is_counted(standing: Fence, group: Path, foreign: Path) -> None:
    pods = made_group(group / "kubepods")
    mine, other, monitor = (made_group(pods / name) for name in ("mine", "other", "monitor"))
    standing.set(FULL, {identity(mine)}, refuse=False, held={identity(pods)}, exempt={identity(monitor)})
    containers = [made_group(each / "container") for each in (mine, other, monitor)]
    assert [run(each, OPENS) for each in (*containers, foreign)] == ["opened", "refused", "opened", "opened"]
    counts, stands = standing.counts(FULL), fence.inspect(group)
    assert counts is not None
    assert counts.asked > counts.refused > 0
    assert stands is not None
    assert [(rule.open_to, rule.held) for rule in stands.rules] == [
        (frozenset({identity(mine), identity(monitor)}), frozenset({identity(pods)}))
    ]
    standing.set(FULL, (), refuse=False, held={identity(pods)}, exempt={identity(pods)})
    assert run(other, OPENS) == "opened"
    standing.set(FULL, (), refuse=False, held={identity(pods)})
    standing.refuse_for(-1)
    assert run(other, OPENS) == "opened"


def test_only_admitted_processes_of_the_service_are_uncounted(standing: Fence, group: Path) -> None:
    service = made_group(group / "service")
    standing.set(FULL, (), refuse=True, service=identity(service))
    opens = "input(); os.close(os.open('/dev/full', os.O_RDONLY)); print('opened')"
    enter = f"import os, sys; open({str(service / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    asked = []
    for is_admitted in (True, False):
        command = [sys.executable, "-S", "-c", enter + opens]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            if is_admitted:
                standing.admit_process(process.pid)
            said, _ = process.communicate("\n")
        assert said == "opened\n"
        standing.dismiss_process(process.pid)
        asked.append(standing.counts(FULL))
    assert asked[0] == Counts(0, 0)
    assert asked[1] is not None
    assert asked[1].asked > asked[1].refused == 0


def test_one_service_keeps_a_fence(group: Path) -> None:
    """Two would take away each other's rules."""
    first, second = Fence(group), Fence(group)
    first.keep_alone(100, 7, runs=lambda *_: True)
    with pytest.raises(FenceError, match="another scrub service, process 100, keeps the fence of this node"):
        second.keep_alone(200, 8, runs=lambda pid, started: (pid, started) == (100, 7))
    second.keep_alone(200, 8, runs=lambda *_: False)  # the first one was killed
    second.close()
    first.close()  # the keeper is another one by now
    third = Fence(group)
    third.keep_alone(300, 9, runs=lambda *_: True)
    third.close()


def test_who_starts_is_let_in_before_the_rules_are_written(group: Path, owner: Path, foreign: Path) -> None:
    fence.admit(group, identity(foreign))  # no fence stands
    standing = Fence(group)
    standing.set(FULL, {identity(owner)}, refuse=True)
    standing.refuse_for(600)
    assert run(foreign, OPENS) == "refused"
    fence.admit(group, identity(foreign))
    assert (run(foreign, OPENS), run(owner, OPENS)) == ("opened", "opened")
    assert standing.counts(FULL) == Counts(2, 1), "it is let through, and counted"
    fence.dismiss(group, identity(foreign))
    assert (run(foreign, OPENS), run(owner, OPENS)) == ("refused", "opened")
    standing.close()


def test_a_second_service_is_not_let_in(group: Path, owner: Path, foreign: Path) -> None:
    standing = Fence(group)
    standing.set(FULL, {identity(owner)}, refuse=True)
    standing.refuse_for(600)
    standing.keep_alone(100, 7, runs=lambda *_: True)
    fence.admit(group, identity(foreign), runs=lambda pid, started: (pid, started) == (100, 7))
    assert run(foreign, OPENS) == "refused"
    standing.close()
    fence.admit(group, identity(foreign), runs=lambda *_: True)
    assert run(foreign, OPENS) == "opened"


def test_the_message_says_which_right_is_missing(group: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from scrubber.fence.kernel.fence import Fence, FenceError\n"
        "try: Fence(Path(sys.argv[1]))\nexcept FenceError as error: print(error)"
    )
    bare = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs", sys.executable, "-c", code]
    said = subprocess.run([*bare, str(group)], capture_output=True, text=True, check=True).stdout
    assert f"cannot fence the GPUs: Linux {os.uname().release} answers BPF_PROG_GET_NEXT_ID with: Operation not" in said
    assert "it takes the capability CAP_SYS_ADMIN" in said


def test_one_capability_is_enough(group: Path) -> None:
    """Of the service's. On Linux before 6.9, BPF_PROG_QUERY takes CAP_NET_ADMIN too, which it has not."""
    code = (
        "import sys; from pathlib import Path; from scrubber.fence.kernel import fence; place = Path(sys.argv[1])\n"
        "standing = fence.Fence(place); print(not standing.stand(), fence.inspect(place), fence.take_down(place))"
    )
    one = ["setpriv", "--bounding-set", "-all,+sys_admin", "--no-new-privs", sys.executable, "-c", code]
    said = subprocess.run([*one, str(group)], capture_output=True, text=True, check=True).stdout
    assert said == "True Inspected(rules=(), lease=0.0) True\n"


def test_without_the_root_of_cgroup_v2_there_is_no_fence(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"36 25 0:31 / {tmp_path} rw - cgroup2 cgroup2 rw\n29 25 0:26 / /sys rw - sysfs sysfs rw\n")
    with pytest.raises(FenceError, match="no cgroup v2 with the root of the node is mounted here"):
        fence.root(mounts)


def test_a_file_has_no_number(tmp_path: Path) -> None:
    assert numbers.number_of(Path("/dev/full")) == FULL
    (tmp_path / "file").touch()
    assert numbers.number_of(tmp_path / "file") is None
