"""The gRPC methods of both sockets: they check a request's limits, ask the service, and encode its answer."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from ground import aio, log, paths, private_files, unix_sockets
from ground.documents import strict_json
from ground.errors import AutoclaveError, InvalidRequest, LedgerUnavailable, Reason
from scrub_api import last_list, request_limits, scrub_pb2, scrub_pb2_grpc, views
from scrub_api.device_messages import ReportedDevice, ReportedDevices
from scrubber.api import answering
from scrubber.api.answering import Context, LoggedRequest, abort, answered, logged
from scrubber.core import device_names
from scrubber.core.acquire import ForClaim, ForJob, ForPod, Recipient
from scrubber.core.fencing import Pods
from scrubber.core.model import ScrubPath, State
from scrubber.jobs.scrub_job import ScrubJob
from scrubber.ledger.entry_queries import Window
from scrubber.metrics.counters import ServiceCounters
from scrubber.service.report import StatusReporter
from scrubber.service.service import Service
from scrubber.words import device_status

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

logger = log.get("api")

WATCH_SETTLES = 0.02  # seconds: several changes make one list, and hook requests go first
MOST_REPORTED = 1024  # cached messages; a node has a few hundred devices at most
HEARTBEAT = 2.0  # seconds after which the same list is sent again, as a sign of life
WATCH_AT_LEAST_EVERY = 1.0  # seconds: the list also changes with time alone
SOCKETS = ("scrubber", "admin")
LONGEST_WAIT = 60.0
SERVER_OPTIONS = (("grpc.max_receive_message_length", 64 * 1024), ("grpc.so_reuseport", 0))


class ScrubberServicer(scrub_pb2_grpc.ScrubberServicer):
    """The socket for the device plugin and ``autoclave acquire``."""

    def __init__(self, service: Service, reporter: StatusReporter, counters: ServiceCounters) -> None:
        self._service = service
        self._reporter = reporter
        self._counters = counters

    async def Acquire(self, request: scrub_pb2.AcquireRequest, context: Context) -> scrub_pb2.AcquireResponse:
        """See ``scrub.proto``."""
        async with answered(context, "acquire", self._counters.answered) as asked:
            asked.devices = request_limits.devices(request.devices)
            grants = await self._service.tenant_requests.acquire(
                asked.devices, _recipient(request), op=asked.op, within=context.time_remaining()
            )
            return scrub_pb2.AcquireResponse(grants=[scrub_pb2.Granted(**asdict(grant)) for grant in grants.values()])

    async def Start(self, request: scrub_pb2.StartRequest, context: Context) -> scrub_pb2.StartResponse:
        """See ``scrub.proto``."""
        async with answered(context, "start", self._counters.answered) as asked:
            asked.devices = request_limits.devices(request.devices)
            owner = request_limits.owner(request.owner) if request.owner else None
            await self._service.tenant_requests.start(
                asked.devices, owner, op=asked.op, within=context.time_remaining()
            )
            return scrub_pb2.StartResponse()

    async def Release(self, request: scrub_pb2.ReleaseRequest, context: Context) -> scrub_pb2.ReleaseResponse:
        """See ``scrub.proto``."""
        async with answered(context, "release", self._counters.answered) as asked:
            owner = request_limits.acquired_for(request.owner)
            asked.devices = request_limits.devices(request.devices, needed=not owner)
            released = await self._service.tenant_requests.release(
                asked.devices, owner=owner, op=asked.op, within=context.time_remaining()
            )
            asked.devices = asked.devices or released
            return scrub_pb2.ReleaseResponse(released=released)

    async def LetIn(self, request: scrub_pb2.LetInRequest, context: Context) -> scrub_pb2.LetInResponse:
        """See ``scrub.proto``."""
        async with answered(context, "let_in", self._counters.answered) as asked:
            owner = request_limits.acquired_for(request.owner)
            only = Pods(request_limits.pods(request.pods.uids))
            asked.devices = await self._service.tenant_requests.let_in(owner, only, op=asked.op)
            return scrub_pb2.LetInResponse()

    async def Distrust(self, request: scrub_pb2.DistrustRequest, context: Context) -> scrub_pb2.DistrustResponse:
        """See ``scrub.proto``."""
        async with answered(context, "distrust", self._counters.answered) as asked:
            asked.devices = request_limits.devices([request.device])
            reason = request_limits.one_line(request.reason, "the reason", needed=True)
            await self._service.tenant_requests.distrust(
                request.device, reason, op=asked.op, within=context.time_remaining()
            )  # fmt: skip
            return scrub_pb2.DistrustResponse()

    async def Watch(
        self, request: scrub_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[scrub_pb2.WatchResponse]:  # fmt: skip
        """See ``scrub.proto``."""
        async with aclosing(self.lists()) as lists:
            async for response in lists:
                yield response

    async def lists(self) -> AsyncGenerator[scrub_pb2.WatchResponse, None]:
        """The list of devices now, after each change, and as a sign of life."""
        last: ReportedDevices | None = None
        clock, sent = asyncio.get_running_loop().time, 0.0
        while not self._service.context.jobs.stopping:
            count, now = self._service.context.news.notifications, self._reporter.reported()
            if now != last or clock() - sent >= HEARTBEAT:
                last, sent = now, clock()
                yield scrub_pb2.WatchResponse(
                    devices=map(_reported, now.devices), silence_seconds=now.silence_seconds, checkpoint=now.checkpoint
                )  # fmt: skip
            if await self._service.context.news.after(count, WATCH_AT_LEAST_EVERY):
                await asyncio.sleep(WATCH_SETTLES)


def _recipient(request: scrub_pb2.AcquireRequest) -> Recipient:
    """For whom the devices are asked, or InvalidRequest."""
    owner, has_pods = request_limits.acquired_for(request.owner), request.HasField("pods")
    if not request.exclusive:
        if owner or request.group or has_pods:
            raise InvalidRequest(
                "cannot hand out the devices: the request names an owner, a control group or pods, but is not exclusive"
            )
        return ForPod(announced=request.announced)
    if not has_pods:
        return ForJob(owner, request.group)
    if request.group:
        raise InvalidRequest("cannot hand out the devices: the request names both a control group and pods")
    if not owner:
        raise InvalidRequest(
            "cannot hand out the devices: the request names pods, but no owner that keeps the devices for them"
        )
    return ForClaim(owner, Pods(request_limits.pods(request.pods.uids)))


class AdminServicer(scrub_pb2_grpc.AdminServicer):
    """The socket for operators."""

    def __init__(self, service: Service, reporter: StatusReporter) -> None:
        self._service = service
        self._reporter = reporter

    async def Status(self, request: scrub_pb2.StatusRequest, context: Context) -> scrub_pb2.View:
        """See ``scrub.proto``."""
        async with answered(context, "status", quiet=True):
            gpus = request_limits.devices(request.gpus, needed=False)
            news = self._service.context.news
            if request.wait_seconds > 0 and self._service.context.ledger.seq == request.newer_than:
                await news.after(news.notifications, min(request.wait_seconds, LONGEST_WAIT))
            return _view(await self._reporter.status(gpus))

    async def Scrub(self, request: scrub_pb2.ScrubRequest, context: Context) -> AsyncIterator[scrub_pb2.View]:
        """See ``scrub.proto``."""
        async with answered(context, "scrub") as asked:
            names = request_limits.devices(request.gpus, needed=not request.all)
            records = self._service.context.ledger.records
            uuids = [device_names.find(records, name) for name in names] or sorted(self._reporter.listed())
            path = _path(request.path)
            asked.quiet = True  # each device has its own line
        scrub = partial(self._service.operator_requests.scrub, path=path, op=asked.op)
        async for progress in self._jobs(asked, uuids, scrub, no_wait=request.no_wait):
            yield progress

    async def Quarantine(self, request: scrub_pb2.QuarantineRequest, context: Context) -> scrub_pb2.View:
        """See ``scrub.proto``."""
        async with answered(context, "quarantine") as asked:
            uuid = device_names.find(self._service.context.ledger.records, request_limits.devices([request.gpu])[0])
            asked.devices = [uuid]
            reason = request_limits.one_line(request.reason, "the reason", needed=True)
            by = request_limits.one_line(request.by, "the name of the caller")
            await self._service.operator_requests.quarantine(uuid, reason, by, op=asked.op)
            return _view(self._reporter.device(uuid))

    async def Reinstate(self, request: scrub_pb2.ReinstateRequest, context: Context) -> AsyncIterator[scrub_pb2.View]:
        """See ``scrub.proto``."""
        async with answered(context, "reinstate") as asked:
            records = self._service.context.ledger.records
            uuids = [device_names.find(records, name) for name in request_limits.devices(request.gpus)]
            reason = request_limits.one_line(request.reason, "the reason")
            by = request_limits.one_line(request.by, "the name of the caller") or "an operator"
            asked.quiet = True  # each device has its own line
        requests = self._service.operator_requests
        use_case = requests.reinstate_without_proof if request.without_evidence else requests.reinstate
        async for progress in self._jobs(asked, uuids, partial(use_case, reason=reason, by=by, op=asked.op)):
            yield progress

    async def Explain(self, request: scrub_pb2.ExplainRequest, context: Context) -> scrub_pb2.View:
        """See ``scrub.proto``."""
        async with answered(context, "explain", quiet=True):
            return _view(await self._reporter.explain(request_limits.devices([request.gpu])[0]))

    async def History(self, request: scrub_pb2.HistoryRequest, context: Context) -> scrub_pb2.View:
        """See ``scrub.proto``."""
        async with answered(context, "history", quiet=True):
            gpu = request_limits.devices([request.gpu])[0] if request.gpu else ""
            window = Window(
                request.before or None, request.after, frozenset(request.kinds), request.until or None, request.warnings
            )
            page = await self._reporter.history.entries(
                gpu, request.since, request.limit, window, without_steps=request.without_steps
            )
            return _view(page)

    async def _jobs(
        self, asked: LoggedRequest, uuids: Sequence[str], begin: Callable[[str], Awaitable[ScrubJob | None]], *,
        no_wait: bool = False,
    ) -> AsyncIterator[scrub_pb2.View]:  # fmt: skip
        """Start or join a job on each device and stream their progress."""
        each = [LoggedRequest(asked.request, [uuid], op=asked.op) for uuid in uuids]
        async for progress in aio.merged([self._job(request, begin, no_wait=no_wait) for request in each]):
            yield _view(progress)

    async def _job(
        self, asked: LoggedRequest, begin: Callable[[str], Awaitable[ScrubJob | None]], *, no_wait: bool
    ) -> AsyncIterator[views.ScrubProgress]:  # fmt: skip
        """Start or join a job and stream its progress. A refusal is reported as the result of this device."""
        (uuid,) = asked.devices
        try:
            with logged(asked):
                running = await begin(uuid)
                asked.job = running.id if running is not None else ""
        except AutoclaveError as error:
            state = self._service.context.ledger.records[uuid].state.value
            result = views.ScrubResult(
                clean=False, state=state, why=error.message, reason=error.reason.value, remedies=error.remedies
            )  # fmt: skip
            yield views.ScrubProgress(uuid, "", result=result)
            return
        if running is None:
            state = self._service.context.ledger.records[uuid].state.value
            why = "the quarantine that waited for the end of its use is withdrawn"
            result = views.ScrubResult(clean=False, state=state, why=why, withdrawn=True)
            yield views.ScrubProgress(uuid, "", result=result)
            return
        if not no_wait:
            yield self._progress(running)  # it may already wait for a slot
            async for _ in running.updates():
                yield self._progress(running)
        yield views.ScrubProgress(uuid, running.id, result=self._result(running))

    def _progress(self, running: ScrubJob) -> views.ScrubProgress:
        progress, place = running.progress, self._service.context.jobs.slots.place(running.device)
        step = progress.step.value if progress.step is not None else ""
        done, total = progress.bytes_done, progress.bytes_total
        return views.ScrubProgress(running.device, running.id, step, done, total, queue_place=place)

    def _result(self, running: ScrubJob) -> views.ScrubResult:
        record = self._service.context.ledger.records[running.device]
        if not running.finished.is_set():
            return views.ScrubResult(clean=False, state=record.state.value, running=True)
        if running.receipt is not None:
            return views.ScrubResult(
                clean=True, state=record.state.value, receipt=device_status.receipt_view(running.receipt)
            )  # fmt: skip
        reason = Reason.QUARANTINED if record.state is State.QUARANTINED else Reason.SCRUB_FAILED
        return views.ScrubResult(clean=False, state=record.state.value, why=running.why, reason=reason.value)


@lru_cache(MOST_REPORTED)
def _reported(device: ReportedDevice) -> scrub_pb2.ReportedDevice:
    """Cached, because usually only one device of the list has changed."""
    return scrub_pb2.ReportedDevice(**asdict(device))


def _view(view: DataclassInstance) -> scrub_pb2.View:
    return scrub_pb2.View(json=strict_json.encode(view))


def _path(word: str) -> ScrubPath | None:
    if not word:
        return None
    try:
        return ScrubPath(word)
    except ValueError:
        raise InvalidRequest("cannot scrub: the path is not fast, slow or reset") from None


class _Servers(ABC):
    """One server for each socket."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._servers: list[grpc.aio.Server] = []

    async def open(self) -> None:
        """Bind the sockets and serve. The caller holds the lock of the run directory."""
        for name in SOCKETS:
            server = self._server(name)
            path = self._run_dir / f"{name}.sock"
            server.add_insecure_port(unix_sockets.claim(path))
            os.chmod(path, private_files.PRIVATE_FILE)  # noqa: PTH101 - before start, so that nobody else ever connects
            await server.start()
            self._servers.append(server)

    async def close(self, grace: float = 1.0) -> None:
        """Take no more calls. Calls under way may take ``grace`` seconds."""
        await asyncio.gather(*(server.stop(grace) for server in self._servers))

    @abstractmethod
    def _server(self, name: str) -> grpc.aio.Server:
        """The server for the socket with this name."""


