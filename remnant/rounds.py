"""Runs one round: starts a container that fills a GPU, ends it, and starts one that looks."""

from __future__ import annotations

import dataclasses
import json
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ground.errors import AutoclaveError, Reason, plain
from remnant import container_answers, tenant
from remnant.container_answers import Answer, Filled, Looked, NoAnswer, Ready, Refused
from remnant.launchers import Launcher
from remnant.output import LONGEST, Output
from remnant.round_result import Ending, GpuAndDriver, Medium, Round
from remnant.tenant import ContainerOrder

ANSWERS_WITHIN = 120.0  # seconds
GONE_WITHIN = 30.0
COMMANDS_WITHIN = 120.0  # such as one that deletes a pod, and waits until it is gone
SAYS_AFTER = 5.0  # seconds, and then as often: what a container that does not start waits for
NO_REASON = ("pod ", "Run 'docker")  # so begin last lines of kubectl and docker, which say why in a line before
LEFT_FREE = 2  # a container that stays fills one part in so many: the next one must be able to begin


class ContainerFailed(AutoclaveError):
    """A container did not do its part."""

    def __init__(self, why: str) -> None:
        super().__init__(Reason.INTERNAL, f"cannot go on: {why}")
        self.why = why


class AnotherGpu(ContainerFailed):
    """The next container got another GPU than the first one, so that the round shows nothing."""


