"""The operators' client: status, history, scrub. The plugin does not import it: its views take a tenth of a start."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack

from ground.documents import strict_json
from ground.errors import Reason, Refused
from scrub_api import client, scrub_pb2, scrub_pb2_grpc, views

T = TypeVar("T")

PARTIAL = "the disk of the ledger does not answer: these events come from memory, and older ones may be missing"
PAGE = 500  # rows of history in one answer: if all hold a signed receipt, it has less than the 4 MiB of a message


class Which(TypedDict, total=False):
    """Which rows of the history: see ``HistoryRequest`` in ``scrub.proto``."""

    after: int
    until: float
    kinds: Sequence[str]
    warnings: bool
    without_steps: bool


class AdminClient(client.Client):
    """Client of the socket for operators."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        self._stub = scrub_pb2_grpc.AdminStub(self.channel)

    async def status(
        self, gpus: Sequence[str] = (), *, newer_than: int = 0, wait: float = 0.0, timeout: float = client.SHORT
    ) -> views.Status:
        """All devices, or the named ones. ``wait``: seconds to wait until the ledger has a row after ``newer_than``."""
        request = scrub_pb2.StatusRequest(gpus=gpus, newer_than=newer_than, wait_seconds=wait)
        return _view(views.Status, await self.ask(self._stub.Status(request, timeout=timeout + wait)))

    def scrub(
        self, gpus: Sequence[str], *, every: bool = False, path: str = "", no_wait: bool = False,
        timeout: float | None = None,
    ) -> AsyncGenerator[views.ScrubProgress, None]:  # fmt: skip
        """Progress of the jobs until each has its result."""
        request = scrub_pb2.ScrubRequest(gpus=gpus, all=every, path=path, no_wait=no_wait)
        return self.stream(self._stub.Scrub(request, timeout=timeout), partial(_view, views.ScrubProgress))

    async def quarantine(self, gpu: str, reason: str, by: str, *, timeout: float = client.SHORT) -> views.DeviceStatus:
        """Quarantine a device."""
        request = scrub_pb2.QuarantineRequest(gpu=gpu, reason=reason, by=by)
        return _view(views.DeviceStatus, await self.ask(self._stub.Quarantine(request, timeout=timeout)))

    def reinstate(
        self, gpus: Sequence[str], reason: str, by: str, *, without_evidence: bool = False, timeout: float | None = None
    ) -> AsyncGenerator[views.ScrubProgress, None]:
        """End quarantines with a scrub and a self-test; without evidence, at once."""
        request = scrub_pb2.ReinstateRequest(gpus=gpus, reason=reason, by=by, without_evidence=without_evidence)
        return self.stream(self._stub.Reinstate(request, timeout=timeout), partial(_view, views.ScrubProgress))

    async def explain(self, gpu: str, *, timeout: float = client.SHORT) -> views.Explanation:
        """Why a device is in its state."""
        request = scrub_pb2.ExplainRequest(gpu=gpu)
        return _view(views.Explanation, await self.ask(self._stub.Explain(request, timeout=timeout)))

    async def history(
        self, gpu: str = "", *, since: float = 0.0, limit: int = 1000, warn: Callable[[str], object] = str,
        **which: Unpack[Which],
    ) -> tuple[views.HistoryEntry, ...]:  # fmt: skip
        """The newest rows of the ledger that are asked for, newest last. Asks page by page.

        ``warn`` is called with a sentence if older rows may be missing, because the ledger's disk does not answer.
        """
        rows: tuple[views.HistoryEntry, ...] = ()
        while len(rows) < limit:
            request = scrub_pb2.HistoryRequest(
                gpu=gpu, since=since, limit=min(limit - len(rows), PAGE), before=rows[0].seq if rows else 0,
                **which,
            )  # fmt: skip
            page = _view(views.History, await self.ask(self._stub.History(request, timeout=client.SHORT)))
            rows = (*page.entries, *rows)
            if page.partial:
                warn(PARTIAL)
            if len(page.entries) < request.limit:
                break
        return rows


def _view(kind: type[T], answer: scrub_pb2.View) -> T:
    """The view in an answer. Only a service of another version sends one that has other fields."""
    try:
        return strict_json.decode(kind, answer.json)
    except ValueError as error:
        why = "cannot read the answer of the scrub service: it speaks another version of the API"
        raise Refused(Reason.INTERNAL, why, client.SAME_VERSION) from error
