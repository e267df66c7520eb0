"""The obstacles to handing out devices, for ``/readyz`` and its metric, such as a monitor whose rounds stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scrubber.core.model import Moment
from scrubber.service.context import ServiceContext
from scrubber.service.report import StatusReporter

SILENT = 30.0  # seconds without a round after which the monitor counts as stopped


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
