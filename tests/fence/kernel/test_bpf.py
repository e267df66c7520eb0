"""The pretended kernel answers as this machine's does: the same rules and the same processes, in the same order."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from scrubber.core.model import DeviceNumber, NodeKind
from scrubber.fence.kernel import fence, program
from scrubber.fence.kernel.attempts import Attempt
from scrubber.fence.kernel.fence import Fence
from tests.control_groups import FULL, group, identity, made_group
from tests.fakes.bpf import Bpf, Process

__all__ = ["group"]  # a fixture

NULL = DeviceNumber(NodeKind.CHARACTER, 1, 3)
NODES = {FULL: "/dev/full", NULL: "/dev/null"}
NAMES = ("", "owner", "owner/a", "owner/a/b", "foreign", "exempt", "exempt/a", "service")
OPENER = """
import os, sys
for line in sys.stdin:
    place, node, flags = line.split()
    with open(place, 'w') as procs:
        procs.write('0')
    try:
        os.close(os.open(node, int(flags)))
        print('opened', flush=True)
    except PermissionError:
        print('refused', flush=True)
"""
HISTORIES = 4
Opens = Callable[[DeviceNumber, str, int], bool]


@dataclass
class Answers:
    """What a kernel has answered."""

    opened: list[bool]
    counts: list[object]
    asked: set[Attempt]
    kept: list[object]


def played(seed: int, place: Path, ids: dict[str, int], pid: int, opens: Opens) -> Answers:
    """A story of rules and opens."""
    dice = Random(seed)  # noqa: S311 - a game
    found = Answers([], [], set(), [])
    standing = Fence(place)
    for _ in range(60):
        device, exempt = dice.choice((FULL, FULL, NULL)), {ids["exempt"]} if dice.random() < 0.7 else set()
        match dice.randrange(6):
            case 0:
                owners = dice.choice((None, [], [ids["owner"]], [ids["owner/a"]], [ids["foreign"]]))
                service = dice.choice((None, ids["service"]))
                standing.set(device, owners, refuse=dice.random() < 0.7, exempt=exempt, service=service)
            case 1:
                standing.refuse_for(dice.choice((600, 600, -1)))
            case 2:
                (standing.admit_process if dice.random() < 0.5 else standing.dismiss_process)(pid)
            case 3:
                standing.forget([device] * (device in standing.numbers()))
            case 4:
                standing.close()
                standing = Fence(place)
            case _:
                for name in dice.sample(NAMES, 4):
                    found.opened.append(opens(device, name, dice.randint(0, 2)))
        found.asked |= {replace(it, uptime=0.0, command="") for it in standing.attempts.new()}
        found.counts += [standing.counts(FULL), standing.counts(NULL), standing.stand()]
        found.kept += [standing.kept(device), standing.members(device), sorted(map(str, standing.numbers()))]
    standing.close()
    return found


@contextmanager
def opener(places: dict[str, Path]) -> Iterator[tuple[int, Opens]]:
    """A process that goes into groups of this machine and opens device nodes there."""
    command = [sys.executable, "-S", "-c", OPENER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:

        def opens(device: DeviceNumber, name: str, access: int) -> bool:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{places[name] / 'cgroup.procs'} {NODES[device]} {access}\n")
            return process.stdout.readline() == "opened\n"

        yield process.pid, opens
        assert process.stdin is not None
        process.stdin.close()


def test_both_kernels_answer_alike(group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "SENT_EVERY_NS", 0)  # so that each attempt is sent: else it is a matter of time
    places = {name: group / name if not name else made_group(group / name) for name in NAMES}
    ids = {name: identity(place) for name, place in places.items()}
    with opener(places) as (pid, opens):
        real = [played(seed, group, ids, pid, opens) for seed in range(HISTORIES)]
    paths = {name: tuple(map(identity, _below_root(place))) for name, place in places.items()}
    kernel = Bpf(lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
    with kernel.booted():
        for seed, found in enumerate(real):
            pretended = played(
                seed, tmp_path, ids, pid,
                lambda device, name, flags: kernel.opens(device, Process(pid, paths[name]), (2, 4, 6)[flags]),
            )  # fmt: skip
            assert pretended == found


def _below_root(place: Path) -> list[Path]:
    root = fence.root()
    return [it for it in reversed([place, *place.parents]) if it != root and it.is_relative_to(root)]
