"""One round: a container fills a GPU and ends, and the next one looks."""

from __future__ import annotations

import dataclasses
import json
import secrets
import selectors
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoclave.remnant import tenant
from autoclave.remnant.launchers import Launcher
from autoclave.remnant.model import Ending, GpuAndDriver, Look, Medium, Planted, Round
from autoclave.remnant.tenant import ContainerOrder
from ground.errors import AutoclaveError, Reason

ANSWERS_WITHIN = 120.0  # seconds
GONE_WITHIN = 30.0
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
            start_new_session=True,
        )
        self._cleared = False

    def begin(self, order: ContainerOrder) -> None:
        """Tell it what it is to do."""
        self._tell(json.dumps(dataclasses.asdict(order)))

    def wait_until_ready(self) -> GpuAndDriver | None:
        """It has loaded CUDA's library, and has not called it. Its GPU, if it was not told which one to use."""
        gpu = self._hear(self._launcher.starts_within).get("gpu")
        return GpuAndDriver(**gpu) if gpu else None

    def go(self) -> dict[str, Any]:
        """Let it do its part; what it says."""
        self._tell("go")
        return self._hear()

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
        if self._launcher.remove is not None:
            _run(self._launcher.remove(self._name))
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._cleared = True

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 -- a pipe, see above
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failed() from error

    def _hear(self, within: float = ANSWERS_WITHIN) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 -- a pipe, see above
        ends, last = time.monotonic() + within, ""
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while not ready.select(SAYS_AFTER):
                if time.monotonic() > ends:
                    raise ContainerFailed(f"a container said nothing for {within:g} s{last and f': {last}'}")
                if (waits := self._waits_for()) not in ("", last):
                    self._say(last := waits)
        line = self._process.stdout.readline()
        if not line:
            raise self._failed()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failed(self) -> ContainerFailed:
        self._process.kill()
        _, said = self._process.communicate()
        lines = [line for line in said.decode(errors="replace").split("\n") if line and not line.startswith(NO_REASON)]
        last = lines[-1] if lines else "it wrote nothing"
        return ContainerFailed(f"a container ended with status {self._process.returncode}: {last}")

    def _waits_for(self) -> str:
        """What the place says of a container that has not started; nothing if it does not answer."""
        if self._launcher.waits is None:
            return ""
        asked = subprocess.run(self._launcher.waits(self._name), capture_output=True, text=True, check=False)
        return " ".join(asked.stdout.split())

    def _wait(self) -> None:
        try:
            self._process.wait(GONE_WITHIN)
        except subprocess.TimeoutExpired as error:
            raise ContainerFailed(f"process {self._process.pid} is not gone within {GONE_WITHIN:g} s") from error


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
        said = first.go()
        if "refused" in said:
            raise ContainerFailed(said["refused"])
        if how is not Ending.STAYS:
            first.end(how)
        began = time.monotonic()
        if second is None:
            if how is not Ending.FORCE_DELETE:
                first.clear_away()
            second, other = begun(dataclasses.replace(looks, wanted=gpu.uuid if gpu else ""))
            if other != gpu:
                raise AnotherGpu(f"the next container got GPU {other and other.uuid} instead of {gpu and gpu.uuid}")
        seen = second.go()
        if "refused" in seen and not seen["out_of_memory"]:  # memory that the first one holds refuses so, and no other
            raise ContainerFailed(seen["refused"])
        return Round(
            ending=how,
            seconds=time.monotonic() - began,
            available=said["available"],
            planted={Medium(name): Planted(**fields) for name, fields in said["planted"].items()},
            looks={Medium(name): Look(**fields) for name, fields in seen.get("looks", {}).items()},
            refused=seen.get("refused", ""),
        ), gpu


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
    """Run a command of the place; ContainerFailed if it fails. Ctrl-C does not end it: it clears away."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise ContainerFailed(
            f"`{shlex.join(command)}` ended with status {done.returncode}: {last or 'it wrote nothing'}"
        )
