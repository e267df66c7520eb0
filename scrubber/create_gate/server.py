"""Answers ``autoclave-gate``: may the container runtime create this container with this device?

One line comes and one line goes, each with the version of the protocol first. A question that cannot be read is
answered with no. While the service stops, it gives no answer, and the program asks the next service.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

from scrubber.api import answering
from scrubber.create_gate.installation import OF_CLAIM, VERSION, CreateGate
from scrubber.ground import log, operation_id, request_limits, unix_sockets
from scrubber.ground.errors import AutoclaveError, InvalidRequest, NotReady, Reason
from scrubber.service.handover import Handover

logger = log.get("create gate")

LONGEST_LINE = 2048  # bytes
READ_WITHIN = 5.0  # seconds
BEFORE = 0.1  # of the time that the program waits: an answer must come before its end
PAUSE = 0.25  # seconds after an answer of "not ready"
MOST_WAITING = 512  # questions
QUESTION = re.compile(rf"{VERSION} create ([0-9]{{1,4}})" + r" ([A-Za-z0-9._-]{1,253})" * 6 + r"\n")
UNREADABLE = "no the question of the create gate cannot be read"


@dataclass(frozen=True, slots=True)
class Creation:
    """A container that the runtime is about to create with a device, as the runtime names it."""

    seconds: int  # for which the runtime waits
    device: str
    claim: str  # the UID; empty: the kubelet gave the device to the pod itself
    pod: str  # the UID
    namespace: str
    name: str
    container: str
    container_id: str

    @property
    def called(self) -> str:
        """The container as people call it."""
        return f"{self.namespace}/{self.name}/{self.container}"


class GateServer:
    """The socket ``gate.sock``."""

    def __init__(self, handover: Handover, count: answering.Count, gate: CreateGate | None) -> None:
        """``gate`` is None where the gate is off: containers of earlier answers may ask all the same."""
        self._handover = handover
        self._count = count
        self._gate = gate
        self._server: asyncio.Server | None = None
        self._waiting: set[asyncio.Task[str]] = set()

    async def open(self, path: Path) -> None:
        """Bind the socket and answer. The caller holds the lock of its directory, which no other user can enter."""
        unix_sockets.claim(path)
        self._path = path
        self._server = await asyncio.start_unix_server(self._serve, path, limit=LONGEST_LINE)

    async def close(self) -> None:
        """Answer no more. The program asks the next service."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one question. Without an answer, the program asks again until its time is over."""
        try:
            if len(self._waiting) < MOST_WAITING:
                line = await self._answer_while_asked(reader)
                if line:
                    writer.write(f"{VERSION} {line}\n".encode("ascii", "replace"))
                    await writer.drain()
        except OSError:
            logger.info("the create gate ended before its answer")
        finally:
            writer.close()

    async def _answer_while_asked(self, reader: asyncio.StreamReader) -> str:
        """The answer; empty if the program ends first, or this service."""
        try:
            async with asyncio.timeout(READ_WITHIN):
                line = await reader.readuntil(b"\n")
            asked = parse(line)
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, InvalidRequest):
            return UNREADABLE
        if self._gate is not None:
            self._gate.note_question()
        answer = asyncio.create_task(self._answer(asked))
        gone = asyncio.create_task(reader.read(1))
        self._waiting.add(answer)
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            answer.cancel()
            self._waiting.discard(answer)
            await asyncio.wait({answer})
        return "" if answer.cancelled() else answer.result()

    async def _answer(self, asked: Creation) -> str:
        request = answering.Request("create", operation_id.new(), [asked.device])
        logger.info(
            "container asked for",
            op=request.op,
            device=asked.device,
            claim=asked.claim,
            pod=f"{asked.namespace}/{asked.name}",
            pod_uid=asked.pod,
            container=asked.container,
            container_id=asked.container_id,
        )
        try:
            async with answering.logged(request, self._count):
                await self._admit(asked, request.op)
        except AutoclaveError as error:
            return "" if error.reason is Reason.SHUTTING_DOWN else f"no {error.for_tenants}"
        except Exception:  # noqa: BLE001 - logged
            return f"no {answering.FAULT}"
        return "yes"

    async def _admit(self, asked: Creation, op: str) -> None:
        """Return when the container may be created; raise otherwise. What time heals is waited for."""
        clock = asyncio.get_running_loop().time
        until = clock() + asked.seconds * (1 - BEFORE)
        while True:
            try:
                await self._ask(asked, op, until - clock())
            except NotReady as error:
                if error.reason is Reason.SHUTTING_DOWN or clock() + PAUSE >= until:
                    raise
                await asyncio.sleep(PAUSE)
            else:
                return

    async def _ask(self, asked: Creation, op: str, within: float) -> None:
        if asked.claim:
            await self._handover.create_in_claim(asked.device, asked.claim, op, within)
        else:
            await self._handover.start([asked.device], asked.pod, op=op, within=within, creating=asked.called)


def parse(line: bytes) -> Creation:
    """The question in a line, or InvalidRequest."""
    found = QUESTION.fullmatch(line.decode("ascii", "replace"))
    if found is None:
        raise InvalidRequest("this is no question of the create gate")
    seconds, gate, *names = found.groups()
    device, _, claim = gate.partition(OF_CLAIM)
    asked = Creation(int(seconds), device, claim, *names)
    request_limits.devices([asked.device])
    if claim:
        request_limits.owner(claim)
    request_limits.owner(asked.pod)
    return asked
