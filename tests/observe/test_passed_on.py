"""A tenant passes its open GPU on: the file waits in a socket, so no process shows it while the GPU changes hands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scrubber.core.model import DeviceInfo, Holder
from scrubber.core.observation import Purpose
from scrubber.devices.base import UNSHOWN
from scrubber.devices.simulated import layout, loops
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.observed_since import ObservedSince
from scrubber.observe.observer import Observer
from tests.control_groups import group, made_group, run
from tests.core import lives
from tests.devices.conftest import Bank
from tests.live import Service

__all__ = ["group"]  # a fixture

POLICY = "name: quick\ndefaults: {paths: {first_look: fast}, clear: {passes: zero}}\n"
WRITES = "open(sys.argv[1], 'r+b').write(sys.argv[2].encode())"
SENDS = """
import os, socket, sys
sending = socket.socket(socket.AF_UNIX)
sending.connect(sys.argv[2])
socket.send_fds(sending, [b'x'], [os.open(sys.argv[1], os.O_RDWR)])
"""
RECEIVES = """
import os, socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print(flush=True)
sys.stdin.readline()
_, [file], *_ = socket.recv_fds(listening.accept()[0], 1, 1)
print(os.read(file, 16).rstrip(bytes(1)).decode(), flush=True)
sys.stdin.read()
"""


class Receiver:
    """A process with a socket, to which others send before it receives."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "socket")
        command = [sys.executable, "-c", RECEIVES, self.path]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._said()

    def _said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def receive(self) -> str:
        """What it reads from the open file that waits for it. It keeps the file open."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._said()

    def end(self) -> None:
        """End it, and with it whatever it has received or waits for."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def receiver(short_tmp: Path) -> Iterator[Receiver]:
    """It has received nothing yet, and ends with the test."""
    receiver = Receiver(short_tmp)
    yield receiver
    receiver.end()


@pytest.fixture
def service(group: Path, short_tmp: Path) -> Iterator[Service]:
    """One clean GPU behind the fence."""
    if not loops.can_attach(2**20):
        pytest.skip("takes root, and loop devices")
    (short_tmp / "quick.yaml").write_text(POLICY)
    service = Service(short_tmp, 1, "--cgroup-root", group, "--policy", short_tmp / "quick.yaml")
    service.settled(0, "clean")
    yield service
    service.kill()
    for place in layout.places(service.simulated_dir):
        layout.remove_node(place)


def asked(service: Service, *words: object) -> tuple[int, str]:
    """The exit code of a verb, and what it says."""
    with service.popen(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as verb:
        said, _ = verb.communicate()
    return verb.returncode, said


def test_an_open_gpu_in_a_socket_has_no_next_owner(
    service: Service, group: Path, receiver: Receiver
) -> None:  # fmt: skip
    memory = str(service.simulated_dir / "gpu0/memory")

    def acquired(owner: str) -> bool:
        return asked(service, "acquire", 0, "--owner", owner, "--cgroup", group / owner)[0] == 0

    made_group(group / "a")
    made_group(group / "b")
    assert acquired("a")
    run(group / "a", SENDS, memory, receiver.path)
    code, said = asked(service, "release", 0)
    if granted := acquired("b"):
        run(group / "b", WRITES, memory, "a secret of B")
    assert (granted, receiver.receive()) == (False, "")
    assert (code, UNSHOWN in said) == (1, True), said
    receiver.end()
    assert asked(service, "release", 0)[0] == 0
    service.settled(0, "clean")
    assert acquired("b")


INHERITS = """
import os, signal, sys
held = os.open(sys.argv[1], os.O_RDONLY)
if os.fork():
    os._exit(0)
open(sys.argv[2], 'w').write(str(os.getpid()))
os.closerange(0, 3)
signal.pause()
"""
UID = "6f1f8b8e-6d44-4f0c-9d0a-7f5f7f6a1c11"


@pytest.mark.parametrize(
    ("place", "is_exempt"),
    [
        ("agent.service", True),
        ("agent.service/worker", True),
        ("another.service", False),
        (f"kubepods/pod{UID}", False),
        (f"agent.service/{'ab' * 32}", False),
    ],
    ids=["in its unit", "below its unit", "in another unit", "in a pod", "in a container below its unit"],
)
def test_a_child_of_an_exempt_program_is_exempt(short_tmp: Path, group: Path, place: str, *, is_exempt: bool) -> None:
    """It has the GPU open and has asked for nothing. It is judged by its own control group, not by its parent's."""
    if not loops.can_attach(2**20):
        pytest.skip("takes root, and loop devices")
    (short_tmp / "quick.yaml").write_text(POLICY)
    agent = made_group(group / "agent.service")
    options = ("--cgroup-root", group, "--policy", short_tmp / "quick.yaml", "--exempt-unit", agent.name)
    service = Service(short_tmp, 1, *options)
    service.settled(0, "clean")
    (group / place).mkdir(parents=True, exist_ok=True)
    run(agent, INHERITS, str(service.simulated_dir / "gpu0/memory"), str(group / place / "cgroup.procs"))
    try:
        service.hear("no longer clean")
        said = asked(service, "history", 0)[1]
    finally:
        for pid in (group / place / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        service.kill()
        for memory in layout.places(service.simulated_dir):
            layout.remove_node(memory)
    [soiled] = [row for row in said.splitlines() if "no longer clean" in row]
    assert ("which the policy exempted" in soiled, "without a grant" in soiled) == (is_exempt, not is_exempt), said


@pytest.fixture
def sent(nodes: Bank, receiver: Receiver) -> DeviceInfo:
    """A GPU that waits for the receiver. Who has sent it has ended."""
    subprocess.run([sys.executable, "-c", SENDS, nodes.place(nodes.first).memory, receiver.path], check=True)
    return nodes.backend.inventory()[0]


class Passing(Processes):
    """When it has been through all processes, one of them receives the open file."""

    def __init__(self, receiver: Receiver) -> None:
        super().__init__(Path("/proc"), lambda _pid: None, whole_node=False)
        self._receiver = receiver

    def holders(self, files, *ignored, **more) -> dict[str, tuple[Holder, ...] | None]:
        found = super().holders(files, *ignored, **more)
        self._receiver.receive()
        return found


async def test_who_receives_it_behind_the_search_is_named(nodes, sent, receiver, tmp_path) -> None:
    observer = Observer(
        DriverCalls(nodes.backend, "boot"), Passing(receiver), tmp_path, ObservedSince(0.0), lives.no_reset
    )
    facts = await observer.look(replace(lives.CLEAN, device=sent), Purpose.RESET)
    assert [holder.pid for holder in facts.holders or ()] == [receiver.process.pid]
