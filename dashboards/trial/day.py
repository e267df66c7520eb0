"""A bad day as a list of acts: each brings a trouble about, lasts, and mends what it has broken.

Acts that stand together in ``DAY`` are in force together. An act names the alerts that it makes fire, where rules are
as impatient as the trial's; what it does, it does as anybody could: with the drills of ``autoclave simulate``, with the
operator's door, and with signals.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from dashboards.trial.node import GPUS, UNTIDY, WITHIN, TrialNode
from plugin.testing.pods import Phase, Pod
from scrubber.core.model import AilmentKind
from scrubber.demo.stage import RESOURCE
from scrubber.devices.simulated import drills
from scrubber.devices.simulated.documents import Resetting

Trouble = Callable[[TrialNode], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Act:
    """One trouble: a line for whoever watches, how it comes about and goes, and what fires while it is there."""

    line: str
    trouble: Trouble
    alerts: tuple[str, ...] = ()


Lasts = Callable[[Sequence[Act]], Awaitable[None]]
Say = Callable[[str], None]


@asynccontextmanager
async def in_force(node: TrialNode, acts: Sequence[Act], lasts: Lasts, say: Say) -> AsyncIterator[None]:
    """These acts together; afterwards everything is mended."""
    async with AsyncExitStack() as troubles:
        for act in acts:
            say(act.line)
            await troubles.enter_async_context(act.trouble(node))
        await lasts(acts)
        yield
    await node.calm()


async def play(node: TrialNode, day: Sequence[Sequence[Act]], lasts: Lasts, say: Say) -> None:
    """All of it, one after the other."""
    for acts in day:
        async with in_force(node, acts, lasts, say):
            pass


# -- pods


@asynccontextmanager
async def churn(node: TrialNode) -> AsyncIterator[None]:
    """A pod for each GPU, and their end."""
    pods = [await node.run(f"train-{number}") for number in range(GPUS)]
    yield
    for pod in pods:
        await node.stage.kubelet.delete(pod)


@asynccontextmanager
async def forced(node: TrialNode) -> AsyncIterator[None]:
    """A pod on all GPUs is deleted by force: its container runs on, and the next pods meet it."""
    pod = await node.run("forced", GPUS)
    await node.stage.kubelet.force_delete(pod)
    for number in range(GPUS):
        await _refused(node, f"next-{number}")
    yield
    await node.stage.kubelet.end_orphan(pod)


async def _refused(node: TrialNode, name: str) -> None:
    pod = Pod.of(name, {RESOURCE: 1})
    if (await node.stage.kubelet.admit(pod)).phase is not Phase.FAILED:
        raise RuntimeError(f"pod {name} was given a GPU that it must not have")
    await node.stage.kubelet.delete(pod)


@asynccontextmanager
async def residue(node: TrialNode) -> AsyncIterator[None]:
    """A pod ends and its memory was not cleared behind it."""
    pod = await node.run(f"{UNTIDY}-secret")
    [gpu] = node.given(pod)
    await node.stage.kubelet.delete(pod)
    await node.reach(gpu, lambda device: bool(device.receipt and device.receipt.residue_bytes))
    yield


@asynccontextmanager
async def outlived(node: TrialNode) -> AsyncIterator[None]:
    """A process of a pod outlives it, deaf to SIGTERM."""
    pod = await node.run("outlived")
    [gpu] = node.given(pod)
    node.stray(gpu)
    await node.stage.kubelet.delete(pod)
    await node.reach(gpu, lambda device: bool(device.receipt and device.receipt.processes_terminated))
    yield


@asynccontextmanager
async def intruder(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """A container that nobody gave the GPU to uses it."""
    pid = node.stray(gpu, "stranger")
    await node.reach(gpu, lambda device: device.state != "clean")
    yield
    node.end(pid)


@asynccontextmanager
async def shell(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """A process of no container holds the GPU: under the default policy it is waited for."""
    pid = node.stray(gpu)
    await node.reach(gpu, lambda device: device.state != "clean")
    yield
    node.end(pid)


@asynccontextmanager
async def sick_in_use(node: TrialNode) -> AsyncIterator[None]:
    """Memory errors on a GPU that a pod has; its container crashes, and is not let onto the GPU again."""
    pod = await node.run("unlucky")
    [gpu] = node.given(pod)
    drills.ecc(node.stage.simulated, node.stage.uuids[gpu])
    await node.stage.kubelet.until(lambda: _health(node, gpu) == "Unhealthy", WITHIN)
    await node.stage.kubelet.restart_container(pod, "main")
    for _ in range(22):  # the kubelet asks every 10 to 15 s; nobody has that much time here
        await node.stage.kubelet.start_container(pod, "main")
    yield
    await node.stage.kubelet.delete(pod)


def _health(node: TrialNode, gpu: int) -> str:
    return node.stage.kubelet.devices(RESOURCE)[node.stage.uuids[gpu]]


@asynccontextmanager
async def leaked(node: TrialNode) -> AsyncIterator[None]:
    """A pod's driver context leaks memory: no fast path brings that back, so a slow one follows it."""
    pod = await node.run("leaky")
    [gpu] = node.given(pod)
    drills.leak(node.stage.simulated, node.stage.uuids[gpu])
    yield
    await node.stage.kubelet.delete(pod)


