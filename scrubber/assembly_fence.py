"""Builds what keeps watch over who opens a GPU: the fence, and its guard."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from ground import log
from policies.policy_model import FenceMode, Policy
from scrubber.config import BackendChoice, ScrubberConfig
from scrubber.core.model import Holder
from scrubber.fence import fence
from scrubber.fence.fence import Fence, FenceError
from scrubber.node import cgroups
from scrubber.node.cgroup_tree import Tree
from scrubber.node.cgroups import Containers
from scrubber.node.processes import Processes
from scrubber.observe.excuses import Sources, Terms
from scrubber.observe.exempt import Exempt
from scrubber.observe.guard import Guard

logger = log.get("fence")

_PROC = Path("/proc")
_OWN = "autoclave"  # the control group of a service, below the one that it was started in


def guard(
    config: ScrubberConfig,
    namespace: int | None,
    processes: Processes,
    bystanders: Callable[[str], Callable[[Holder], bool]],
    policy: Callable[[str], Policy],
    *,
    fences: bool,
) -> Guard | str:
    """Who tells what the kernel counts; or why it counts nothing, which the log says too. Empty: it should not.

    ``fences``: whether the policy asks for it.
    """
    try:
        root = config.cgroup_root or fence.root()
        if not fences:
            fence.take_down(root)
            return ""
        groups_of = partial(Containers(_PROC, namespace, config.host_root / "sys/fs/cgroup").unified_groups, root=root)
        process = processes.process if namespace is None else _unseen  # the kernel names processes as the node does
        has_pods = config.cgroup_root is not None or _has_pods(root)
        if not has_pods:
            logger.info("the fence refuses nobody and knows no pods: they are in control groups of version 1")
        tree = Tree(root)
        exempt = Exempt(tree, groups_of, config.pod_logs)

        @cache
        def terms(device: str) -> Terms:
            said = policy(device)
            namespaces = (*said.evict.operator_namespaces, *config.operator_namespace)
            groups = exempt.groups(said.fence.exempt.units if has_pods else (), namespaces)
            mode = said.fence.mode
            return Terms(mode is FenceMode.REFUSE and has_pods, mode is not FenceMode.OFF, said.fence.lease, groups)

        def read() -> None:
            exempt.read()
            terms.cache_clear()

        sources = Sources(process, groups_of, bystanders, terms, read, exempt.place, tree.runs)
        own = own_group(config.cgroup_root)
        found = Guard(Fence(root), own, sources)
    except FenceError as error:
        if not fences:
            return ""
        logger.warning("the kernel does not count who opens a GPU", error=str(error))
        return str(error)
    found.start()
    return found


def _has_pods(root: Path) -> bool:
    """Whether pods are in these groups. On a hybrid node they share groups here, also with their runtime."""
    controllers = root / "cgroup.controllers"
    try:
        return controllers.read_text().strip() != ""
    except OSError as error:
        raise FenceError(f"cannot fence the GPUs: cannot read {controllers}: {error.strerror}") from error


def _unseen(_pid: int) -> tuple[Holder, ...]:
    return ()


def own_group(below: Path | None) -> int:
    """The control group of this service and of its workers, and of nobody else: not of who started it.

    ``below``: where it must be, also if this service was started elsewhere.
    """
    try:
        started_in = cgroups.own_group(fence.root() if below is None else below)
        if below is not None and (started_in is None or not started_in.is_relative_to(below)):
            started_in = below
        if started_in is None:
            raise FenceError("cannot fence the GPUs: the control group of this service is not to be found")
        own = started_in if started_in.name == _OWN else cgroups.move_below(started_in, _OWN)
        return own.stat().st_ino
    except OSError as error:
        raise FenceError(f"cannot fence the GPUs: cannot make a control group: {error.strerror}") from error


def is_possible(config: ScrubberConfig) -> bool:
    """Whether GPUs have device nodes: for simulated ones, a trial changes nothing else on the node."""
    return config.backend is not BackendChoice.SIMULATED or config.cgroup_root is not None
