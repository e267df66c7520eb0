"""A bad day as a list of acts. Each act causes a problem, lets it last, and repairs it.

The acts of one entry of ``DAY`` run together. An act lists the alerts that it fires with the short timeouts of the
trial. It uses only what a person could use: the drills of ``autoclave simulate``, the admin socket, and signals.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from demo import groups
from demo.bad_day.node import GPUS, UNTIDY, WITHIN, TrialNode
from demo.installation import RESOURCE
from demo.standins.pods import Phase, Pod
from scrubber.core.model import AilmentKind
from scrubber.devices.simulated import drills
from scrubber.devices.simulated.layout import Resetting

Trouble = Callable[[TrialNode], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Act:
    """One problem: a line to print, how to cause and repair it, and the alerts that it fires."""

    line: str
    trouble: Trouble
    alerts: tuple[str, ...] = ()


Wait = Callable[[Sequence[Act]], Awaitable[None]]
Say = Callable[[str], None]


@asynccontextmanager
async def running(node: TrialNode, acts: Sequence[Act], wait: Wait, say: Say) -> AsyncIterator[None]:
    """Cause the problems of these acts together, and repair them afterwards."""
    async with AsyncExitStack() as troubles:
        for act in acts:
            say(act.line)
            await troubles.enter_async_context(act.trouble(node))
        await wait(acts)
        yield
    await node.wait_until_clean()


async def play(node: TrialNode, day: Sequence[Sequence[Act]], wait: Wait, say: Say) -> None:
    """Play all acts, one entry after the other."""
    for acts in day:
        async with running(node, acts, wait, say):
            pass


# -- pods


@asynccontextmanager
async def churn(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """Run a pod on each GPU, and delete the pods. The clear of one GPU stalls for a while."""
    pods = [await node.run(f"train-{number}") for number in range(GPUS)]
    drills.stall_clears(node.stage.simulated, node.stage.uuids[gpu])
    for pod in pods:
        await node.stage.kubelet.delete(pod)
    await node.reach(gpu, lambda device: device.state == "scrubbing")
    yield
    drills.heal(node.stage.simulated, node.stage.uuids[gpu])


@asynccontextmanager
async def force_deleted(node: TrialNode) -> AsyncIterator[None]:
    """Delete a pod on all GPUs by force: its container still runs, and the next pods are refused.

    The kubelet is busy, so it does not hear soon enough that these GPUs are not to be given to pods.
    """
    pod = await node.run("forced", GPUS)
    with node.stage.kubelet.hearing_nothing(RESOURCE):
        await node.stage.kubelet.force_delete(pod)
        for number in range(2 * GPUS):  # the alert counts each reason for itself; a busy machine gives two
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
    """Delete a pod whose memory the driver does not clear."""
    pod = await node.run(f"{UNTIDY}-secret")
    [gpu] = node.gpus_of(pod)
    await node.stage.kubelet.delete(pod)
    await node.reach(gpu, lambda device: bool(device.receipt and device.receipt.residue_bytes))
    yield


@asynccontextmanager
async def outlived(node: TrialNode) -> AsyncIterator[None]:
    """A process of a pod outlives the pod and ignores SIGTERM."""
    pod = await node.run("outlived")
    [gpu] = node.gpus_of(pod)
    node.occupy(gpu)
    await node.stage.kubelet.delete(pod)
    await node.reach(gpu, lambda device: bool(device.receipt and device.receipt.processes_terminated))
    yield


@asynccontextmanager
async def unauthorised(node: TrialNode) -> AsyncIterator[None]:
    """A container uses the GPU of a pod of others."""
    pod = await node.run("trusting")
    [gpu] = node.gpus_of(pod)
    pid = node.occupy(gpu, "stranger")
    yield
    node.end(pid)
    await node.stage.kubelet.delete(pod)


@asynccontextmanager
async def foreign_process(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """A process outside containers holds the GPU. With the default policy, the scrub waits for it."""
    pid = node.occupy(gpu)
    await node.reach(gpu, lambda device: device.state != "clean")
    yield
    node.end(pid)


@asynccontextmanager
async def monitor(node: TrialNode) -> AsyncIterator[None]:
    """A program of the host that no policy names looks at the GPU of a pod. The kernel counts it."""
    pod = await node.run("watched")
    [gpu] = node.gpus_of(pod)
    await node.stage.read(gpu)
    yield
    await node.stage.kubelet.delete(pod)


@asynccontextmanager
async def held(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """The fence holds pods, and a container opens a GPU that it was not given. The kernel refuses it."""
    node.write_policy(fence="hold")
    await node.reach(gpu, lambda device: device.fence == "hold")
    if not await node.stage.read(gpu, "stranger"):
        raise RuntimeError(f"a container could open GPU {gpu}, which was not given to it")
    yield
    node.write_policy()


@asynccontextmanager
async def sick_in_use(node: TrialNode) -> AsyncIterator[None]:
    """A GPU has memory errors while a pod uses it. The container crashes and cannot start on the GPU again."""
    pod = await node.run("unlucky")
    [gpu] = node.gpus_of(pod)
    drills.ecc(node.stage.simulated, node.stage.uuids[gpu])
    await node.stage.kubelet.until(lambda: _health(node, gpu) == "Unhealthy", WITHIN)
    await node.stage.kubelet.restart_container(pod, "main")
    for _ in range(22):  # the kubelet asks every 10 to 15 s, which is too slow for a trial
        await node.stage.kubelet.start_container(pod, "main")
    yield
    await node.stage.kubelet.delete(pod)


def _health(node: TrialNode, gpu: int) -> str:
    return node.stage.kubelet.devices(RESOURCE)[node.stage.uuids[gpu]]


@asynccontextmanager
async def leaked(node: TrialNode) -> AsyncIterator[None]:
    """A pod leaks memory of its driver context: the fast path fails, and a reset follows."""
    pod = await node.run("leaky")
    [gpu] = node.gpus_of(pod)
    drills.leak(node.stage.simulated, node.stage.uuids[gpu])
    yield
    await node.stage.kubelet.delete(pod)


# -- GPUs


@asynccontextmanager
async def xid(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """XID 79, and resets fail while it lasts. Then a reset works, and the GPU returns by itself."""
    root, uuid = node.stage.simulated, node.stage.uuids[gpu]
    drills.break_reset(root, uuid, Resetting.FAILS)
    drills.xid(root, uuid, 79)
    await node.reach(gpu, lambda device: device.quarantine is not None and device.quarantine.probes > 0)
    yield
    drills.heal(root, uuid)


@asynccontextmanager
async def hot(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """Heat slows the GPU down; its results stay correct."""
    root, uuid = node.stage.simulated, node.stage.uuids[gpu]
    drills.heat(root, uuid, 95)
    yield
    drills.heal(root, uuid)


@asynccontextmanager
async def hung(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """Driver calls for a GPU hang. After some seconds the GPU is quarantined."""
    drills.hang(node.stage.simulated, node.stage.uuids[gpu])
    await node.quarantined(gpu)  # until then the kubelet may give it to a pod of the next act, which then fails
    await node.stage.kubelet.until(lambda: _health(node, gpu) == "Unhealthy", WITHIN)
    yield
    drills.heal(node.stage.simulated, node.stage.uuids[gpu])


@asynccontextmanager
async def drilled(node: TrialNode, gpu: int, drill: Callable[..., None], *about: object) -> AsyncIterator[None]:
    """A drill that keeps the GPU in quarantine until it is healed."""
    drill(node.stage.simulated, node.stage.uuids[gpu], *about)
    await node.quarantined(gpu)
    yield
    drills.heal(node.stage.simulated, node.stage.uuids[gpu])


@asynccontextmanager
async def bad_memory(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """A stuck memory cell: the scrub finds it, tries a reset, and then the GPU waits for an operator."""
    drills.bad_memory(node.stage.simulated, node.stage.uuids[gpu], 4711, 5)
    async with node.stage.admin() as operator:
        async for _ in operator.scrub([str(gpu)]):
            pass
        await node.quarantined(gpu)
        yield
        drills.heal(node.stage.simulated, node.stage.uuids[gpu])
        async for _ in operator.reinstate(str(gpu), "the module was replaced", "alice"):
            pass


@asynccontextmanager
async def by_hand(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """A person quarantines a GPU, and reinstates it without evidence."""
    async with node.stage.admin() as operator:
        await operator.quarantine(str(gpu), "maintenance", "bob")
        await node.quarantined(gpu)
        async for _ in operator.reinstate(str(gpu), "it looks fine", "bob", without_evidence=True):
            pass
    yield


# -- the kubelet, the plugin and the service


@asynccontextmanager
async def no_kubelet(node: TrialNode) -> AsyncIterator[None]:
    """The kubelet is down for a while."""
    await node.stage.kubelet.kill()
    yield
    await node.stage.kubelet.start()
    await node.stage.kubelet.registered(RESOURCE, WITHIN)


@asynccontextmanager
async def no_plugin(node: TrialNode) -> AsyncIterator[None]:
    """The plugin is killed and started again."""
    await node.stage.plugin.end(signal.SIGKILL)
    await node.stage.kubelet.until(lambda: node.stage.kubelet.allocatable.get(RESOURCE) == 0, WITHIN)
    yield
    await node.stage.plugin.start()
    await node.stage.kubelet.registered(RESOURCE, WITHIN)


@asynccontextmanager
async def no_service(node: TrialNode) -> AsyncIterator[None]:
    """The scrub service is killed and started again."""
    await node.stage.service.end(signal.SIGKILL)
    yield
    await node.stage.start()


@asynccontextmanager
async def damaged_ledger(node: TrialNode) -> AsyncIterator[None]:
    """The scrub service is killed and its ledger damaged before it starts again."""
    await node.stage.service.end(signal.SIGKILL)
    node.stage.ledger.write_bytes(b"not a ledger any more")
    await node.stage.start()
    yield
    for old in node.stage.ledger.parent.glob("*.corrupt-*"):  # removed by the operator; the next start clears the alert
        old.unlink()


@asynccontextmanager
async def full_disk(node: TrialNode) -> AsyncIterator[None]:
    """The ledger cannot be written, so the next pod is refused."""
    node.limit_writes(to_nothing=True)
    await _refused(node, "unwritten")
    yield
    node.limit_writes(to_nothing=False)


@asynccontextmanager
async def wrong_policy(node: TrialNode) -> AsyncIterator[None]:
    """The policy file has an invalid value."""
    node.write_policy("trusting")
    yield
    node.write_policy()


@asynccontextmanager
async def unproven(node: TrialNode, gpu: int) -> AsyncIterator[None]:
    """The policy is set to observe, so that a pod gets a GPU whose memory was not cleared after the last one."""
    node.write_policy("observe")
    await node.observes()
    drills.stall_clears(node.stage.simulated, node.stage.uuids[gpu])
    for name in ("first", "second"):
        await node.stage.kubelet.delete(await node.run(name, GPUS))
    yield
    drills.heal(node.stage.simulated, node.stage.uuids[gpu])
    node.write_policy()


# Where this user can have no fence, these acts are left out.
_FENCE: tuple[tuple[Act, ...], ...] = (
    (
        Act("a monitor that nobody named looks at the GPU of a pod", monitor, ("AutoclaveGpuOpened",)),
        Act("the fence holds pods; a container opens GPU 0 without a grant", partial(held, gpu=0),
            ("AutoclaveGpuRefused",)),
    ),
)  # fmt: skip

DAY: tuple[tuple[Act, ...], ...] = (
    (
        Act("a pod is deleted by force; the next pods are refused", force_deleted, ("AutoclaveAllocateRefused",)),
    ),
    (Act("pods come and go, and the scrub of GPU 3 takes long", partial(churn, gpu=3)),),
    (
        Act("a shell on the host holds GPU 1", partial(foreign_process, gpu=1),
            ("AutoclaveGpuBlocked", "AutoclaveGpuOpened")),
        Act("a pod leaves data behind that the driver does not clear", residue, ("AutoclaveResidueFound",)),
        Act("a process outlives its pod", outlived),
        Act("a container uses the GPU of a pod", unauthorised, ("AutoclaveUnauthorisedUse",)),
    ),
    *(() if groups.why_none() else _FENCE),
    (
        Act("driver calls for GPU 2 hang", partial(hung, gpu=2)),
        Act(
            "a GPU has memory errors while a pod uses it", sick_in_use,
            ("AutoclaveGpuSickInUse", "AutoclaveStartsRefused"),
        ),
        Act("a pod leaks memory on another GPU", leaked),
    ),
    (
        Act("GPU 0 falls off its bus (XID 79), and resets fail", partial(xid, gpu=0),
            ("AutoclaveGpuFatalXid",)),
        Act("GPU 1 is hot and slow", partial(hot, gpu=1), ("AutoclaveGpuImpaired",)),
    ),
    (Act("the kubelet is down", no_kubelet, ("AutoclaveKubeletNotConnected",)),),
    (
        Act("the device plugin is killed", no_plugin, ("AutoclaveTargetDown", "AutoclavePluginDown")),
        Act("the policy file is invalid", wrong_policy, ("AutoclavePolicyFault",)),
        Act("an operator quarantines GPU 3, and reinstates it without evidence", partial(by_hand, gpu=3),
            ("AutoclaveManualReinstate",)),
    ),
    (Act("the policy is set to observe", partial(unproven, gpu=1), ("AutoclaveUnprovenGrants",)),),
    (Act("the disk is full: the ledger cannot be written", full_disk, ("AutoclaveLedgerFault", "AutoclaveNodeOut")),),
    (Act("the scrub service is killed", no_service, ("AutoclaveScrubberUnheard",)),),
    (Act("its ledger is damaged", damaged_ledger, ("AutoclaveLedgerSetAside",)),),
)  # fmt: skip

# Three faults at once that can be found with the pages alone; see docs/observability.md.
EVENING: tuple[Act, ...] = (
    Act("GPU 0 is lost from its bus", partial(drilled, gpu=0, drill=drills.lose), ("AutoclaveGpuMissing",)),
    Act("a memory cell of GPU 1 is stuck", partial(bad_memory, gpu=1), ("AutoclaveGpuQuarantined",)),
    Act(
        "the driver asks for a reboot because of GPU 2",
        lambda node: drilled(node, 2, drills.sign, AilmentKind.REBOOT_REQUIRED, "the driver says so"),
        ("AutoclaveGpuRebootRequired", "AutoclaveFleetDegraded", "AutoclaveNodeDegraded"),
    ),
)