# -- GPUs


@asynccontextmanager
async def xid(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """XID 79, and no reset helps while it lasts; then one does, and the GPU comes back by itself."""
    root, uuid = node.stage.simulated, node.stage.uuids[gpu]
    drills.break_reset(root, uuid, Resetting.FAILS)
    drills.xid(root, uuid, 79)
    await node.reach(gpu, lambda device: device.quarantine is not None and device.quarantine.probes > 0)
    yield
    drills.heal(root, uuid)


@asynccontextmanager
async def hot(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """It is slowed down by heat, and computes right."""
    root, uuid = node.stage.simulated, node.stage.uuids[gpu]
    drills.heat(root, uuid, 95)
    drills.sign(root, uuid, AilmentKind.HEAT, "hardware thermal slowdown")
    yield
    drills.heal(root, uuid)


@asynccontextmanager
async def hung(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """Driver calls for it do not return. It is out as soon as nobody has the patience any more: after some seconds."""
    drills.hang(node.stage.simulated, node.stage.uuids[gpu])
    yield
    await node.out(gpu)
    drills.heal(node.stage.simulated, node.stage.uuids[gpu])


@asynccontextmanager
async def drilled(node: TrialNode, gpu: int, drill: Callable[..., None], *about: object) -> AsyncIterator[None]:
    """A drill that takes the GPU out for as long as it is not healed."""
    drill(node.stage.simulated, node.stage.uuids[gpu], *about)
    await node.out(gpu)
    yield
    drills.heal(node.stage.simulated, node.stage.uuids[gpu])


@asynccontextmanager
async def bad_memory(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """A cell that holds no bit: the scrub finds it, tries the slow path, and then only a person brings it back."""
    drills.bad_memory(node.stage.simulated, node.stage.uuids[gpu], 4711, 5)
    async with node.stage.admin() as operator:
        async for _ in operator.scrub([str(gpu)]):
            pass
        await node.out(gpu)
        yield
        drills.heal(node.stage.simulated, node.stage.uuids[gpu])
        async for _ in operator.reinstate(str(gpu), "the module was replaced", "alice"):
            pass


@asynccontextmanager
async def by_hand(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """A person takes it out, and brings it back without asking for evidence."""
    async with node.stage.admin() as operator:
        await operator.quarantine(str(gpu), "maintenance", "bob")
        await node.out(gpu)
        async for _ in operator.reinstate(str(gpu), "it looks fine", "bob", without_evidence=True):
            pass
    yield


# -- what hands them out


@asynccontextmanager
async def no_kubelet(node: TrialNode) -> AsyncIterator[None]:
    """The kubelet is down, and back."""
    await node.stage.kubelet.kill()
    yield
    await node.stage.kubelet.start()
    await node.stage.kubelet.registered(RESOURCE, WITHIN)


@asynccontextmanager
async def no_plugin(node: TrialNode) -> AsyncIterator[None]:
    """The plugin is killed, and back."""
    await node.stage.plugin.end(signal.SIGKILL)
    await node.stage.kubelet.until(lambda: node.stage.kubelet.allocatable.get(RESOURCE) == 0, WITHIN)
    yield
    await node.stage.plugin.start()
    await node.stage.kubelet.registered(RESOURCE, WITHIN)


@asynccontextmanager
async def no_service(node: TrialNode) -> AsyncIterator[None]:
    """The scrub service is killed, and back."""
    await node.stage.service.end(signal.SIGKILL)
    yield
    await node.stage.start()


@asynccontextmanager
async def damaged_ledger(node: TrialNode) -> AsyncIterator[None]:
    """It is killed again, and its ledger is damaged when it comes back."""
    await node.stage.service.end(signal.SIGKILL)
    node.stage.ledger.write_bytes(b"not a ledger any more")
    await node.stage.start()
    yield
    for old in node.stage.ledger.parent.glob("*.corrupt-*"):  # looked at, and put away: told at the next start
        old.unlink()


@asynccontextmanager
async def full_disk(node: TrialNode) -> AsyncIterator[None]:
    """The ledger cannot be written, as the next pod finds out."""
    node.limit_writes(to_nothing=True)
    await _refused(node, "unwritten")
    yield
    node.limit_writes(to_nothing=False)


@asynccontextmanager
async def wrong_policy(node: TrialNode) -> AsyncIterator[None]:
    """The policy's file says something that there is not."""
    node.rule("trusting")
    yield
    node.rule()


@asynccontextmanager
async def unproven(node: TrialNode) -> AsyncIterator[None]:
    """Somebody sets the policy to observe: the second pod gets a GPU that nobody scrubbed."""
    node.rule("observe")
    for name in ("first", "second", "third", "fourth", "fifth"):
        await node.stage.kubelet.delete(await node.run(name))
    yield
    node.rule()


DAY: tuple[tuple[Act, ...], ...] = (
    (
        Act("a pod is deleted by force; the next ones are refused its GPUs", forced, ("AutoclaveAllocateRefused",)),
    ),
    (Act("pods come and go", churn),),
    (
        Act("a pod leaves bytes behind that no driver cleared", residue, ("AutoclaveResidueFound",)),
        Act("a process outlives its pod", outlived),
        Act("a container uses GPU 0 without asking", partial(intruder, gpu=0), ("AutoclaveUnauthorisedUse",)),
        Act("a shell on the host holds GPU 1", partial(shell, gpu=1), ("AutoclaveGpuBlocked",)),
    ),
    (
        Act("driver calls for GPU 2 hang", partial(hung, gpu=2)),
        Act(
            "a GPU has memory errors while a pod is on it", sick_in_use,
            ("AutoclaveGpuSickInUse", "AutoclaveStartsRefused"),
        ),
        Act("memory leaks on another", leaked),
    ),
    (
        Act("GPU 0 falls off its bus (XID 79), and resets fail", partial(xid, gpu=0),
            ("AutoclaveGpuFatalXid", "AutoclaveGpuOnProbation")),
        Act("GPU 1 is hot and slow", partial(hot, gpu=1), ("AutoclaveGpuImpaired",)),
    ),
    (Act("the kubelet is down", no_kubelet, ("AutoclaveKubeletNotConnected",)),),
    (
        Act("the device plugin is killed", no_plugin, ("AutoclaveTargetDown", "AutoclavePluginDown")),
        Act("the policy's file is wrong", wrong_policy, ("AutoclavePolicyFault",)),
        Act("a person takes GPU 3 out, and brings it back without evidence", partial(by_hand, gpu=3),
            ("AutoclaveManualReinstate",)),
    ),
    (Act("the policy is set to observe", unproven, ("AutoclaveUnprovenGrants",)),),
    (Act("the disk is full: the ledger cannot be written", full_disk, ("AutoclaveLedgerFault", "AutoclaveNodeOut")),),
    (Act("the scrub service is killed", no_service, ("AutoclaveScrubberUnheard",)),),
    (Act("its ledger is damaged", damaged_ledger, ("AutoclaveLedgerSetAside",)),),
)  # fmt: skip

# Three faults at once, to be found from the pages alone; see docs/observability.md.
EVENING: tuple[Act, ...] = (
    Act("GPU 0 is gone from its bus", partial(drilled, gpu=0, drill=drills.lose), ("AutoclaveGpuMissing",)),
    Act("a memory cell of GPU 1 holds no bit", partial(bad_memory, gpu=1), ("AutoclaveGpuQuarantined",)),
    Act(
        "the driver asks for a reboot because of GPU 2",
        lambda node: drilled(node, 2, drills.sign, AilmentKind.REBOOT_REQUIRED, "the driver says so"),
        ("AutoclaveGpuRebootRequired", "AutoclaveFleetDegraded", "AutoclaveNodeDegraded"),
    ),
)
