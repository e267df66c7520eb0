"""Builds what keeps watch over who opens a GPU: the fence, and its guard."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from ground import log
from policies.policy_model import Policy, digest
from policies.values import FenceMode
from scrubber.config import BackendChoice, ScrubberConfig
from scrubber.core.model import Holder
from scrubber.fence.exempt import Exempt
from scrubber.fence.guard import Guard
from scrubber.fence.ignored import Sources, Terms
from scrubber.fence.kernel import fence
from scrubber.fence.kernel.fence import Fence, FenceError
from scrubber.node import cgroup_tree, group_places, own_cgroup, proc
from scrubber.node.cgroup_tree import GroupIds, Tree
from scrubber.node.new_groups import NewGroups
from scrubber.node.pods import PodNames
from scrubber.node.processes import Processes
from scrubber.node.sandboxes import Sandboxes

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
        sandboxes = Sandboxes(config.host_root)
        made_for = sandboxes.group if config.cgroup_root is None else _unsaid
        group_ids = GroupIds(root, made_for)
        rivals: dict[str, frozenset[Path]] = {}  # as the log has them

        def groups_of(pod: str) -> frozenset[int]:
            groups, earlier = group_ids.of(pod), rivals.pop(pod, None)
            if pod in group_ids.rivals:
                rivals[pod] = group_ids.rivals[pod]
                if rivals[pod] != earlier:
                    others = sorted(map(str, rivals[pod]))
                    logger.warning("a second control group has the name of a pod", pod=pod, groups=others)
            return groups

        process = processes.process if namespace is None else _unseen  # the kernel names processes as the node does
        has_pods = config.cgroup_root is not None or _has_pods(root)
        if not has_pods:
            logger.info("the fence refuses nobody and knows no pods: they are in control groups of version 1")
        tree = Tree(root, config.host_root)
        exempt = Exempt(tree, groups_of, PodNames(sandboxes, config.pod_logs))

        looking = threading.Lock()  # two threads ask

        @cache
        def terms(device: str) -> Terms:
            chosen = policy(device)
            namespaces = (*chosen.evict.operator_namespaces, *config.operator_namespace)
            units = (*chosen.fence.exempt.all_units, *config.exempt_unit)
            names = chosen.exempt_names(config.exempt_unit, config.operator_namespace)
            with looking:
                groups = exempt.groups(units, namespaces) if has_pods else frozenset[int]()
            return Terms(
                refuse=chosen.fence_mode is FenceMode.REFUSE and has_pods,
                held=tree.pods if chosen.fence_mode is FenceMode.HOLD and has_pods else None,
                fenced=chosen.fence_mode is not FenceMode.OFF,
                lease=chosen.fence.lease,
                exempt=groups,
                exempt_digest=digest(names) if names else "",
                namespaces=frozenset(namespaces),
                names=partial(cgroup_tree.is_named, units),
                pods_have_groups=has_pods,
            )

        def read() -> None:
            with looking:
                exempt.read()
            terms.cache_clear()

        sources = Sources(
            process, groups_of, bystanders, terms, read, exempt.place, tree.runs, tree.is_gone, _is_ours,
            _below(config.cgroup_root), lambda uid: exempt.names.get(uid, ""), lambda: proc.pids_are_free(_PROC),
            _group_of,
        )  # fmt: skip
        own, standing = own_group(config.cgroup_root), Fence(root)
        standing.keep_alone(os.getpid(), _started(os.getpid()), runs=_runs)
        new_groups = NewGroups(root, config.host_root)
        found = Guard(standing, own, sources, knows_processes=namespace is None, new_groups=new_groups)
    except (FenceError, OSError) as error:
        if not fences:
            return ""
        logger.warning("the kernel does not count who opens a GPU", error=str(error))
        return str(error)
    found.rules.admit_process(os.getpid())
    found.start()
    return found


def _below(cgroup_root: Path | None) -> str:
    """The name of the control group, if the fence stands below one."""
    if cgroup_root is None:
        return ""
    with suppress(FenceError, ValueError):  # ValueError: it is not below the root
        return f"/{cgroup_root.relative_to(fence.root())}"
    return str(cgroup_root)


def _has_pods(root: Path) -> bool:
    """Whether pods are in these groups. On a hybrid node they share groups here, also with their runtime."""
    controllers = root / "cgroup.controllers"
    try:
        return controllers.read_text().strip() != ""
    except OSError as error:
        raise FenceError(f"cannot fence the GPUs: cannot read {controllers}: {error.strerror}") from error


def _unsaid(_pod: str) -> None:
    """No container runtime makes groups below a root of the service's own."""


def _group_of(holder: Holder) -> int | None:
    with suppress(FenceError):
        return group_places.of_process(fence.root(), holder.pid, holder.started)
    return None


def _unseen(_pid: int) -> tuple[Holder, ...]:
    return ()


def own_group(below: Path | None) -> int:
    """The control group of this service and of its workers, and of nobody else: not of who started it.

    ``below``: where it must be, also if this service was started elsewhere.
    """
    try:
        started_in = own_cgroup.find(fence.root() if below is None else below)
        if below is not None and (started_in is None or not started_in.is_relative_to(below)):
            started_in = below
        if started_in is None:
            raise FenceError("cannot fence the GPUs: the control group of this service is not to be found")
        own = started_in if started_in.name == _OWN else own_cgroup.move_below(started_in, _OWN)
        return own.stat().st_ino
    except OSError as error:
        raise FenceError(f"cannot fence the GPUs: cannot make a control group: {error.strerror}") from error


def enter(config: ScrubberConfig, *, fences: bool) -> None:
    """Let this service open the GPUs of a fence that stands, before it opens any: the last service has set the rules.

    Each start is in another control group: a new pod, container or unit has one. ``fences``: as for ``guard``.
    """
    if not is_possible(config):
        return
    with suppress(FenceError):  # said when the guard is built
        root = config.cgroup_root or fence.root()
        if fences:
            fence.admit(root, own_group(config.cgroup_root), processes=[os.getpid()], runs=_runs)
        else:
            fence.take_down(root)


def _is_ours(pid: int) -> bool:
    return proc.descends(_PROC, pid, {os.getpid()})


def _runs(pid: int, started: int) -> bool:
    """Whether this very process runs. One that was killed is there until its parent asks for it, and runs no more."""
    try:
        return _started(pid) == started and not proc.status(f"{_PROC}/{pid}").ending
    except proc.ENDED:
        return False


def _started(pid: int) -> int:
    """The start of a process, as the kernel keeps it of the service: in hundredths of a second after the boot."""
    return round(proc.status(f"{_PROC}/{pid}").started * 100)


def is_possible(config: ScrubberConfig) -> bool:
    """Whether GPUs have device nodes: for simulated ones, a trial changes nothing else on the node."""
    return config.backend is not BackendChoice.SIMULATED or config.cgroup_root is not None
