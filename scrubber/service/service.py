"""Builds the service from its parts: requests, upkeep, monitor and jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from scrubber.core.model import Vitals
from scrubber.core.record import Record
from scrubber.service.context import ServiceContext
from scrubber.service.operator_requests import OperatorRequests
from scrubber.service.tenant_requests import TenantRequests
from scrubber.service.upkeep import Upkeep


@dataclass(frozen=True, slots=True)
class Service:
    """One part for each kind of caller, and the context that the parts share."""

    context: ServiceContext
    tenant_requests: TenantRequests  # for the program that hands devices out
    operator_requests: OperatorRequests  # for people
    upkeep: Upkeep  # for the monitor

    @classmethod
    def build(
        cls, context: ServiceContext, on_vitals: Callable[[Record, Vitals], None] = lambda _record, _vitals: None
    ) -> Self:
        """All parts over one context. Call ``upkeep.recover`` before anything else."""
        upkeep = Upkeep(context, on_vitals)
        return cls(context, TenantRequests(context, upkeep), OperatorRequests(context), upkeep)

    async def stop(self) -> None:
        """Refuse all requests, cancel all jobs, record their ends, and wake the calls that wait for a change."""
        await self.context.jobs.stop()
        self.context.news.notify()
