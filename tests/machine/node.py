"""``make machine ARGS=--node``: two nodes of Kubernetes under one control plane. One of them is the machine.

So that node has systemd, version 2 of control groups and the systemd driver; its runtime and its kubelet are units. The
other node and the control plane are programs of ``isolated`` on this machine. The chart is installed on both, and the
trouble of one node must not reach the other. The tests of one node are those of ``cluster``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from lightkube.resources.core_v1 import Node, Pod

from deploy import generate
from tests.cluster import isolated, programs
from tests.cluster.cluster import Cluster
from tests.cluster.installed import GPUS, Installed
from tests.cluster.programs import NODE, WHOLE_NODE
from tests.machine import building, cluster, vm
from tests.machine.progress import say

JOURNALS = Path("/var/lib/journals")  # of the pods, on both nodes
LOGS = building.FOLDER / "node"
VALUES = {
    **generate.OVERLAYS["simulated"],
    "clusterReports": {"enabled": True},
    "directories": {"cdi": "/var/run/cdi"},
    "policy": {"inline": "name: machine\ndefaults: {timeouts: 10}\n"},
}


class Nodes:
    """Both nodes, as a person sees them from the API server."""

    def __init__(self, machine: vm.Machine, cluster: Cluster) -> None:
        """``cluster``: its journals are those of both nodes."""
        self.machine, self.cluster = machine, cluster
        self.installed = Installed(LOGS / "installed", VALUES)

    async def follow(self) -> None:
        """Bring the journals of the machine here, for ever."""

        def brought() -> None:
            with suppress(building.NoMachineError):  # it boots, or was lost
                if self.machine.run(f"tar -C {JOURNALS} -c -f /host/journals.tar .") == 0:
                    with tarfile.open(self.machine.folder / "journals.tar") as archive:
                        archive.extractall(JOURNALS, filter="data")

        while True:
            await asyncio.to_thread(brought)
            await asyncio.sleep(2)

    async def hold(self, name: str, node: str) -> None:
        """A pod that uses all GPUs of a node, and that finds no byte in them."""
        await self.cluster.hold(name, gpus=GPUS, **on(node))
        assert self.cluster.words(name).count("CLEAN") == GPUS, self.cluster.story()

    async def delete(self, *names: str) -> None:
        """Delete pods. Return when they are gone."""
        for name in names:
            await self.cluster.delete(name)
            await self.cluster.gone(name)

    async def missed(self) -> None:
        """Return when Kubernetes misses the machine."""
        await self.cluster.until(
            Node,
            WHOLE_NODE,
            lambda node: ("Ready", "Unknown") in [(it.type, it.status) for it in node.status.conditions or ()],
        )

    async def said(self, *arguments: str, good: tuple[int, ...] = (0,)) -> str:
        """What ``kubectl autoclave`` prints."""
        done = await asyncio.to_thread(
            subprocess.run,
            ["deploy/kubectl/kubectl-autoclave", *arguments],
            cwd=building.ROOT,
            env={**os.environ, "PATH": f"{cluster.BUILT}:{os.environ['PATH']}", "KUBECONFIG": str(programs.KUBECONFIG)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in good, f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr}"
        return done.stdout + done.stderr


def on(node: str) -> dict[str, object]:
    """The field of a pod that says where it runs."""
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


# -- the steps, in their order


async def installed_on_both(nodes: Nodes) -> None:
    """Each node offers its GPUs, and one command shows them all."""
    await nodes.installed.up()
    for node in (NODE, WHOLE_NODE):
        await nodes.cluster.offered(GPUS, node=node)
    text = await nodes.said("status", "-A", "--within", "120")
    assert text.count("clean") >= 2 * GPUS, text
    await nodes.hold("here", NODE)
    await nodes.hold("there", WHOLE_NODE)
    listed = await nodes.said("receipt", "list", "-A", "--within", "120", "-o", "csv")
    assert all(f"default/{pod}" in listed for pod in ("here", "there")), listed


async def updated_on_both(nodes: Nodes) -> None:
    """Pods keep their GPUs while service and plugin are replaced on both nodes."""
    for name in ("autoclave-scrubber", "autoclave-plugin"):
        await nodes.installed.update(name)
    for pod in ("here", "there"):
        await nodes.cluster.said(pod, "INTACT", more=4)
    await nodes.delete("here", "there")


async def a_pod_moves(nodes: Nodes) -> None:
    """From a node whose GPUs are all out to the other one."""
    for gpu in range(GPUS):
        await nodes.said(WHOLE_NODE, "quarantine", str(gpu), "--reason", "a test")
    await nodes.cluster.offered(0, node=WHOLE_NODE)
    await nodes.cluster.hold("moved", gpus=GPUS)
    moved = (await nodes.cluster.client.get(Pod, "moved")).to_dict()
    assert moved["spec"]["nodeName"] == NODE
    for gpu in range(GPUS):
        await nodes.said(WHOLE_NODE, "reinstate", str(gpu))
    await nodes.cluster.offered(GPUS, node=WHOLE_NODE)
    await nodes.delete("moved")


async def reboot(nodes: Nodes) -> None:
    """With a running pod on each node."""

    async def reboots() -> None:
        await asyncio.to_thread(nodes.machine.reboot)

    await _boots_again(nodes, "reboot", reboots)


async def power_cut(nodes: Nodes) -> None:
    """With a running pod on each node."""

    async def cut() -> None:
        nodes.machine.cut_power()
        await asyncio.to_thread(nodes.machine.start)

    await _boots_again(nodes, "cut", cut)


async def _boots_again(nodes: Nodes, name: str, boots: Callable[[], Awaitable[None]]) -> None:
    """The pod on the other node goes on; the next one in the machine finds nothing of that before the boot."""
    await nodes.hold(f"{name}-here", NODE)
    await nodes.hold(f"{name}-there", WHOLE_NODE)
    before = nodes.machine.output("cat /proc/sys/kernel/random/boot_id")
    await boots()
    assert nodes.machine.output("cat /proc/sys/kernel/random/boot_id") != before
    await nodes.cluster.said(f"{name}-here", "INTACT", more=4)
    await nodes.cluster.delete(f"{name}-there")
    await nodes.cluster.gone(f"{name}-there")
    await nodes.cluster.offered(GPUS, node=WHOLE_NODE)
    await nodes.hold(f"{name}-next", WHOLE_NODE)
    ledger = await nodes.said(WHOLE_NODE, "ledger", "verify")
    say(ledger.strip())
    await nodes.delete(f"{name}-here", f"{name}-next")


async def never_comes_back(nodes: Nodes) -> None:
    """Its pods are gone with its Node object; the other node does not notice."""
    await nodes.hold("lost", WHOLE_NODE)
    await nodes.hold("beside", NODE)
    nodes.machine.cut_power()
    await nodes.missed()
    shown = await nodes.said("status", "-A", "--within", "20", good=(3,))
    assert WHOLE_NODE in shown, shown
    say(shown.strip())
    await nodes.cluster.delete("lost")
    await nodes.cluster.client.delete(Node, WHOLE_NODE)
    await nodes.cluster.gone("lost")
    await nodes.said("status", "-A", "--within", "20")
    await nodes.cluster.said("beside", "INTACT", more=4)
    await nodes.delete("beside")
    await nodes.hold("after", NODE)


STEPS = (installed_on_both, updated_on_both, a_pod_moves, reboot, power_cut, never_comes_back)


# -- the campaign


def campaign(arguments: Sequence[str]) -> list[int]:
    """An exit code for each of ``STEPS``, or for those that are named."""
    parts = [step.__name__ for step in STEPS]
    if unknown := [name for name in arguments if name not in parts]:
        raise building.NoMachineError(f"no part is called {', '.join(unknown)}; there are {', '.join(parts)}")
    if os.geteuid() != 0:
        raise building.NoMachineError("a second node takes root: run make machine ARGS=--node as root")
    if not (cluster.BUILT / "kubectl").exists():
        raise building.NoMachineError(f"kubectl not found in {cluster.BUILT}: run make node")
    if not cluster.IMAGE.exists():
        raise building.NoMachineError(f"no image: make image ARGS='--cuda none --archive {cluster.IMAGE}'")
    if not isolated.STATE.is_dir():
        os.environ["AUTOCLAVE_TESTS_WAIT"] = str(cluster.PATIENCE)
        python = (sys.executable, "-m")
        os.execv(  # noqa: S606 - no shell is wanted
            sys.executable, [*python, "tests.cluster.isolated", *python, "tests.machine", "--node", *arguments]
        )
    if reason := programs.missing(cluster.BUILT):
        raise building.NoMachineError(reason)
    shutil.rmtree(LOGS, ignore_errors=True)
    for folder in (LOGS, JOURNALS):
        folder.mkdir(parents=True)
    subprocess.run(["sh", "-ec", cluster.LINK], check=True)
    programs.ControlPlane(cluster.BUILT, LOGS).up()
    return asyncio.run(_campaign(arguments or parts))


async def _campaign(wanted: Sequence[str]) -> list[int]:
    with cluster.a_node() as machine:
        async with _nodes(machine) as nodes:
            _join(machine)
            return [await _try(nodes, step) for step in STEPS if step.__name__ in wanted]


@asynccontextmanager
async def _nodes(machine: vm.Machine) -> AsyncIterator[Nodes]:
    """Both nodes, neither of which has joined."""
    machine.run(f"mkdir -p {JOURNALS}")
    async with Cluster.connect() as client:
        nodes = Nodes(machine, Cluster(client, JOURNALS))
        following = asyncio.create_task(nodes.follow())
        yield nodes
        following.cancel()


def _join(machine: vm.Machine) -> None:
    """Both kubelets run, and the image is in both runtimes."""
    python = f"cd {building.INSIDE} && .venv/bin/python -c"
    code = (
        "from pathlib import Path; from tests.cluster.programs import Node;"
        f"folder = Path('{cluster.INSIDE}'); node = Node(folder, Path('/var/log'));"
        f"node.join(); node.load(folder / '{cluster.IMAGE.name}')"
    )
    if machine.run(f'{python} "{code}"') != 0:
        raise building.NoMachineError("the kubelet of the machine does not start")
    node = programs.Node(cluster.BUILT, LOGS)
    node.join()
    node.load(cluster.IMAGE)


async def _try(nodes: Nodes, step: Callable[[Nodes], Awaitable[None]]) -> int:
    say(step.__name__)
    try:
        await step(nodes)
        assert nodes.cluster.faults() == []
    except (AssertionError, TimeoutError, subprocess.SubprocessError) as error:
        say(f"{step.__name__}: failed: {error!r}")
        return 1
    say(f"{step.__name__}: passed")
    return 0
