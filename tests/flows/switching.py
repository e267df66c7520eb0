"""What a switch of plugins must leave as it is, who was asked meanwhile, and what the doctor says of it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from demo.handout import RESOURCE
from demo.standins.pods import ContainerState, Phase, Pod
from tests.deploy import manifests
from tests.flows.node import Node, Watched
from tests.plugin.live_plugin import Plugin

HOOKS = {"Allocate", "PreStartContainer"}


class Working(Watched):
    """The first container of a pod leaves more in memory than a later one writes: what a wipe between them would take.

    Keeps what each container was started with, too.
    """

    def __init__(self, simulated: Path) -> None:
        super().__init__(simulated)
        self.answers: dict[str, list[bytes]] = {}

    async def start(self, pod, container, devices, response):
        self.answers.setdefault(pod.uid, []).append(response.SerializeToString(deterministic=True))
        await super().start(pod, container, devices, response)

    def marked(self, pod, last):
        work = (last // 4,) if len(self.answers[pod.uid]) == 1 else ()
        return (*super().marked(pod, last), *work)


@dataclass(frozen=True)
class Seen:
    """What nobody may change of a pod that runs."""

    phase: Phase
    starts: int
    processes: list[tuple[int, str]]
    memory: list[bytes]


def seen(node: Node, pod: Pod) -> Seen:
    """Its processes by number and birth, and what it has in memory."""
    status = pod.statuses["main"]
    assert status.state is ContainerState.RUNNING
    processes = [(pid, _born(pid)) for pid in node.stage.containers.pids(pod, "main")]
    return Seen(pod.phase, status.starts, processes, [node.memory(uuid) for uuid in given(node, pod)])


def given(node: Node, pod: Pod) -> tuple[str, ...]:
    return node.kubelet.held(pod)["main"][RESOURCE]


def _born(pid: int) -> str:
    """When it began; it lives."""
    state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    assert state != "Z"
    return rest[18]


def asked(node: Node, uuid: str) -> list[str]:
    """Every hook that was called for a GPU."""
    return [call.method for call in node.kubelet.calls if call.method in HOOKS and uuid in call.ids]


def answers(node: Node, pod: Pod) -> list[bytes]:
    """What the starts of a pod were given."""
    assert isinstance(node.stage.containers, Working)
    return node.stage.containers.answers[pod.uid]


def found_by_the_next(node: Node) -> list[str]:
    """What containers found that was not theirs; told here, it is no failure of the test."""
    assert isinstance(node.stage.containers, Watched)
    leaks, node.stage.containers.leaks = node.stage.containers.leaks, []
    return leaks


async def doctor(node: Node) -> int:
    """The exit code of the plugin's init container, as the chart has it, but that it judges at once.

    It is that of who takes over the strategy of the other plugin first: without CDI.
    """
    container = manifests.container("envvar", "doctor (plugin)")
    root = node.stage.root
    places = {"/run/autoclave/doors": root / "run", "/var/lib/kubelet/device-plugins": node.stage.kubelet_dir}
    program = Plugin(root)
    program.command = [
        sys.executable,
        "-m",
        "autoclave",
        *manifests.words(container, {**places, "/host": root}),
        "--wait=0s",
    ]
    code: int = await (await program.start()).ended()
    return code


def registered(node: Node) -> list[str]:
    """By their sockets, whoever the kubelet has accepted."""
    return [it.endpoint for it in node.kubelet.registrations if not it.error]
