"""NVIDIA's plugin out, ours in, and back, on one kubelet: pods that run notice nothing, in either direction.

The rehearsal of docs/switch.md, step by step, and of what it warns of. Theirs is the do-nothing plugin with the
resource, the socket and the answer of NVIDIA's, and without PreStartContainer. It registers when it begins. These
tests cannot show how a runtime uses an answer that the kubelet kept: a container of the stand-in gets it and uses its
GPUs all the same.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from demo.installation import RESOURCE
from demo.standins.do_nothing_plugin import variable
from demo.standins.kubelet import Kubelet
from demo.standins.pods import ContainerState, Phase, Pod
from demo.standins.timing import Timing
from ground import boot
from scrub_api import views
from scrubber.devices.simulated import layout
from scrubber.fence.kernel import fence
from tests.deploy import manifests
from tests.flows.node import BRISK, UNHELD, Node, Watched, brisk
from tests.patience import WITHIN
from tests.plugin.live_plugin import Plugin

SOCKET = "nvidia-gpu.sock"
OBSERVE = brisk("mode: observe", "evict: {leftovers: wait}")  # what the shipped policy of that name says
ROOT = Path(__file__).parents[2]
GPUS = 3
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


def seen(node: Node, pod: Pod) -> tuple[Phase, int, list[int], list[bytes]]:
    """What nobody may change of a pod that runs: its phase, starts and processes, and what it has in memory."""
    status = pod.statuses["main"]
    assert status.state is ContainerState.RUNNING
    pids = node.stage.containers.pids(pod, "main")
    return pod.phase, status.starts, pids, [node.memory(uuid) for uuid in given(node, pod)]


def given(node: Node, pod: Pod) -> tuple[str, ...]:
    return node.kubelet.held(pod)["main"][RESOURCE]


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


async def refused(node: Node, why: str) -> None:
    """A pod that comes now fails."""
    status = await node.kubelet.run(node.pod("refused"))
    assert (status.phase, why in status.message) == (Phase.FAILED, True), status.message


async def enter(node: Node, gpus: int = GPUS) -> None:
    """Our plugin registers."""
    await node.stage.plugin.start()
    await node.offered(gpus)


async def switch(node: Node, theirs: Plugin) -> None:
    """Theirs ends, then ours registers; the service looks already."""
    assert await theirs.stop() == 0
    await node.offered(0)
    await enter(node, node.stage.gpus)


async def leave(node: Node) -> None:
    """Ours ends, then the service, and nobody is kept off a GPU any longer."""
    assert await node.stage.plugin.end(signal.SIGTERM) == 0
    await node.offered(0)
    assert await node.stage.service.end(signal.SIGTERM) == 0
    if node.stage.groups is not None:
        assert fence.take_down(node.stage.groups)


def owned_by(pod: Pod) -> Callable[[views.DeviceStatus], bool]:
    return lambda device: (device.state, device.owner) == ("in_use", pod.uid)


Theirs = Callable[[Node], Awaitable[Plugin]]
Before = Callable[..., Awaitable[tuple[Node, Plugin]]]


@pytest.fixture
async def theirs() -> AsyncIterator[Theirs]:
    """Their plugin on a node: it offers all GPUs, also those that the kubelet did not get from ours."""
    async with AsyncExitStack() as alive:

        async def begin(node: Node) -> Plugin:
            it = Plugin(node.stage.root, PYTHONPATH=str(ROOT))
            flags = ("--directory", str(node.stage.kubelet_dir), "--devices", ",".join(node.stage.uuids))
            kind = ("--resource", RESOURCE, "--socket", SOCKET, "--like-nvidia")
            it.command = [sys.executable, "-m", "demo.standins.do_nothing_plugin", *flags, *kind]
            await it.start()
            alive.push_async_callback(it.clear_away)
            await node.kubelet.until(lambda: registered(node)[-1:] == [SOCKET], WITHIN)
            await node.offered(node.stage.gpus)
            return it

        yield begin


@pytest.fixture
async def before(bare, theirs: Theirs) -> Before:
    """A node from before Autoclave came: GPUs, a kubelet, and their plugin."""

    async def one(policy: str = OBSERVE, gpus: int = GPUS) -> tuple[Node, Plugin]:
        node: Node = bare(gpus, policy, runs=Working)
        stage = node.stage
        stage.kubelet = Kubelet(stage.kubelet_dir, stage.containers, timing=Timing(), logs=stage.pod_logs)
        layout.create(stage.simulated, gpus, 2**20, boot.boot_id())
        if stage.groups is not None:
            layout.make_nodes(stage.simulated)
        stage.uuids = tuple(place.info().uuid for place in layout.places(stage.simulated))
        await node.kubelet.start()
        return node, await theirs(node)

    return one


@pytest.fixture
async def node(bare) -> Node:
    """A node with everything of ours running and every GPU clean."""
    it: Node = bare(GPUS, runs=Working)
    await it.up()
    return it


async def test_control_under_their_plugin_the_next_pod_finds_the_secret(before):
    """That the tests below can see what they deny."""
    node, _ = await before(gpus=1)
    first = await node.run("first")
    uuid = node.gpu(first)
    await node.kubelet.delete(first)
    assert node.gpu(await node.run("next")) == uuid
    [found] = found_by_the_next(node)
    assert first.uid in found


# -- there


async def test_there_running_pods_keep_their_gpus(before):
    node, theirs = await before()
    pods = [await node.run("first"), await node.run("second")]
    was, gpus = [seen(node, pod) for pod in pods], [node.gpu(pod) for pod in pods]
    [free] = set(node.stage.uuids) - set(gpus)
    waits, _ = await asyncio.gather(doctor(node), node.stage.start())
    assert waits == 1, "there is a rival"
    for pod in pods:
        await node.reach(node.gpu(pod), owned_by(pod))
    assert await theirs.stop() == 0
    await node.offered(0)
    await refused(node, "no healthy devices present")
    assert await doctor(node) == 0
    await enter(node)
    assert node.gpu(await node.run("new")) == free
    assert len(await node.history(free, "granted-unproven")) == 1
    assert [(asked(node, uuid), await node.scrubs(uuid)) for uuid in gpus] == [(["Allocate"], 0)] * 2
    assert [seen(node, pod) for pod in pods] == was


async def test_there_a_restarted_container_keeps_its_memory_and_their_answer(before):
    """While theirs serves, in the gap, and under ours, which alone is asked; or after it did not run all the time."""
    node, theirs = await before()
    pod, crashed = await node.run("first"), await node.run("crashed")
    uuid, left = node.gpu(pod), [node.memory(node.gpu(it)) for it in (pod, crashed)]
    await node.kubelet.exit_container(crashed, "main")
    assert (await node.kubelet.restart_container(pod, "main")).state is ContainerState.RUNNING
    await node.stage.start()
    assert await theirs.stop() == 0
    await node.offered(0)
    assert (await node.kubelet.restart_container(pod, "main")).state is ContainerState.RUNNING
    await enter(node)
    assert (await node.kubelet.restart_container(pod, "main")).state is ContainerState.RUNNING
    assert (await node.kubelet.start_container(crashed, "main")).state is ContainerState.RUNNING
    assert [node.memory(node.gpu(it)) for it in (pod, crashed)] == left
    assert asked(node, uuid) == asked(node, node.gpu(crashed)) == ["Allocate", "PreStartContainer"]
    assert answers(node, pod) == [variable([uuid]).SerializeToString(deterministic=True)] * 4


async def test_there_after_observe_gpus_are_proven_when_their_pods_end(before):
    """Also one that their plugin handed out, unproven, while our service looked on."""
    node, theirs = await before()
    gone, first = await node.run("gone"), await node.run("first")
    late, uuid, free = node.stage.uuids  # in the order in which theirs hands them out
    await node.stage.start()
    await node.reach(late, owned_by(gone))
    await node.kubelet.delete(gone)
    await node.reach(late, lambda device: device.state == "dirty")
    stays = await node.run("stays")
    was = seen(node, stays)
    assert (node.gpu(first), node.gpu(stays), len(found_by_the_next(node))) == (uuid, late, 1)
    await switch(node, theirs)
    third = await node.run("third")
    await node.kubelet.delete(third)
    await node.reach(free, lambda device: device.state == "dirty")
    assert (node.memory(free) != b"", await node.scrubs(free)) == (True, 0), "observe scrubs nothing"
    node.rule(BRISK)
    await node.clean(free)
    assert node.gpu(await node.run("next")) == free
    await node.kubelet.delete(first)
    await node.clean(uuid)
    assert node.gpu(await node.run("heir")) == uuid
    assert (await node.scrubs(uuid), await node.scrubs(late), seen(node, stays)) == (1, 0, was)
    await node.kubelet.delete(stays)
    await node.clean(late)


# -- and back


async def test_back_running_pods_run_on_and_crashed_ones_wait(node, theirs):
    pod, fallen = await node.run("train"), await node.run("fallen")
    was, left = seen(node, pod), node.memory(node.gpu(fallen))
    await leave(node)
    await refused(node, "no healthy devices present")
    status = await node.kubelet.restart_container(fallen, "main")
    assert (status.reason, "has been stopped" in status.message) == ("CreateContainerConfigError", True)
    assert seen(node, pod) == was
    await theirs(node)
    assert await node.kubelet.sync(fallen)
    assert not node.kubelet.starts[-1].prestart
    assert (node.memory(node.gpu(fallen)), len(set(answers(node, fallen)))) == (left, 1)
    assert (seen(node, pod), asked(node, node.gpu(pod))) == (was, ["Allocate", "PreStartContainer"])


async def test_back_their_plugin_hands_out_what_ours_has_quarantined(node, theirs):
    pod = await node.run("train")
    out, spare = sorted(set(node.stage.uuids) - {node.gpu(pod)})
    was = seen(node, pod)
    async with node.stage.admin() as operator:
        await operator.quarantine(out, "replace the riser", "ann")
    await node.health(out, "Unhealthy")
    await leave(node)
    it = await theirs(node)
    both = await node.run("both", gpus=2)
    assert set(given(node, both)) == {out, spare}, "the other plugin knows of no quarantine"
    await node.kubelet.delete(both)
    await node.stage.start()
    await node.reach(out, lambda device: device.state == "quarantined")
    assert await it.stop() == 0
    await node.offered(0)
    await enter(node, GPUS - 1)
    await node.clean(spare)
    assert node.gpu(await node.run("next")) == spare
    assert (seen(node, pod), node.kubelet.devices(RESOURCE)[out]) == (was, "Unhealthy")


# -- what the how-to warns of


async def test_r1_ours_that_came_too_early_registers_again_by_itself(before):
    node, theirs = await before()
    pod = await node.run("train")
    was = seen(node, pod)
    await node.stage.start()
    await node.stage.plugin.start()
    await node.kubelet.until(lambda: registered(node)[1:], WITHIN)
    await node.kubelet.registered(RESOURCE, WITHIN)
    assert await theirs.stop() == 0
    await node.said(node.stage.plugin, "stream-ended")
    await node.offered(GPUS)
    first, *mine = registered(node)
    assert (first, len(mine), len(set(mine))) == (SOCKET, 2, 2)
    assert (seen(node, pod), asked(node, node.gpu(pod))) == (was, ["Allocate"])


async def test_beside_their_plugin_only_observe_leaves_its_gpus_alone(before):
    """Any other policy scrubs what is free, and theirs gives it to a pod meanwhile: nobody is asked."""
    node, _ = await before(UNHELD, gpus=1)
    [uuid] = node.stage.uuids
    node.stall(uuid)
    await node.stage.start()
    await node.job(uuid)
    await node.run("early")
    left = node.memory(uuid)
    await node.reach(uuid, lambda device: device.job is None)
    node.heal(uuid)
    assert (node.memory(uuid), asked(node, uuid), await node.scrubs(uuid)) == (left, ["Allocate"], 0)
