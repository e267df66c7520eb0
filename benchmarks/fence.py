"""What the fence adds to the opening of a device node.

One process opens and closes ``/dev/null`` and ``/dev/full`` again and again, in a control group below the fence and in
one beside it, in turns. The fence guards ``/dev/full``, and the process is its owner. The fastest round of each counts:
whatever else the machine does can only make a round slower.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.figures import Figure
from scrubber.fence import numbers
from scrubber.fence.kernel import fence
from scrubber.fence.kernel.fence import Fence, FenceError

OPENS = 500  # of each round
OTHER, GUARDED = Path("/dev/null"), Path("/dev/full")


async def measure(*, quick: bool) -> list[Figure]:
    """Nothing where no fence can stand: for an ordinary user, and without version 2 of control groups."""
    rounds = 40 if quick else 400
    try:
        with _groups() as (beside, below, owner):
            standing = Fence(below)
            try:
                number = numbers.number_of(GUARDED)
                assert number is not None  # noqa: S101 - for mypy
                standing.set(number, {owner.stat().st_ino}, refuse=True)
                standing.refuse_for(600)
                times = _in_a_child(lambda: _rounds(beside, owner, rounds))
            finally:
                standing.close()
                fence.take_down(below)
    except (FenceError, OSError):
        return []
    without, other, guarded = times
    return [
        Figure("a device node without a fence: open and close", without * 1e6, "us", rounds),
        Figure("beside a fence, another device: more than that", (other - without) * 1e6, "us", rounds, "<= 0.3 us"),
        Figure("its owner opens a fenced device: more than that", (guarded - without) * 1e6, "us", rounds),
    ]


@contextmanager
def _groups() -> Iterator[tuple[Path, Path, Path]]:
    """A control group beside the fence, the one of the fence, and one of the owner, as deep as that of a container."""
    top = fence.root() / f"autoclave-bench-{os.getpid()}"
    beside, below = top / "beside/pods/pod/container", top / "below"
    owner = below / "pods/pod/container"
    made: list[Path] = []
    try:
        for group in (beside, owner):
            for place in (*reversed(group.parents[: len(group.relative_to(top).parts)]), group):
                if not place.exists():
                    place.mkdir()
                    made.append(place)
        yield beside, below, owner
    finally:
        for place in reversed(made):
            with suppress(OSError):
                place.rmdir()


def _in_a_child(work: Callable[[], tuple[float, float, float]]) -> tuple[float, float, float]:
    """Measure in a child: this process keeps its control group."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, " ".join(map(str, work())).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    without, other, guarded = map(float, text.split())
    return without, other, guarded


def _rounds(beside: Path, owner: Path, rounds: int) -> tuple[float, float, float]:
    best = [float("inf")] * 3
    for _ in range(rounds):
        for place, (group, node) in enumerate(((beside, OTHER), (owner, OTHER), (owner, GUARDED))):
            (group / "cgroup.procs").write_text(str(os.getpid()))
            best[place] = min(best[place], _round(str(node)))
    return best[0], best[1], best[2]


def _round(node: str) -> float:
    began = time.perf_counter()
    for _ in range(OPENS):
        os.close(os.open(node, os.O_RDONLY))
    return (time.perf_counter() - began) / OPENS
