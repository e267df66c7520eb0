"""``autoclave remnant``: plans the rounds on the chosen GPU and place, runs them, and tells the result."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict, Unpack

import click

from autoclave.cli import DONE, ENVIRONMENT, INTERRUPTED, NOT_CLEAN, WRONG_USAGE, Group, failure, options
from autoclave.cli.output import human
from containers import result_directory
from containers.commands import ContainerFailed, expect_daemon, expect_program, expect_rights
from ground import calendar_time
from ground.errors import FatalError
from remnant import judge, launchers, result_files
from remnant.gpu_identity import about
from remnant.idle import IdleObserver, InUse
from remnant.judge import Verdict
from remnant.launchers import Place
from remnant.round_result import Ending, GpuAndDriver, Medium, Result, Round
from remnant.rounds import AnotherGpu, Subject, in_turn, run_round
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library
from scrubber.node import clock, proc

PROC = Path("/proc")
TRIES = 10  # of a round, until both containers have the same GPU
FREED_WITHIN = 30.0  # seconds until nobody has the GPU after a round
HERE = frozenset({Place.LOCAL, Place.DOCKER})  # where the containers use a GPU of this machine
PROGRAMS = {Place.DOCKER: "docker", Place.KUBERNETES: "kubectl", Place.SLURM: "srun"}
ENDED_EARLY = {  # what a result says of it, which may be sent to others
    AnotherGpu: "the scheduler gave the two containers different GPUs",
    ContainerFailed: "a container failed",
    InUse: "another process used the GPU",
    DeviceError: "the driver did not answer as it should",
    KeyboardInterrupt: "it was interrupted",
    BrokenPipeError: "it was interrupted",
}
INTERRUPTIONS = (KeyboardInterrupt, BrokenPipeError)  # also if nobody reads any more what it prints


class RemnantOptions(TypedDict):
    """What is tried, who may watch, and where the containers run."""

    ending: tuple[Ending, ...]
    medium: tuple[Medium, ...]
    beside: tuple[Path, ...]
    image: str
    node: str
    namespace: str
    count: int | None
    resource: str
    claim_template: str
    runtime_class: str


IN_PODS = ("node", "namespace", "count", "resource", "claim_template", "runtime_class")
TAKES: dict[Place, tuple[str, ...]] = {
    Place.LOCAL: ("beside", "host_root"),
    Place.DOCKER: ("image", "beside", "host_root"),
    Place.KUBERNETES: ("image", *IN_PODS),
    Place.SLURM: ("node", "count"),
}
"""Flags that say something where the containers run there."""


@click.group(cls=Group, context_settings=ENVIRONMENT)
def remnant() -> None:
    """Find out what the next container sees of the last one on a GPU.

    It needs no service of Autoclave, and tests a GPU of a node with or without one.

    A first container fills the GPU with words derived from a secret key, and ends. The next one looks for these words
    before it writes anything. The words tell what a container has left from what was there anyway.
    """


@remnant.command(context_settings=ENVIRONMENT)
@click.option("--on", type=options.Words(Place), default=Place.LOCAL.value, help="Where the containers run.")
@click.option(
    "--gpu", metavar="INDEX_OR_UUID", show_default="the only one",
    help="The GPU, with local and docker. No process may use it. Elsewhere it is the one that the scheduler gives.",
)  # fmt: skip
@click.option(
    "--image", default="", show_default=False, help="An image of Autoclave for NVIDIA GPUs, with docker and kubernetes."
)
@click.option("--node", default="", show_default="any", help="The node, with kubernetes and slurm.")
@click.option("--namespace", default="", show_default="kubectl's", help="The namespace of the pods.")
@click.option(
    "--count", type=options.IntRange(1, 64), show_default="1",
    help="GPUs of each pod or job; one of them is tested. All of a node: then both get the same ones.",
)  # fmt: skip
@click.option("--resource", default="", show_default="nvidia.com/gpu", help="The resource that a pod asks for.")
@click.option(
    "--claim-template", default="", show_default="none",
    help="A ResourceClaimTemplate: then a pod has a claim for its GPUs, and no resource.",
)  # fmt: skip
@click.option("--runtime-class", default="", show_default="none", help="The RuntimeClass of the pods.")
@click.option("--rounds", type=options.IntRange(1, 1000), default=20, help="How often each ending is tried.")
@click.option(
    "--ending",
    type=options.Words(Ending),
    multiple=True,
    help="How the first container ends; can be repeated. Default: all that are possible there.",
)
@click.option(
    "--medium",
    type=options.Words(Medium),
    multiple=True,
    help="Where words are planted; can be repeated. Default: all.",
)
@click.option(
    "--beside",
    type=options.PATH,
    multiple=True,
    help="A program that may have the GPU open, because it only watches; can be repeated. With local and docker.",
)
@click.option(
    "--to",
    type=options.PATH,
    help="A new directory for the result. Default: remnant-DATE-TIME here.",
)
@click.option(
    "--host-root",
    type=options.DIRECTORY,
    default="/",
    help="Where this process sees the host's root directory. With local and docker.",
)
def run(
    on: Place, gpu: str | None, rounds: int, to: Path | None, host_root: Path, **chosen: Unpack[RemnantOptions]
) -> int:
    """Plant words on a GPU, hand it over, look for them, and write a report.

    --on local takes two processes of this machine, docker two containers of it, kubernetes two pods, by kubectl, and
    slurm two jobs. Overwrites all memory of the GPU, leaves zeros there, and changes no setting. local and docker
    refuse a GPU that a process uses, and need root, to see all processes. Writes report.md, report.svg, result.json and
    statement.json, also after Ctrl-C: what was done by then counts. Exit code 0: no word of the first container was
    found. 1: words were found. 2: no answer, such as a GPU that cannot be used. 130: interrupted, and none found.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that nothing is left behind then, either
        signal.signal(number, signal.default_int_handler)
    _check(on, gpu, host_root, chosen)
    began = calendar_time.utc(clock.now().wall)
    if on in HERE:
        subject, facts, wait_until_free = _of_this_machine(on, gpu, host_root, chosen)
    else:
        subject, facts, wait_until_free = _elsewhere(on, chosen), None, lambda: None
    plan = tuple(in_turn(tuple(dict.fromkeys(chosen["ending"])) or subject.launcher.endings, rounds))
    place = result_directory.make(to, "remnant", began)
    done = _Done([], facts)
    media = chosen["medium"] or tuple(Medium)
    try:
        _do(done, plan, lambda how: run_round(subject, how, media, _tell), wait_until_free)
        if done.about is not None and done.rounds:
            result = Result(
                on=on.value,
                began=f"{began:%Y-%m-%d %H:%M:%S} UTC",
                gpu=done.about,
                rounds=tuple(done.rounds),
                planned=len(plan),
                beside=tuple(path.name for path in chosen["beside"]),
                ended_early=done.class_of_end,
            )
            return _written(place, result, done)
    finally:
        if not any(place.iterdir()):
            place.rmdir()
    if isinstance(done.ended_by, KeyboardInterrupt):
        human.warn("it was interrupted before the end of the first round: there is no result")
    if isinstance(done.ended_by, INTERRUPTIONS):
        return INTERRUPTED
    raise FatalError(f"cannot test {f'GPU {gpu or 0}' if on in HERE else on.value}: {done.ended_by}")


