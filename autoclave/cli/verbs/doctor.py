"""``autoclave doctor``: checks whether this node can prove GPUs clean."""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import click
from click.core import ParameterSource

from autoclave.cli import DURATION, ENVIRONMENT, NOT_CLEAN, options, service_call
from autoclave.cli.output import document, human
from autoclave.doctor.finding import Finding, Level
from autoclave.doctor.findings.all_checks import NAMES, OF_KUBERNETES, judge, worst
from autoclave.doctor.node_facts import Node
from ground import paths
from ground.documents import units
from ground.errors import LedgerUnavailable
from ground.quantities import quantity
from scrub_api import views

HEADERS = ("LEVEL", "CHECK", "FINDING")
OF_UPDATE = ("policy", "values")  # flags that only --for-update has a use for
OF_NODE = ("only", "skip", "wait")  # flags that it has no use for
LATE = ("autoclave.cli.offline", "autoclave.doctor.facts.update_facts", "autoclave.doctor.findings.update_checks")
AGAIN = 2.0  # seconds between two checks with --wait


class DoctorOptions(TypedDict):
    """The flags that select findings."""

    only: tuple[str, ...]
    skip: tuple[str, ...]
    without_kubernetes: bool


class UpdateOptions(TypedDict):
    """The flags about an update."""

    for_update: Path | None
    policy: str | None
    values: Path | None


class _Options(DoctorOptions, UpdateOptions):
    """All flags that are handed on together."""


@click.command(context_settings=ENVIRONMENT)
@options.output("table", "csv", "json", "yaml")
@options.run_dir
@click.option(
    "--kubelet-dir",
    type=options.DIRECTORY,
    default=paths.KUBELET_DIR,
    help="Directory with the socket and the checkpoint of the kubelet.",
)
@click.option(
    "--host-root",
    type=options.DIRECTORY,
    default="/",
    help="Where this process sees the host's /etc, /proc/driver, /run, /sys, /usr and /var.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(NAMES),
    metavar="NAME",
    help="Report and judge only this finding; can be repeated.",
)
@click.option(
    "--skip",
    multiple=True,
    type=click.Choice(NAMES),
    metavar="NAME",
    help="Leave this finding out of report and judgement; can be repeated.",
)
@click.option(
    "--without-kubernetes",
    is_flag=True,
    help="Skip the findings about kubelet, plugin and pods, on a node without Kubernetes.",
)
@click.option(
    "--cdi-kind",
    default="",
    show_default=False,
    metavar="VENDOR/CLASS",
    help="The CDI kind that the plugin uses: a missing CDI specification of this kind is broken.",
)
@click.option(
    "--driver-name",
    default="",
    show_default=False,
    metavar="DOMAIN",
    help="The name of the DRA driver: find feature gates that are off, with the driver's credentials and NODE_NAME.",
)
@click.option(
    "--wait",
    type=DURATION,
    default="0s",
    help="Check again for this time, as long as a finding is broken, and report each change.",
)
@click.option(
    "--for-update",
    type=click.Path(readable=False, path_type=Path),
    metavar="DIR|FILE",
    help="Instead, what an update to this version changes: the state directory of the node, or its ledger.",
)
@click.option(
    "--policy",
    metavar="NAME|FILE",
    shell_complete=options.complete_policies,
    show_default="that of --values, or the last one of the node",
    help="With --for-update: the policy after it.",
)
@click.option(
    "--values",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --for-update: the values for the chart.",
)
def doctor(
    output: str,
    run_dir: Path,
    kubelet_dir: Path,
    host_root: Path,
    cdi_kind: str,
    driver_name: str,
    wait: float,
    **chosen: Unpack[_Options],
) -> int:
    """Check whether this node can prove GPUs clean; each finding has a remedy.

    Checks the scrub service, its policy and its GPUs, the driver, the container toolkit, the node, the kubelet and the
    device plugin, and changes nothing. Run it as the user of the service and on its node (or in its container). Exit
    code 1 when a finding is broken, or when no finding is left.

    With --for-update, run the program of the new version on the state of the old one, which may go on. It says what is
    taken over, what has left, what changes its meaning, and which GPUs are scrubbed again.
    """
    _check_together()
    if chosen["for_update"] is not None:
        return _finish(_before_update(chosen["for_update"], chosen["policy"], chosen["values"]), output)
    wanted = frozenset(chosen["only"] or NAMES).difference(chosen["skip"])
    wanted -= OF_KUBERNETES if chosen["without_kubernetes"] else frozenset()

    def look() -> tuple[Finding, ...]:
        places = (run_dir.absolute(), kubelet_dir.absolute(), host_root.absolute())
        return judge(Node(*places, _status, cdi_kind, driver_name), wanted)

    return _finish(_until_not_broken(look, output, wait) if wait else look(), output)


