"""``autoclave doctor``: checks whether this node can prove GPUs clean."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import click

from autoclave.cli import DURATION, ENVIRONMENT, NOT_CLEAN, options, service_call
from autoclave.cli.output import document, human
from autoclave.doctor.finding import Finding, Level
from autoclave.doctor.findings.all_checks import NAMES, OF_KUBERNETES, judge, worst
from autoclave.doctor.node_facts import Node
from ground import paths
from ground.documents import units
from ground.quantities import quantity
from scrub_api import views

HEADERS = ("LEVEL", "CHECK", "FINDING")
AGAIN = 2.0  # seconds between two checks with --wait


class DoctorOptions(TypedDict):
    """The flags that select findings."""

    only: tuple[str, ...]
    skip: tuple[str, ...]
    without_kubernetes: bool


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
def doctor(
    output: str,
    run_dir: Path,
    kubelet_dir: Path,
    host_root: Path,
    cdi_kind: str,
    driver_name: str,
    wait: float,
    **chosen: Unpack[DoctorOptions],
) -> int:
    """Check whether this node can prove GPUs clean; each finding has a remedy.

    Checks the scrub service, its policy and its GPUs, the driver, the container toolkit, the node, the kubelet and the
    device plugin, and changes nothing. Run it as the user of the service and on its node (or in its container). Exit
    code 1 when a finding is broken, or when no finding is left.
    """
    wanted = frozenset(chosen["only"] or NAMES).difference(chosen["skip"])
    wanted -= OF_KUBERNETES if chosen["without_kubernetes"] else frozenset()

    def look() -> tuple[Finding, ...]:
        places = (run_dir.absolute(), kubelet_dir.absolute(), host_root.absolute())
        return judge(Node(*places, _status, cdi_kind, driver_name), wanted)

    findings = _until_not_broken(look, output, wait) if wait else look()
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
