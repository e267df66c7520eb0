"""``autoclave fence``: what keeps watch over the GPUs in this kernel, how to remove it, and whom it would refuse."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from autoclave.cli import DONE, ENVIRONMENT, NOT_CLEAN, Group, options, service_call
from autoclave.cli.output import document, fence_plan, human
from ground.errors import FatalError
from ground.quantities import quantity
from scrub_api import views
from scrubber.core.model import NodeKind
from scrubber.fence.kernel import fence as kernel
from scrubber.fence.kernel.fence import FenceError, FenceRule
from scrubber.node import bystanders
from scrubber.node.cgroup_tree import Tree

HEADERS = ("DEVICE", "OTHERS", "OPEN TO", "ATTEMPTS", "REFUSED")


@click.group(cls=Group)
def fence() -> None:
    """Show or remove what refuses GPUs to others in the kernel, or show whom it would refuse.

    To show and to remove it takes root, and no service. In a container, it takes the control groups of the host.
    """


@fence.command(context_settings=ENVIRONMENT)
@options.cgroup_root
@options.output("table", "csv", "json", "yaml")
def status(cgroup_root: Path | None, output: str) -> int:
    """Show which device files the kernel guards, and for whom each is open.

    A process of another control group is counted or refused; "pods refused": those of the host are counted. Of a
    device that is open to all, each is counted. An opening that is let through asks up to three times. Exit code 1 if
    no fence stands.
    """
    root = _root(cgroup_root)
    try:
        standing = kernel.inspect(root)
    except FenceError as error:
        raise FatalError(str(error)) from error
    if standing is None:
        human.warn(
            f"no fence stands at {root}, so every process opens the GPUs that its container shows it; "
            "give --cgroup-root here also if the service has it"
        )
        return NOT_CLEAN
    tree = Tree(root)
    rows = [
        _row(rule, tree, lasts=standing.lease > 0) for rule in sorted(standing.rules, key=lambda rule: str(rule.device))
    ]
    if output in {"json", "yaml"}:
        keys = ("device", "others", "open_to", "attempts", "refused")
        entries = [dict(zip(keys, row, strict=True)) for row in rows]
        document.emit(document.listing("FenceRule", entries) | {"lease_seconds": standing.lease}, output)
        return DONE
    document.show_table(HEADERS, [[str(cell) for cell in row] for row in rows], output)
    if not rows:
        human.warn("the fence stands, and guards no device")
    elif any(_refuses(rule) for rule in standing.rules):
        human.warn(
            f"others are refused for {human.span(standing.lease)} after the last sign of the service"
            if standing.lease > 0
            else "the service has given no sign for too long, so nobody is refused until it runs again"
        )
    return DONE


@fence.command(context_settings=ENVIRONMENT)
@options.cgroup_root
def off(cgroup_root: Path | None) -> int:
    """Remove the fence from the kernel, such as after Autoclave was uninstalled.

    Every process may then open each GPU that its container shows it. A service that still runs puts the fence back, so
    stop it first, or choose `fence: {mode: off}` in its policy. Exit code 0 also if no fence stood.
    """
    root = _root(cgroup_root)
    try:
        stood = kernel.take_down(root)
    except FenceError as error:
        raise FatalError(str(error)) from error
    human.say("the fence is removed" if stood else f"no fence stood at {root}; nothing to do")
    return DONE


@fence.command(context_settings=ENVIRONMENT)
@options.output("table", "csv", "json", "yaml")
@click.option("--no-headers", is_flag=True, help="Print a table without headers.")
@options.run_dir
def plan(output: str, no_headers: bool, run_dir: Path) -> int:
    """Show who asked for GPUs that were not given to them, and what `hold` and `refuse` do to each.

    The service names those of the last 7 days, and says of each what the policy in force does. A program of a pod is
    exempt by its namespace (`evict.operator_namespaces`), one of the host by its unit (`fence.exempt.units`). If a
    program still runs, its path follows its name, as `evict.bystanders` takes it. A row without attempts is a name that
    a flag of the service exempts. Nobody else gets a GPU that a program keeps open, unless it is a bystander. Exit code
    1 if no fence counts.
    """
    status = service_call.ask(run_dir, lambda admin: admin.status(()))
    rows, gaps = fence_plan.planned(status, _look), fence_plan.gaps(status, time.time())
    if output in {"json", "yaml"}:
        document.emit(document.listing("FencePlan", map(document.fields, rows)) | {"gaps": gaps}, output)
    else:
        headers = () if no_headers else fence_plan.HEADERS
        document.show_table(headers, [row.cells for row in rows], output)
    for sentence in (*gaps, *fence_plan.advice(rows)):
        human.warn(sentence)
    return DONE if any(device.fence for device in status.devices) else NOT_CLEAN


def _look(opener: views.OpenerView) -> fence_plan.Program:
    """What is known of the process that asked last, if it still runs, and this user may see it."""
    process = Path("/proc") / str(opener.pid)
    try:
        if (process / "comm").read_text(errors="replace").rstrip("\n") != opener.command:
            return fence_plan.Program()
        path = str((process / "exe").readlink())
        return fence_plan.Program(path, "" if opener.in_pod else bystanders.obstacle(process.parent, str(process)))
    except OSError:
        return fence_plan.Program()


def _root(given: Path | None) -> Path:
    if os.geteuid() != 0:
        raise FatalError("only root may ask the kernel about the fence: run it with sudo")
    try:
        return given or kernel.root()
    except FenceError as error:
        raise FatalError(str(error)) from error


def _refuses(rule: FenceRule) -> bool:
    return rule.open_to is not None and (rule.refuse or bool(rule.held))


def _row(rule: FenceRule, tree: Tree, *, lasts: bool) -> tuple[str, str, str, int, int]:
    device = rule.device
    kind = "block " if device.kind is NodeKind.BLOCK else ""
    others = "counted"
    if _refuses(rule) and lasts:
        others = "refused" if rule.refuse else "pods refused"
    places = (tree.place(group) for group in sorted(rule.open_to or ()))
    named = sorted({place.container or place.name for place in places if place is not None})
    open_to = "all" if rule.open_to is None else ", ".join(named) or quantity(len(rule.open_to), "control group")
    return f"{kind}{device.major}:{device.minor}", others, open_to, rule.counts.asked, rule.counts.refused