def _written(place: Path, result: Result, done: _Done) -> int:
    """Write the result; the exit code."""
    cells = judge.cells(result)
    files = result_files.write(place, result)
    try:
        human.say(*result_files.summary(result, cells), *map(str, files))
    except OSError as error:  # the files have it, and the exit code says what was found
        failure.report(error)
    verdicts = {cell.verdict for cell in cells}
    if Verdict.REMNANT in verdicts:
        return NOT_CLEAN
    if isinstance(done.ended_by, INTERRUPTIONS):
        return INTERRUPTED
    if done.ended_by is not None:
        human.warn(str(done.ended_by))
    return WRONG_USAGE if done.ended_by is not None or Verdict.NO_ANSWER in verdicts else DONE


@dataclass
class _Done:
    """The rounds that were done, and what ended them early."""

    rounds: list[Round]
    about: GpuAndDriver | None
    ended_by: BaseException | None = None

    @property
    def class_of_end(self) -> str:
        """Why the rounds are not all, without names of a machine; empty if they are."""
        return next((words for kind, words in ENDED_EARLY.items() if isinstance(self.ended_by, kind)), "")


def _do(
    done: _Done,
    plan: Sequence[Ending],
    one: Callable[[Ending], tuple[Round, GpuAndDriver | None]],
    wait_until_free: Callable[[], None],
) -> None:
    began = time.monotonic()
    try:
        if (gpu := done.about) is not None:
            click.echo(f"tests {gpu.model} {gpu.uuid}, driver {gpu.driver}", err=True)
        for number, how in enumerate(plan):
            left = (time.monotonic() - began) / number * (len(plan) - number) if number else None
            rest = "" if left is None else f", about {human.span(left)} left"
            click.echo(f"round {number + 1} of {len(plan)}: {how.value}{rest}", err=True)
            shown, gpu = _on_the_same_gpu(partial(one, how))
            done.rounds.append(shown)
            done.about = done.about or gpu
            wait_until_free()
    except (*INTERRUPTIONS, ContainerFailed, InUse, DeviceError) as error:
        done.ended_by = error
        if isinstance(error, BrokenPipeError):
            failure.report(error)


