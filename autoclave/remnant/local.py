"""Two processes of this machine, one after the other, stand for the two containers."""

from __future__ import annotations

import dataclasses
import json
import secrets
import selectors
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autoclave.remnant import tenant
from autoclave.remnant.model import Ending, Look, Medium, Planted, Round
from autoclave.remnant.tenant import ContainerOrder
from ground.errors import AutoclaveError, Reason
from scrubber.devices.nvidia.boards import Board

ANSWERS_WITHIN = 120.0  # seconds
GONE_WITHIN = 30.0
LEFT_FREE = 2  # a container that stays fills one part in so many: the next one must be able to begin


class ContainerFailed(AutoclaveError):
    """A container did not do its part."""

    def __init__(self, why: str) -> None:
        super().__init__(Reason.INTERNAL, f"cannot go on: {why}")


class _Container:
    """One process, which has loaded CUDA's library and waits for its turn."""

    def __init__(self, order: ContainerOrder) -> None:
        self._process = subprocess.Popen(
            tenant.PROGRAM,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._tell(json.dumps(dataclasses.asdict(order)))

    def wait_until_ready(self) -> None:
        """It has loaded CUDA's library, and has not called it."""
        self._hear()

    def go(self) -> dict[str, Any]:
        """Let it do its part; what it says."""
        self._tell("go")
        return self._hear()

    def end(self, ending: Ending) -> None:
        """Let it end so, and wait until it has."""
        if ending is Ending.KILL:
            self._process.kill()
        else:
            self._tell(ending.value)
        self._wait()
        if ending is Ending.ABORT and self._process.returncode != tenant.ABORTED:
            raise ContainerFailed(
                f"no kernel of the container trapped: it ended with status {self._process.returncode}"
            )

    def clear_away(self) -> None:
        """Leave nothing of it, however far it has come."""
        if self._process.poll() is None:
            self._process.kill()
        self._wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 -- a pipe, see above
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failed() from error

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 -- a pipe, see above
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            if not ready.select(ANSWERS_WITHIN):
                raise ContainerFailed(f"a container said nothing for {ANSWERS_WITHIN:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._failed()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failed(self) -> ContainerFailed:
        self._process.kill()
        _, said = self._process.communicate()
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        return ContainerFailed(f"a container ended with status {self._process.returncode}: {last or 'no word'}")

    def _wait(self) -> None:
        try:
            self._process.wait(GONE_WITHIN)
        except subprocess.TimeoutExpired as error:
            raise ContainerFailed(f"process {self._process.pid} is not gone within {GONE_WITHIN:g} s") from error


def run_round(board: Board, host_root: Path, how: Ending, media: Sequence[Medium] = tuple(Medium)) -> Round:
    """One round. No process of it is left afterwards."""
    key, never = secrets.token_hex(16), secrets.token_hex(16)
    chosen = tuple(medium.value for medium in media)
    order = ContainerOrder("fill", board.uuid, board.pci_address, str(host_root), key, never, chosen)
    if how is Ending.STAYS:
        order = dataclasses.replace(order, share=LEFT_FREE)
    with _container(order) as first, _container(dataclasses.replace(order, deed="look", share=1)) as second:
        first.wait_until_ready()
        second.wait_until_ready()
        said = first.go()
        if "refused" in said:
            raise ContainerFailed(said["refused"])
        if how is not Ending.STAYS:
            first.end(how)
        began = time.monotonic()
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
        )


def rounds(endings: Sequence[Ending], each: int) -> Iterator[Ending]:
    """The endings in turn, so that a run that is ended early has some of all."""
    for _ in range(each):
        yield from endings


@contextmanager
def _container(order: ContainerOrder) -> Iterator[_Container]:
    container = _Container(order)
    try:
        yield container
    finally:
        container.clear_away()
