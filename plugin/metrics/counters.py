"""What the plugin counts while it happens, and where each resource stands with the kubelet.

Every label is a word of ours, or a resource that the scrub service offers: nobody who asks can make a new series.
"""

from __future__ import annotations

from enum import Enum

from prometheus_client import CollectorRegistry

from plugin.metrics import table
from plugin.registration.events import Cause, Event, Registered
from scrubber.ground.errors import Reason
from scrubber.ground.metric_table import Instruments

REGISTERED = "registered"
UNHEARD = "the kubelet has not been heard of yet"
LONGEST_RECEIPT = 100  # characters: a longer exemplar would be an error, in the middle of an Allocate


class Hook(Enum):
    """The kubelet's questions, as its API calls them."""

    ALLOCATE = "Allocate"
    PRE_START = "PreStartContainer"
    PREFERRED = "GetPreferredAllocation"


class HookOutcome(Enum):
    """How a question ended; the log says the same."""

    OK = "ok"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    FAULT = "fault"


GATES = (Hook.ALLOCATE, Hook.PRE_START)  # the questions that may be answered with a no
_NO = {HookOutcome.REFUSED, HookOutcome.FAULT}


class PluginCounters:
    """Counters and times of the plugin."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Every no that there can be begins at nothing, so that the first one is seen to be one more."""
        self._instruments = Instruments(table.TABLE, registry)
        self._obstacles: dict[str, str] = {}
        for hook in GATES:
            for reason in Reason:
                self._instruments.known(table.HOOK_REFUSALS, hook.value, reason.value)

    def obstacle(self, resource: str) -> str:
        """Why a resource is not registered; nothing where it is."""
        return self._obstacles.get(resource, UNHEARD)

    def answered(
        self, hook: Hook, outcome: HookOutcome, seconds: float, *, reason: Reason | None = None, receipt: str = ""
    ) -> None:
        """The kubelet asked and was answered, or gave up."""
        shown = receipt if len(receipt) <= LONGEST_RECEIPT else ""
        self._instruments.time(table.HOOK_TIME, hook.value, outcome.value, value=seconds, receipt=shown)
        if outcome in _NO and hook in GATES:
            self._instruments.count(table.HOOK_REFUSALS, hook.value, (reason or Reason.INTERNAL).value)

    def listed(self, resource: str) -> None:
        """A list was sent."""
        self._instruments.count(table.LISTS, resource)

    def expect(self, resource: str) -> None:
        """It is about to be registered."""
        self._instruments.known(table.LISTS, resource)
        for outcome in (REGISTERED, *(cause.value for cause in Cause)):
            self._instruments.known(table.REGISTRATIONS, resource, outcome)

    def heard(self, event: Event) -> None:
        """What became of a registration."""
        outcome, why = (REGISTERED, "") if isinstance(event, Registered) else (event.cause.value, event.detail)
        self._obstacles[event.resource] = why
        self._instruments.count(table.REGISTRATIONS, event.resource, outcome)
