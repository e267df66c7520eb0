"""The service as a whole: its parts, and the obstacles to handing out devices.

``/readyz`` and its metric show the obstacles, such as a monitor whose rounds stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from scrubber.core.model import Moment, Vitals
from scrubber.core.record import Record
from scrubber.service.context import ServiceContext
from scrubber.service.operator_requests import OperatorRequests
from scrubber.service.report import StatusReporter
from scrubber.service.tenant_requests import TenantRequests
from scrubber.service.upkeep import Upkeep

SILENT = 30.0  # seconds without a round after which the monitor counts as stopped


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


@dataclass(frozen=True)
class Readiness:
    """What people are told if the service cannot hand out any device, or if their policy file is not in force."""

    context: ServiceContext
    reporter: StatusReporter
    round_ended: Callable[[], Moment | None]  # the last round of the monitor

    def obstacles(self) -> tuple[str, ...]:
        """The reasons why the service cannot hand out any device."""
        ended = self.round_ended()
        silent = ended is None or self.context.now().uptime - ended.uptime > SILENT
        about = self.reporter.about()
        obstacles = {
            "the ledger cannot be written": bool(about.ledger_fault),
            f"no memory can be cleared: {about.lacks}": bool(about.lacks),
            f"the monitor has not finished a round for {SILENT:g} s": silent,
            "the service has no device": not self.context.ledger.records,
        }
        return tuple(why for why, so in obstacles.items() if so)

    def notes(self) -> tuple[str, ...]:
        """What people should know although the service hands devices out: a policy file that is not in force."""
        policy = self.context.active_policy
        if not policy.fault:
            return ()
        return (f"the policy file {policy.source} is not in force, and {policy.stays}; `autoclave doctor` says why",)
