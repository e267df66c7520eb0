"""Answers ``autoclave-gate``: may the container runtime create this container with this device?

The program sends one line, and then the runtime's state of the container. The server answers with one line. Each line
begins with the version of the protocol. A question that cannot be read is answered with no. While the service stops, it
gives no answer, and the program asks the next service.

The pod is named by annotations that the runtime sets itself. A pod cannot change them. If a pod adds the annotations of
another runtime, the container has two names, and the answer is no.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ground import log, unix_sockets
from ground.documents import strict_json
from ground.errors import AutoclaveError, InvalidRequest, NotReady, Reason
from scrub_api import request_limits
from scrubber.api import answering
from scrubber.create_gate.installation import OF_CLAIM, VERSION, CreateGate
from scrubber.node import clock
from scrubber.service.tenant_requests import TenantRequests

logger = log.get("create gate")

LONGEST_LINE = 2048  # bytes
MOST_STATE = 1 << 20  # bytes
READ_WITHIN = 5.0  # seconds
BEFORE = 0.1  # of the time that the program waits: an answer must come before its end
PAUSE = 0.25  # seconds after an answer of "not ready"
MOST_WAITING = 512  # questions
QUESTION = re.compile(rf"{VERSION} create ([0-9]{{1,4}}) ([A-Za-z0-9._-]{{1,253}}) ([0-9]{{1,7}})\n")
NAME = re.compile("[A-Za-z0-9._-]{1,253}")
CONTAINERD = (
    "io.kubernetes.cri.sandbox-uid", "io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name",
    "io.kubernetes.cri.container-name",
)  # fmt: skip
CRIO = "io.kubernetes.cri-o.Labels"  # an object as text, with the labels of the kubelet
LABELS = (
    "io.kubernetes.pod.uid", "io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name",
)  # fmt: skip


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

    def __init__(self, tenant_requests: TenantRequests, count: answering.Count, gate: CreateGate | None) -> None:
        """``gate`` is None where the gate is off: containers of earlier answers may ask all the same."""
        self._tenant_requests = tenant_requests
        self._count = count
        self._gate = gate
        self._server: asyncio.Server | None = None
        self._waiting: dict[asyncio.Task[str], str] = {}  # the device of each question, the oldest question first

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
                asked = await _question(reader)
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return "no the question of the create gate cannot be read"
        except InvalidRequest as error:
            return f"no the container is not created: {error}"
        if not self._has_room(asked.device):
            return ""
        answer = asyncio.create_task(self._answer(asked))
        gone = asyncio.create_task(reader.read(1))
        self._waiting[answer] = asked.device
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            answer.cancel()
            self._waiting.pop(answer, None)
            await asyncio.wait({answer})
        return "" if answer.cancelled() else answer.result()

    def _has_room(self, device: str) -> bool:
        """Whether one more question about this device may wait; otherwise its program asks again later.

        Where too many wait, the newest question about the device with the most of them gives its place to one about a
        device with fewer. So the first questions of each device are answered, however many there are of another one.
        """
        if len(self._waiting) < MOST_WAITING:
            return True
        counts = Counter(self._waiting.values())
        crowded, most = counts.most_common(1)[0]
        if counts[device] + 1 >= most:
            return False
        newest = next(task for task, of in reversed(self._waiting.items()) if of == crowded)
        del self._waiting[newest]
        newest.cancel()
        return True

    async def _answer(self, asked: Creation) -> str:
        request = answering.LoggedRequest("create", [asked.device])
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
        no = f"no container {asked.container} of pod {asked.namespace}/{asked.name} is not created"
        era = self._gate.era() if self._gate is not None else 0
        try:
            with answering.logged(request, self._count):
                await self._admit(asked, request.op)
        except AutoclaveError as error:
            return "" if error.reason is Reason.SHUTTING_DOWN else f"{no}: {error.for_tenants}"
        except Exception:  # noqa: BLE001 - logged
            return f"{no}: {answering.FAULT}"
        if self._gate is not None:
            self._gate.let_through(asked.device, asked.pod, clock.now().uptime, era)
        return "yes"

    async def _admit(self, asked: Creation, op: str) -> None:
        """Return when the container may be created; raise otherwise. What time heals is waited for."""
        loop_time = asyncio.get_running_loop().time
        until = loop_time() + asked.seconds * (1 - BEFORE)
        while True:
            try:
                within = until - loop_time()
                await self._tenant_requests.start(
                    [asked.device], asked.pod, op=op, within=within, creating=asked.called, claim=asked.claim
                )
            except NotReady as error:
                if error.reason is Reason.SHUTTING_DOWN or loop_time() + PAUSE >= until:
                    raise
                await asyncio.sleep(PAUSE)
            else:
                return


async def _question(reader: asyncio.StreamReader) -> Creation:
    """The question, or InvalidRequest."""
    line = await reader.readuntil(b"\n")
    question = QUESTION.fullmatch(line.decode("ascii", "replace"))
    if question is None or int(question[3]) > MOST_STATE:
        raise InvalidRequest("the question of the create gate cannot be read")
    device, _, claim = question[2].partition(OF_CLAIM)
    asked = Creation(int(question[1]), device, claim, *names(await reader.readexactly(int(question[3]))))
    request_limits.devices([asked.device])
    if claim:
        request_limits.owner(claim)
    request_limits.owner(asked.pod)
    return asked


def names(state: bytes) -> list[str]:
    """UID, namespace and name of the pod, name and id of the container, from the runtime's state; or InvalidRequest."""
    try:
        whole: Any = strict_json.parse(state.decode())
        annotations = whole.get("annotations", {})
        values = [annotations.get(key) for key in CONTAINERD]
        if CRIO in annotations:
            labels: Any = strict_json.parse(annotations[CRIO])
            if values != [None] * len(values):
                raise InvalidRequest("the state of the container names its pod in the words of two container runtimes")
            values = [labels.get(key) for key in LABELS]
        values.append(whole.get("id"))
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidRequest("the container runtime's state of the container cannot be read") from error
    if not all(isinstance(name, str) and NAME.fullmatch(name) for name in values):
        raise InvalidRequest("the container runtime names no container of a pod")
    return values
