"""A random judge of the guard: ``Guarded`` tells the promises. Its kernel is pretended, so that any user can run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scrubber.core.fencing import Container, Group, OpenTo
from scrubber.core.model import DeviceNumber
from scrubber.core.use_counter import Counted, UseCounter
from tests.fakes.bpf import Process
from tests.fence.guarded import ACTORS, DEVICES, LEASE, OTHER, PODS, WHOLE, Guarded, KilledError

HISTORIES, MOVES_OF_EACH = 150, 40
Move = Callable[[Guarded, Random], object]


def opens(node: Guarded, dice: Random) -> None:
    """Somebody opens a device."""
    node.now += 0.2
    times = 70 if dice.random() < 0.1 else 1
    node.opens(
        dice.randrange(len(ACTORS)),
        dice.choice(DEVICES),
        ends=dice.random() < 0.4,
        again=dice.random() < 0.5,
        times=times,
    )


def read_uses(node: Guarded, dice: Random) -> None:
    """A use counter is asked."""
    node.read_uses(dice.choice(DEVICES))


def used_between_readings(node: Guarded, dice: Random) -> None:
    """Somebody opens a device between two readings of its use counter."""
    device = dice.choice(DEVICES)
    node.read_uses(device)
    node.now += 0.2
    node.opens(dice.randrange(len(ACTORS)), device, ends=dice.random() < 0.4)
    node.read_uses(device)


def change(node: Guarded, device: str, owner: str) -> None:
    """The record says that this is the owner."""
    job = Group(node.group("job"))
    wanted: dict[str, OpenTo | Container | Group] = {"": OpenTo.SERVICE, "all": OpenTo.ALL, "job": job}
    node.changed(device, wanted.get(owner, Container(owner)))


def changed(node: Guarded, dice: Random) -> None:
    """A row is in the ledger."""
    change(node, dice.choice(DEVICES), dice.choice(("", "", "pod-a", "pod-b", "job", "all")))


def has_a_tenant(node: Guarded, dice: Random) -> None:
    """From the proof to the end of the tenancy, which a process may outlive."""
    device, pod = dice.choice(DEVICES), dice.choice(PODS)
    proven(node, dice, device)
    change(node, device, pod)
    begin(node, pod)
    node.renew()
    node.now += 0.2
    node.opens(PODS.index(pod), device, ends=dice.random() < 0.5)
    change(node, device, "")
    node.read_uses(device)


def proven(node: Guarded, dice: Random, device: str = "") -> None:
    """A device is proven clean."""
    device = device or dice.choice(DEVICES)
    node.read_uses(device)
    node.proven(device, f"proof at {node.now}")


def begin(node: Guarded, pod: str) -> None:
    """The groups of a pod are made, as late as a kubelet makes them."""
    if not node.group(pod):
        node.make_group(pod)
        node.make_group(f"{pod}/deep")


def pod(node: Guarded, dice: Random) -> None:
    """A pod begins, or ends."""
    name = dice.choice(PODS)
    begin(node, name) if dice.random() < 0.6 else node.remove_group(name)


def policy(node: Guarded, dice: Random) -> None:
    """The policy changes."""
    mode = dice.choice(("refuse", "refuse", "watch", "off"))
    node.set_policy(refuse=mode == "refuse", fenced=mode != "off", exempt=dice.random() < 0.5)


def learns(node: Guarded, dice: Random) -> None:
    """A device has other numbers, or none."""
    device, known = dice.choice(DEVICES), {uuid: it.numbers for uuid, it in node.devices.items()}
    to = dice.choice((WHOLE[device], WHOLE[device], frozenset[DeviceNumber](), OTHER))
    if to != OTHER or OTHER not in known.values():
        node.learn({**known, device: to})


def restarts(node: Guarded, dice: Random) -> None:
    """Another life of the service."""
    if dice.random() < 0.5:
        proven(node, dice)
    node.restart(killed=dice.random() < 0.5, elsewhere=dice.random() < 0.3)


def time_passes(node: Guarded, dice: Random) -> None:
    """Nothing else happens."""
    node.now += dice.choice((0.01, 1.5, 3.0, LEASE + 1))


def disturbed(node: Guarded, dice: Random) -> None:
    """While the guard asks the kernel the next time, something happens in between."""
    node.disturb(
        dice.randint(1, 40),
        dice.choice((node.says_no, node.is_killed, node.is_late, node.answers_old, node.somebody_opens)),
    )


MOVES: dict[Move, int] = {
    opens: 6,
    used_between_readings: 4,
    read_uses: 2,
    lambda node, dice: node.read(dice.choice(DEVICES)): 4,
    changed: 3,
    has_a_tenant: 2,
    proven: 1,
    pod: 2,
    policy: 2,
    learns: 1,
    restarts: 1,
    time_passes: 1,
    lambda node, _dice: node.renew(): 3,
    lambda node, _dice: node.reads(): 2,
    lambda node, _dice: node.another_service(): 1,
    lambda node, _dice: node.forgets_service(): 1,
    lambda node, _dice: node.detach(): 1,
    lambda node, dice: node.tamper(dice.choice(DEVICES), remove=dice.random() < 0.5): 1,
    disturbed: 2,
}


def lives_through(node: Guarded, step: Callable[[], object]) -> None:
    """A step; a service that is killed in it begins again."""
    try:
        step()
    except KilledError:
        node.restart(killed=True, elsewhere=False)


def play(directory: Path, moves: Sequence[tuple[Move, int]], seed: int) -> None:
    """One history."""
    node = Guarded(directory, has_pods=seed % 4 > 0, knows_processes=seed % 3 > 0)
    try:
        node.set_policy(refuse=seed % 2 > 0, fenced=True, exempt=False)
        node.renew()
        for move, dice in moves:
            lives_through(node, partial(move, node, Random(dice)))  # noqa: S311 - a game
    finally:
        node.close()


def history(seed: int) -> list[tuple[Move, int]]:
    """The moves of this seed, each with dice of its own."""
    dice = Random(seed)  # noqa: S311 - a game
    return [(move, dice.getrandbits(32)) for move in dice.choices([*MOVES], [*MOVES.values()], k=MOVES_OF_EACH)]


def test_the_guard_tells_each_use_and_nothing_else(tmp_path: Path) -> None:
    for seed in range(HISTORIES):
        play(tmp_path, history(seed), seed)


def a_day(node: Guarded) -> None:
    """What a guard does in a life, and in the next one: each step asks the kernel."""
    first, second = DEVICES
    foreign, bystander, tenant = 4, 8, 0
    steps: list[Callable[[], object]] = [
        lambda: node.set_policy(refuse=False, fenced=True, exempt=True),
        node.renew,
        *(lambda actor=actor: node.opens(actor, first) for actor in (foreign, bystander)),
        *(lambda device=device: node.read_uses(device) for device in DEVICES),
        lambda: node.opens(foreign, first),
        lambda: node.read_uses_beside(bystander, first),
        lambda: node.proven(first, "a proof"),
        node.reads,
        lambda: node.opens(foreign, first),
        lambda: node.read_uses(first),
        lambda: node.set_policy(refuse=True, fenced=True, exempt=True),
        node.renew,
        lambda: change(node, first, "pod-a"),
        lambda: begin(node, "pod-a"),
        lambda: node.opens(foreign, first),
        lambda: node.read_uses(first),
        node.renew,
        lambda: node.opens(tenant, first),
        lambda: change(node, first, ""),
        node.renew,
        lambda: node.read_uses(first),
        lambda: node.opens(tenant, first, again=True),
        lambda: node.read_uses(first),
        lambda: node.proven(first, "the next proof"),
        lambda: change(node, second, "pod-b"),
        lambda: begin(node, "pod-b"),
        node.renew,
        lambda: node.opens(PODS.index("pod-b"), second),
        lambda: node.learn({first: WHOLE[first]}),
        lambda: change(node, second, ""),
        lambda: node.learn(WHOLE),
        lambda: node.read_uses(second),
        lambda: node.opens(PODS.index("pod-b"), second, again=True),
        lambda: node.read_uses(second),
        lambda: node.learn({**WHOLE, second: OTHER}),
        lambda: node.read_uses(second),
        lambda: node.proven(second, "a proof of other numbers"),
        lambda: node.restart(killed=True, elsewhere=False),
        node.detach,
        lambda: node.opens(foreign, second),
        lambda: node.read_uses(second),
        lambda: change(node, first, "all"),
        lambda: node.set_policy(refuse=False, fenced=False, exempt=False),
        node.renew,
        lambda: node.set_policy(refuse=True, fenced=True, exempt=False),
        node.renew,
        lambda: node.read_uses(first),
    ]
    for step in steps:
        node.now += 0.2
        lives_through(node, step)


@pytest.mark.parametrize(
    "does", ["says_no", "is_killed", "is_late", "answers_old", "somebody_opens", "bystander_opens"]
)
def test_what_happens_at_any_call_is_counted(tmp_path: Path, does: str) -> None:
    """Each call of the kernel in turn: no other is different. When it is over, the guard is as it was before."""
    at, happened = 0, True
    while happened:
        at, happened = at + 1, False
        node = Guarded(tmp_path, knows_processes=does != "is_late")

        def happens(node: Guarded = node) -> None:
            nonlocal happened
            happened = True
            getattr(node, does)()

        node.disturb(at, happens)
        try:
            a_day(node)
            lives_through(node, node.renew)
            for device in (*DEVICES, *DEVICES):
                lives_through(node, partial(node.read_uses, device))
        finally:
            node.close()
    assert at > 100


class BreaksOnce(dict[int, tuple[Process, float]]):
    """Processes of which the first that is looked up cannot be."""

    has_broken = False

    def get(self, pid: int, default: Any = None) -> Any:  # noqa: ANN401 - as that of a dict
        """The second one can."""
        if not self.has_broken:
            self.has_broken = True
            raise RuntimeError("a fault of ours")
        return super().get(pid, default)


def test_a_fault_ends_no_reading_of_attempts(tmp_path: Path) -> None:
    """What was not read is a use. The attempts after it have their ignored."""
    node = Guarded(tmp_path)
    node.running = BreaksOnce()
    node.opens(7, DEVICES[0])
    node.guard.start()
    while node.fence.attempts.waiting() or not node.running.has_broken:
        """The thread reads."""
    node.now += 2.0
    node.opens(7, DEVICES[0])
    while not node.guard.openers.of(DEVICES[0]):
        """It reads again."""
    said = node.guard.count.read(DEVICES[0])
    assert (said, node.guard.openers.of(DEVICES[0])[0].ignored) == (Counted(UseCounter.FENCE, 1), True)
    node.close()
