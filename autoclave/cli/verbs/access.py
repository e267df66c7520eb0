"""``autoclave access``: tries every way to a GPU that a container was not given, and tells who could open it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TypedDict, Unpack

import click

from access import run_report, trials
from access.attached import docker, slurm
from access.interruption import Interruption
from access.kubernetes import Pods
from access.manifest_files import Cluster
from access.run_report import About
from access.way_verdict import CLOSED, NO_ANSWER, OPENED, Finding, exit_code
from access.ways import BY_NAME, PLAIN, WAYS, Place
from autoclave.cli import ENVIRONMENT, INTERRUPTED, Group, options
from autoclave.cli.output import human
from containers import result_directory
from containers.commands import ContainerFailed, expect_daemon, expect_program
from ground import calendar_time
from ground.errors import FatalError
from ground.quantities import quantity
from scrubber import __version__

PROGRAMS = {Place.KUBERNETES: "kubectl", Place.DOCKER: "docker", Place.PODMAN: "podman", Place.SLURM: "srun"}
DOCKERS = frozenset({Place.DOCKER, Place.PODMAN})
IN_PODS = ("resource", "device_class", "runtime_class", "pod_security")
TAKES: dict[Place, tuple[str, ...]] = {
    Place.KUBERNETES: ("image", "variable_image", "node", "count", *IN_PODS),
    Place.DOCKER: ("image", "variable_image", "gpu"),
    Place.PODMAN: ("image", "variable_image", "gpu"),
    Place.SLURM: ("node", "count"),
}
"""Flags that say something at that place."""
NEEDS: dict[Place, tuple[str, ...]] = {
    Place.KUBERNETES: ("image", "node"),
    Place.DOCKER: ("image",),
    Place.PODMAN: ("image",),
    Place.SLURM: ("node",),
}
NVIDIA = "/dev/nvidia[0-9]*"
_PLAIN_VALUE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,251}"
)  # of an image, a node, a resource: it is put into YAML
_NODES = re.compile(r"(/[A-Za-z0-9._*?\[\]-]{1,80}){2,12}")


class AccessOptions(TypedDict):
    """What is tried, and what the containers are like."""

    image: str
    variable_image: str
    node: str
    gpu: str
    count: int | None
    resource: str
    device_class: str
    runtime_class: str
    pod_security: str | None
    way: tuple[str, ...]
    without: tuple[str, ...]


@click.group(cls=Group, context_settings=ENVIRONMENT)
def access() -> None:
    """Find out who can open a GPU that it was not given.

    It needs no service of Autoclave, and tests a cluster, a node or a machine with or without one.

    A first container, the owner, is given a GPU and keeps it. Then others that were given none, the outsiders, try to
    open it, each in one way. Nothing is overwritten but memory that a container has allocated, and nothing is left.
    """


@access.command(context_settings=ENVIRONMENT)
def ways() -> None:
    """List the ways that are tried, and what each one needs."""
    for way in WAYS:
        case = f" This is a case of the conformance suite: {way.conformance}." if way.conformance else ""
        human.say(f"{way.name}: {way.tries} It needs: {way.needs}.{case}")


@access.command(context_settings=ENVIRONMENT)
@click.option("--on", type=options.Words(Place), default=Place.KUBERNETES.value, help="Where the containers run.")
@click.option(
    "--image", default="", show_default=False,
    help="An image that has python3, such as one of Autoclave. With kubernetes, docker and podman.",
)  # fmt: skip
@click.option(
    "--variable-image", default="", show_default="none",
    help="Such an image with NVIDIA_VISIBLE_DEVICES=all in its ENV; without it, this way is left out.",
)  # fmt: skip
@click.option("--node", default="", show_default=False, help="The node, with kubernetes and slurm.")
@click.option(
    "--gpu", default="", show_default="0", metavar="INDEX_OR_UUID_OR_PATH",
    help="The owner's GPU, or its device node, with docker and podman.",
)  # fmt: skip
@click.option(
    "--count", type=options.IntRange(1, 64), show_default="1",
    help="GPUs of the owner. All of a node: then the next container gets the same ones.",
)  # fmt: skip
@click.option("--resource", default="", show_default="nvidia.com/gpu", help="The resource that the owner asks for.")
@click.option(
    "--device-class", default="", show_default="none",
    help="A DeviceClass: then the owner has a claim for its GPUs, and asks for no resource.",
)  # fmt: skip
@click.option("--runtime-class", default="", show_default="none", help="The RuntimeClass of the owner.")
@click.option(
    "--pod-security", type=click.Choice(("privileged", "baseline", "restricted")), show_default="that of the cluster",
    help="The level of the Pod Security Standards that the namespace enforces: that of your tenants.",
)  # fmt: skip
@click.option(
    "--nodes", default="", show_default=NVIDIA, metavar="PATTERN",
    help="The device nodes of GPUs. Each one is opened, so name no other devices.",
)  # fmt: skip
@click.option("--way", type=click.Choice(list(BY_NAME)), multiple=True, help="A way to try. Default: all.")
@click.option("--without", type=click.Choice(list(BY_NAME)), multiple=True, help="A way to leave out.")
@click.option("--to", type=options.PATH, help="A new directory for the result. Default: access-DATE-TIME here.")
@click.option("--dry-run", is_flag=True, help="Print what would be created, and create nothing. With kubernetes.")
def run(on: Place, nodes: str, to: Path | None, dry_run: bool, **chosen: Unpack[AccessOptions]) -> int:
    """Give a container a GPU, let others try to open it, and write a report.

    --on kubernetes makes pods in a namespace of its own, by kubectl, and asks for its rights first. docker and podman
    start containers here, and slurm starts jobs. Everything is removed at the end, also after Ctrl-C and SIGTERM.
    Writes report.md, result.json and junit.xml. Exit code 0: the owner had its GPU, every chosen way was tried, and
    nothing was opened that was not given. 1: something was. 2: no answer. 130: interrupted, and nothing was opened
    until then.
    """
    nodes = nodes or NVIDIA
    _check(on, nodes, dry_run, chosen)
    interruption = Interruption()
    containers = _containers(on, nodes, chosen, interruption)
    if isinstance(containers, Pods) and dry_run:
        click.echo(containers.preview(), nl=False)
        return CLOSED
    expect_program(PROGRAMS[on])
    if on in DOCKERS:
        expect_daemon(PROGRAMS[on])
    if isinstance(containers, Pods):
        try:
            containers.expect()
        except ContainerFailed as error:
            raise FatalError(f"cannot start pods: {error.why}") from error
    interruption.listen()
    names = _ways(chosen)
    started, began = time.time(), time.monotonic()
    place = result_directory.make(to, "access", calendar_time.utc(started))
    done = trials.run(on, containers, names, _tell)
    seconds = time.monotonic() - began
    when = f"{calendar_time.utc(started):%Y-%m-%d %H:%M:%S} UTC"
    command = " ".join(["autoclave access run --on", on.value, *_flags(chosen, nodes)])
    files = run_report.write(place, About(__version__, on.value, when, seconds, command), done)
    human.say(run_report.headline(done), *map(str, files))
    if done.left_behind:
        human.warn(f"something may be left: {done.left_behind}")
    if isinstance(done.ended_by, ContainerFailed):
        human.warn(f"the run ended early: {done.ended_by.why}")
    code = exit_code(done.owner, done.findings)
    if isinstance(done.ended_by, KeyboardInterrupt) and code != OPENED:
        return INTERRUPTED
    return NO_ANSWER if code == CLOSED and done.left_behind else code


def _tell(news: Finding | str) -> None:
    """On stderr, so that a person can follow."""
    line = news if isinstance(news, str) else f"{news.way.name}: {news.verdict.value}: {news.why}"
    click.echo(human.printable(line), err=True)


def _ways(chosen: AccessOptions) -> list[str]:
    """The names of the ways to try, in the order of the table."""
    names = set(chosen["way"] or BY_NAME) - set(chosen["without"])
    if not chosen["variable_image"]:
        names.discard("image-variable")
    return [name for name in BY_NAME if name in names or name == PLAIN.name]


def _flags(chosen: AccessOptions, nodes: str) -> list[str]:
    """The flags that another run needs for the same answer, without the names of an image and of a node."""
    flags = [f"--way {name}" for name in chosen["way"]] + [f"--without {name}" for name in chosen["without"]]
    settings = {
        "image": "IMAGE" if chosen["image"] else "",
        "variable-image": "IMAGE" if chosen["variable_image"] else "",
        "gpu": chosen["gpu"],
        "node": "NODE" if chosen["node"] else "",
        "nodes": f"'{nodes}'" if nodes != NVIDIA else "",
        "resource": chosen["resource"],
        "device-class": chosen["device_class"],
        "runtime-class": chosen["runtime_class"],
        "pod-security": chosen["pod_security"],
        "count": chosen["count"],
    }
    return flags + [f"--{name} {value}" for name, value in settings.items() if value]


def _containers(on: Place, nodes: str, chosen: AccessOptions, interruption: Interruption) -> trials.Containers:
    image, variable_image, count = chosen["image"], chosen["variable_image"], chosen["count"] or 1
    if on in DOCKERS:
        return docker(on, image, variable_image, chosen["gpu"] or "0", nodes, interruption)
    if on is Place.SLURM:
        return slurm(chosen["node"], count, nodes, interruption)
    cluster = Cluster(
        node=chosen["node"],
        image=image,
        nodes=nodes,
        variable_image=variable_image,
        resource=chosen["resource"] or "nvidia.com/gpu",
        device_class=chosen["device_class"],
        count=count,
        runtime_class=chosen["runtime_class"],
        pod_security=chosen["pod_security"] or "",
    )
    return Pods(cluster, interruption, _tell)


def _check(on: Place, nodes: str, dry_run: bool, chosen: AccessOptions) -> None:
    """UsageError for a flag that has no effect there, is missing, or cannot stand in a manifest."""
    given = {name: value for name, value in dict(chosen).items() if value and name not in ("way", "without")}
    for name, value in sorted(given.items()):
        flag = f"--{name.replace('_', '-')}"
        if name not in TAKES[on]:
            raise click.UsageError(f"{flag} has no effect with --on {on.value}")
        if not (_PLAIN_VALUE.fullmatch(str(value)) or (name == "gpu" and _NODES.fullmatch(str(value)))):
            raise click.UsageError(f"{flag} is not a valid name: {value!r}")
    for name in NEEDS[on]:
        if name not in given:
            raise click.UsageError(f"--on {on.value} needs --{name}")
    if not _NODES.fullmatch(nodes):
        raise click.UsageError(f"--nodes is not a pattern of device nodes, such as /dev/nvidia[0-9]*: {nodes!r}")
    if chosen["resource"] and chosen["device_class"]:
        raise click.UsageError("--resource has no effect with --device-class: a pod has one of them")
    if dry_run and on is not Place.KUBERNETES:
        raise click.UsageError(f"--dry-run has no effect with --on {on.value}: it prints manifests")
    if "image-variable" in chosen["way"] and not chosen["variable_image"]:
        raise click.UsageError("--way image-variable needs --variable-image")
    if unknown := set(chosen["way"]) & set(chosen["without"]):
        raise click.UsageError(
            f"{quantity(len(unknown), 'way')} both chosen and left out: {', '.join(sorted(unknown))}"
        )