def _check_together() -> None:
    """Usage error for a flag that has no use beside, or without, --for-update."""
    context = click.get_current_context()
    typed = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    for_update = context.params["for_update"] is not None
    if unfit := sorted(typed.intersection(OF_NODE if for_update else OF_UPDATE)):
        why = "is of --for-update, which names the state of the node"
        if for_update:
            why = "does not work with --for-update, which checks once and reports all its findings"
        raise click.UsageError(f"--{unfit[0]} {why}")


def _before_update(place: Path, policy: str | None, values: Path | None) -> tuple[Finding, ...]:
    offline, facts, checks = map(importlib.import_module, LATE)
    try:
        state = None if os.path.isfile(place) else place  # noqa: PTH113 - it raises no error where access is denied
        ledger = offline.Offline(place if state is None else paths.ledger(state)).file
    except offline.CorruptLedgerError as error:
        keep = "do not update yet: a start sets its files aside, and then knows no quarantine and no owner; "
        keep += "`When it is damaged` in docs/ledger.md says how to go on"
        raise LedgerUnavailable(error.message, keep) from error
    flags = _flags(click.get_current_context().find_root())
    return tuple(checks.judge(facts.gather(ledger, state, policy, values, flags)))


def _flags(root: click.Context) -> Mapping[str, Collection[str]]:
    """The flags that the programs of this version take, by the value of the chart that adds some."""

    def of(verb: str) -> set[str]:
        command = root.command.get_command(root, verb) if isinstance(root.command, click.Group) else None
        return {flag for option in command.params for flag in option.opts} if command is not None else set()

    return {"scrubber.extraArgs": of("scrubber"), "plugin.extraArgs": of("plugin") | of("dra")}


def _finish(findings: Sequence[Finding], output: str) -> int:
    """Print the report, and return the exit code."""
    _print(findings, output)
    if not findings:
        human.warn("nothing was checked: no finding is left, which counts as broken")
    broken = sum(finding.level is Level.BROKEN for finding in findings)
    if broken:
        among = quantity(len(findings), "finding")
        human.warn(f"{quantity(broken, f'of {among} is', f'of {among} are')} broken; each names its remedy")
    return NOT_CLEAN if worst(findings) is Level.BROKEN else 0


def _until_not_broken(look: Callable[[], tuple[Finding, ...]], output: str, wait: float) -> tuple[Finding, ...]:
    """The findings once none is broken, or when the time is over. Prints a table at each change, for a log."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as PID 1 of a container, Python ignores SIGTERM
    until, printed = time.monotonic() + wait, None
    while True:
        findings = look()
        if worst(findings) is not Level.BROKEN or time.monotonic() >= until:
            return findings
        if findings != printed and output == "table":
            _print(findings, output)
            human.warn(f"checking again for at most {units.format_duration(wait)}")
        printed = findings
        time.sleep(min(AGAIN, max(0.0, until - time.monotonic())))


def _print(findings: Sequence[Finding], output: str) -> None:
    if output == "table":
        document.show_table(HEADERS, rows(findings))
    elif output == "csv":
        lines = (
            (finding.level.value, finding.name, "; ".join(finding.text.splitlines()), finding.remedy)
            for finding in findings
        )
        document.emit_csv(("level", "name", "text", "remedy"), lines)
    else:
        document.emit(report(findings), output)


def report(findings: Sequence[Finding]) -> dict[str, object]:
    """The stable JSON form: the overall level and every finding."""
    items = [
        {
            "name": finding.name,
            "level": finding.level.value,
            "text": _printable(finding.text),
            "remedy": _printable(finding.remedy),
        }
        for finding in findings
    ]
    return document.single("DoctorReport", {"level": worst(findings).value, "findings": items})


def _printable(text: str) -> str:
    return "\n".join(map(human.printable, text.split("\n")))


def rows(findings: Sequence[Finding]) -> list[list[str]]:
    """One row for each line of a finding. The remedy is in the last column, the only one that wraps."""
    table_rows = []
    for finding in findings:
        text = f"{finding.text}; {finding.remedy}" if finding.remedy else finding.text
        first, *others = text.splitlines() or [""]
        table_rows += [[finding.level.value, finding.name, first], *([" ", " ", line] for line in others)]
    return table_rows


def _status(run_dir: Path) -> views.Status:
    return service_call.ask_now(run_dir, lambda admin: admin.status())