class GrpcServers(_Servers):
    """The servers of both sockets. They open after the ledger is recovered and close before everything else."""

    def __init__(self, service: Service, reporter: StatusReporter, counters: ServiceCounters, run_dir: Path) -> None:
        super().__init__(run_dir)
        self._scrubber = ScrubberServicer(service, reporter, counters)
        self._admin = AdminServicer(service, reporter)

    def _server(self, name: str) -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=(answering.Screening(),), options=SERVER_OPTIONS)
        if name == "scrubber":
            scrub_pb2_grpc.add_ScrubberServicer_to_server(self._scrubber, server)
        else:
            scrub_pb2_grpc.add_AdminServicer_to_server(self._admin, server)
        return server

    async def keep_last_list(self) -> None:
        """Until cancelled, leave each list in the run directory, for a plugin that starts while the service is away.

        After an error there is no file: what it said may be wrong by now.
        """
        file, fault = paths.last_list(self._run_dir), ""
        async with aclosing(self._scrubber.lists()) as lists:
            async for response in lists:
                try:
                    await asyncio.to_thread(last_list.write, file, last_list.stamped(response))
                    fault = ""
                except OSError as error:
                    if str(error) != fault:
                        fault = str(error)
                        logger.warning("the last list of devices is not kept", file=str(file), error=fault)


class RefusingServers(_Servers, grpc.GenericRpcHandler):
    """Servers without a ledger: they refuse every request with the reason."""

    fault = LedgerUnavailable("")

    def _server(self, name: str) -> grpc.aio.Server:
        return grpc.aio.server(handlers=(self,), options=SERVER_OPTIONS)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A handler that refuses, for every method."""

        async def refuse(_request: bytes, context: Context) -> bytes:
            no = LedgerUnavailable(f"cannot grant anything: {self.fault.message}", *self.fault.remedies)
            await abort(context, grpc.StatusCode.UNAVAILABLE, no)

        return grpc.unary_unary_rpc_method_handler(refuse)