def _tell(waits: str) -> None:
    click.echo(human.printable(f"a container waits: {waits}"), err=True)


def _on_the_same_gpu(one: Callable[[], tuple[Round, GpuAndDriver | None]]) -> tuple[Round, GpuAndDriver | None]:
    """A round in which both containers had the same GPU: the scheduler chooses it each time."""
    for _ in range(TRIES - 1):
        try:
            return one()
        except AnotherGpu as error:
            click.echo(f"again: {error}", err=True)
    return one()


def _check(on: Place, gpu: str | None, host_root: Path, chosen: RemnantOptions) -> None:
    """UsageError for a flag that has no effect there; FatalError for who cannot do this."""
    given = {name for name in ("image", "beside", *IN_PODS) if dict(chosen)[name]}
    given |= {"host_root"} if host_root != Path("/") else set()
    for name in sorted(given - set(TAKES[on])):
        raise click.UsageError(f"--{name.replace('_', '-')} has no effect with --on {on.value}")
    if gpu is not None and on not in HERE:
        raise click.UsageError(f"--gpu has no effect with --on {on.value}: its scheduler chooses the GPU")
    for path in (host_root / "proc", *chosen["beside"]):
        if not path.exists():
            raise click.UsageError(f"there is no {path}")
    if on in HERE and os.geteuid() != 0:
        raise FatalError("cannot use a GPU: only root sees all processes that have it open", "run this as root")
    if "image" in TAKES[on] and not chosen["image"]:
        raise click.UsageError(f"--on {on.value} needs --image")
    if chosen["resource"] and chosen["claim_template"]:
        raise click.UsageError("--resource has no effect with --claim-template: a pod uses only one of them")
    if program := PROGRAMS.get(on):
        expect_program(program)
    if on is Place.DOCKER:
        expect_daemon("docker")
    launcher = launchers.local() if on in HERE else _elsewhere(on, chosen).launcher
    for how in set(chosen["ending"]) - set(launcher.endings):
        possible = ", ".join(each.value for each in launcher.endings)
        raise click.UsageError(f"--ending {how.value} is not possible with --on {on.value}; choose one of {possible}")
    try:
        expect_rights(launcher.rights, "docs/remnant.md")
    except ContainerFailed as error:
        raise FatalError(f"cannot start pods: {error.why}") from error


def _elsewhere(on: Place, chosen: RemnantOptions) -> Subject:
    count = chosen["count"] or 1
    if on is Place.SLURM:
        return Subject(launchers.slurm(chosen["node"], count), count=count)
    pod = launchers.Pod(
        image=chosen["image"],
        count=count,
        resource=chosen["resource"] or "nvidia.com/gpu",
        claim_template=chosen["claim_template"],
        namespace=chosen["namespace"],
        node=chosen["node"],
        runtime_class=chosen["runtime_class"],
    )
    return Subject(launchers.kubernetes(pod), count=count)


def _of_this_machine(
    on: Place, name: str | None, host_root: Path, chosen: RemnantOptions
) -> tuple[Subject, GpuAndDriver, Callable[[], None]]:
    """The GPU, which nobody uses, and what waits until that is so again."""
    host, library = Host(host_root, pid_namespace=proc.own_namespace(PROC)), Library()
    idle = IdleObserver(host, library, tuple(map(str, chosen["beside"])))
    try:
        board = idle.board(name)
        idle.expect_no_holder(board)
        facts = about(board, host, library)
    except (InUse, DeviceError) as error:
        raise FatalError(f"cannot use {'a GPU' if name is None else f'GPU {name}'}: {error}") from error
    finally:
        library.close()
    launcher = launchers.local() if on is Place.LOCAL else launchers.docker(chosen["image"], board.uuid)
    root = host_root if on is Place.LOCAL else Path("/")

    def wait_until_free() -> None:
        idle.wait_until_free(board, FREED_WITHIN)
        library.close()

    return Subject(launcher, board.uuid, board.pci_address, root), facts, wait_until_free