class _Container:
    """One container, which has loaded CUDA's library and waits for its turn."""

    def __init__(self, launcher: Launcher, tell: Callable[[str], None]) -> None:
        self._launcher, self._say = launcher, tell
        self._name = f"autoclave-remnant-{secrets.token_hex(4)}"
        self._process = subprocess.Popen(
            launcher.start(self._name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            restore_signals=False,  # if this process is killed, the command must be able to clear away
        )
        self._output = Output(self._process)
        self._media: tuple[str, ...] = ()
        self._cleared = False

    def begin(self, order: ContainerOrder) -> None:
        """Send the container its order: what to write, or what to look for."""
        self._media = order.media
        self._tell(json.dumps(dataclasses.asdict(order)))

    def wait_until_ready(self) -> GpuAndDriver | None:
        """It has loaded CUDA's library, and has not called it. Its GPU, if it was not told which one to use."""
        ready = self._hear(Ready, self._launcher.starts_within)
        if isinstance(ready, Refused):
            raise ContainerFailed(ready.refused)
        return ready.gpu

    def go(self, kind: type[Answer]) -> Answer | Refused:
        """Let it do its part; what it says."""
        self._tell("go")
        return self._hear(kind, ANSWERS_WITHIN)

    def end(self, ending: Ending) -> None:
        """Let it end so, and wait until it has."""
        if ending is Ending.FORCE_DELETE and self._launcher.force_delete is not None:
            _run(self._launcher.force_delete(self._name))
            return  # nobody waits for its end: the next one may begin before it
        if ending is Ending.DELETE and self._launcher.delete is not None:
            _run(self._launcher.delete(self._name))
            self._process.kill()  # a command whose pod is deleted may wait for ever
        else:
            self._tell(ending.value)
        self._wait()
        status, unlike = self._process.returncode, {Ending.ABORT: "no kernel of it trapped", Ending.KILL: "not killed"}
        if (ending is Ending.ABORT and status != tenant.ABORTED) or (ending is Ending.KILL and status == 0):
            raise ContainerFailed(f"a container ended with status {status}: {unlike[ending]}")

    def clear_away(self) -> None:
        """Leave nothing of it, however far it has come."""
        if self._cleared:
            return
        if self._process.poll() is None:
            self._process.kill()
        self._wait()
        assert self._process.stdin is not None  # noqa: S101 -- a pipe, see above
        self._process.stdin.close()
        self._output.close()
        if self._launcher.remove is not None:
            _run(self._launcher.remove(self._name))
        self._cleared = True

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 -- a pipe, see above
        with suppress(BrokenPipeError):  # it has ended: what it said by then comes next
            self._process.stdin.write(line.encode() + b"\n")

    def _hear(self, kind: type[Answer], within: float) -> Answer | Refused:
        """Its next answer; ContainerFailed if it gives none in time, or another program's."""
        ends, last = time.monotonic() + within, ""
        while (line := self._output.line()) is None:
            if self._output.complete:
                raise self._failed()
            if self._output.too_long:
                raise ContainerFailed(f"a container said more than {LONGEST} bytes, and no answer")
            if (left := ends - time.monotonic()) <= 0:
                raise ContainerFailed(f"a container gave no answer within {within:g} s{last and f': {last}'}")
            if not self._output.read(min(left, SAYS_AFTER)) and (waits := self._waits_for()) not in ("", last):
                self._say(last := waits)
        try:
            return container_answers.parse(kind, line, self._media)
        except NoAnswer as error:
            raise ContainerFailed(str(error)) from error

    def _failed(self) -> ContainerFailed:
        self._process.kill()
        self._wait()
        self._output.read(0)
        said = self._output.last_words.decode(errors="replace").split("\n")
        lines = [line for line in said if line and not line.startswith(NO_REASON)]
        last = plain(lines[-1]) if lines else "it wrote nothing"
        return ContainerFailed(f"a container ended with status {self._process.returncode}: {last}")

    def _waits_for(self) -> str:
        """What the place says of a container that has not started; nothing if it does not answer."""
        if self._launcher.waits is None:
            return ""
        try:
            return " ".join(_asked(self._launcher.waits(self._name)).stdout.split())
        except ContainerFailed:
            return ""

    def _wait(self) -> None:
        ends = time.monotonic() + GONE_WITHIN
        while self._process.poll() is None:
            if (left := ends - time.monotonic()) <= 0:
                raise ContainerFailed(f"process {self._process.pid} is not gone within {GONE_WITHIN:g} s")
            self._output.read(left)


def expect_rights(launcher: Launcher) -> None:
    """ContainerFailed if the account may not do all that a round takes: it might leave a container behind."""
    denied = []
    for right, command in launcher.rights.items():
        asked = _asked(command)
        if asked.stdout.split()[:1] not in (["yes"], ["no"]):
            raise _unlike_success(command, asked)
        if asked.returncode:
            denied.append(right)
    if denied:
        why = "a pod that it makes could stay; docs/remnant.md has the rights that it needs"
        raise ContainerFailed(f"this account may not {', '.join(denied)}: {why}")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is tested, and how containers get there."""

    launcher: Launcher
    uuid: str = ""  # empty: a container says which GPU it got
    pci_address: str = ""
    host_root: Path = Path("/")
    count: int = 1  # GPUs that a container gets where it is not told which one to use


def run_round(
    subject: Subject,
    how: Ending,
    media: Sequence[Medium] = tuple(Medium),
    tell: Callable[[str], None] = lambda _waits: None,
) -> tuple[Round, GpuAndDriver | None]:
    """One round, and the GPU if the subject names none. No container of it is left afterwards.

    ``tell``: hears what a container waits for.
    """
    key, never = secrets.token_hex(16), secrets.token_hex(16)
    chosen = tuple(medium.value for medium in media)
    order = ContainerOrder("fill", subject.uuid, subject.pci_address, str(subject.host_root), key, never, chosen)
    order = dataclasses.replace(order, count=subject.count)
    looks = dataclasses.replace(order, deed="look")
    if how is Ending.STAYS:
        order = dataclasses.replace(order, share=LEFT_FREE)
    with ExitStack() as containers:

        def begun(order: ContainerOrder) -> tuple[_Container, GpuAndDriver | None]:
            container = containers.enter_context(_container(subject.launcher, order, tell))
            return container, container.wait_until_ready()

        first, gpu = begun(order)
        second = begun(looks)[0] if subject.launcher.together else None
        said = first.go(Filled)
        if isinstance(said, Refused):
            raise ContainerFailed(said.refused)
        if how is not Ending.STAYS:
            first.end(how)
        began = time.monotonic()
        if second is None:
            if how is not Ending.FORCE_DELETE:
                first.clear_away()
            second, other = begun(dataclasses.replace(looks, wanted=gpu.uuid if gpu else ""))
            if other != gpu:
                raise AnotherGpu(f"the next container got GPU {other and other.uuid} instead of {gpu and gpu.uuid}")
        seen = second.go(Looked)
        seconds = time.monotonic() - began
        planted = {Medium(name): each for name, each in said.planted.items()}
        if isinstance(seen, Looked):
            found = {Medium(name): each for name, each in seen.looks.items()}
            return Round(how, seconds, said.available, planted, found), gpu
        if not seen.out_of_memory:  # memory that the first one holds refuses so, and nothing else
            raise ContainerFailed(seen.refused)
        return Round(how, seconds, said.available, planted, refused=seen.refused), gpu


def in_turn(endings: Sequence[Ending], each: int) -> Iterator[Ending]:
    """The endings in turn, so that a run that is ended early has some of all."""
    for _ in range(each):
        yield from endings


@contextmanager
def _container(launcher: Launcher, order: ContainerOrder, tell: Callable[[str], None]) -> Iterator[_Container]:
    container = _Container(launcher, tell)
    try:
        container.begin(order)
        yield container
    except ContainerFailed as first:
        try:
            container.clear_away()
        except ContainerFailed as second:
            raise ContainerFailed(f"{first.why}; and then {second.why}") from first
        raise
    except BaseException:
        container.clear_away()
        raise
    container.clear_away()


def _run(command: Sequence[str]) -> None:
    """Run a command of the place; ContainerFailed if it fails."""
    done = _asked(command)
    if done.returncode:
        raise _unlike_success(command, done)


def _asked(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """What a command of the place answers. Ctrl-C does not end it: it clears away."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, start_new_session=True, timeout=COMMANDS_WITHIN
        )
    except subprocess.TimeoutExpired as error:
        raise ContainerFailed(f"`{shlex.join(command)}` has not ended within {COMMANDS_WITHIN:g} s") from error


def _unlike_success(command: Sequence[str], done: subprocess.CompletedProcess[str]) -> ContainerFailed:
    last = done.stderr.strip().rpartition("\n")[2] or "it wrote nothing"
    return ContainerFailed(f"`{shlex.join(command)}` ended with status {done.returncode}: {last}")
