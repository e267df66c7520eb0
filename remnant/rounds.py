"""Runs one round: starts a container that fills a GPU, ends it, and starts one that looks."""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from containers.commands import ContainerFailed, asked, run
from containers.container import Container
from remnant import container_answers, tenant
from remnant.container_answers import Answer, Filled, Looked, NoAnswer, Ready, Refused
from remnant.launchers import Launcher
from remnant.round_result import Ending, GpuAndDriver, Medium, Round
from remnant.tenant import ContainerOrder

ANSWERS_WITHIN = 120.0  # seconds
LEFT_FREE = 2  # a container that stays fills one part in so many: the next one must be able to begin


class AnotherGpu(ContainerFailed):
    """The next container got another GPU than the first one, so that the round shows nothing."""


class _Tenant(Container):
    """One container of a round, which has loaded CUDA's library and waits for its turn."""

    def __init__(self, launcher: Launcher, tell: Callable[[str], None]) -> None:
        self._launcher, self._say = launcher, tell
        self._name = f"autoclave-remnant-{secrets.token_hex(4)}"
        super().__init__(launcher.start(self._name), launcher.remove and launcher.remove(self._name))
        self._media: tuple[str, ...] = ()
        self._last = ""

    def begin(self, order: ContainerOrder) -> None:
        """Send the container its order: what to write, or what to look for."""
        self._media = order.media
        self.tell(json.dumps(dataclasses.asdict(order)))

    def wait_until_ready(self) -> GpuAndDriver | None:
        """It has loaded CUDA's library, and has not called it. Its GPU, if it was not told which one to use."""
        ready = self._answer(Ready, self._launcher.starts_within)
        if isinstance(ready, Refused):
            raise ContainerFailed(ready.refused)
        return ready.gpu

    def go(self, kind: type[Answer]) -> Answer | Refused:
        """Let it do its part; what it says."""
        self.tell("go")
        return self._answer(kind, ANSWERS_WITHIN)

    def end(self, ending: Ending) -> None:
        """Let it end so, and wait until it has."""
        if ending is Ending.FORCE_DELETE and self._launcher.force_delete is not None:
            run(self._launcher.force_delete(self._name))
            return  # nobody waits for its end: the next one may begin before it
        if ending is Ending.DELETE and self._launcher.delete is not None:
            run(self._launcher.delete(self._name))
            self.kill()  # a command whose pod is deleted may wait for ever
        else:
            self.tell(ending.value)
        self.wait()
        status, unlike = self.status, {Ending.ABORT: "no kernel of it trapped", Ending.KILL: "not killed"}
        if (ending is Ending.ABORT and status != tenant.ABORTED) or (ending is Ending.KILL and status == 0):
            raise ContainerFailed(f"a container ended with status {status}: {unlike[ending]}")

    def _answer(self, kind: type[Answer], within: float) -> Answer | Refused:
        """Its next answer; ContainerFailed if it gives none in time, or another program's."""
        line = self.hear(within, self._waits_for)
        try:
            return container_answers.parse(kind, line, self._media)
        except NoAnswer as error:
            raise ContainerFailed(str(error)) from error

    def _waits_for(self) -> str:
        """What the place says of a container that has not started; nothing if it does not answer."""
        if self._launcher.waits is None:
            return ""
        try:
            waits = " ".join(asked(self._launcher.waits(self._name)).stdout.split())
        except ContainerFailed:
            return ""
        if waits not in ("", self._last):
            self._say(waits)
            self._last = waits
        return waits


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

        def begun(order: ContainerOrder) -> tuple[_Tenant, GpuAndDriver | None]:
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
def _container(launcher: Launcher, order: ContainerOrder, tell: Callable[[str], None]) -> Iterator[_Tenant]:
    container = _Tenant(launcher, tell)
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
