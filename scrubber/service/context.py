"""What the service's parts share: ledger, observer, policy, last facts, and the devices withheld."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from ground.aio import Changed
from ground.errors import InvalidRequest, NotReady, Reason
from policies.policy_model import Policy, Receipts
from scrubber.core import next_action, proof
from scrubber.core.ailments import diagnose
from scrubber.core.model import DeviceInfo, Facts, Holder, Moment, State, Vitals
from scrubber.core.observation import Purpose
from scrubber.core.offering import OfferFacts
from scrubber.core.record import Record
from scrubber.jobs.jobs import Jobs
from scrubber.ledger.ledger import Ledger
from scrubber.node.pods import Tenants
from scrubber.observe.observer import Observer
from scrubber.policy import ActivePolicy, DevicePolicy
from scrubber.service.fence_upkeep import FenceUpkeep

WITHHOLD_SECONDS = 10.0  # how long a device is not offered after a request for it failed
MAX_ROUNDS = 16  # events that one decision may record before it is final; more is a loop in our code


async def no_tenants() -> Tenants:
    """No pods: the node has no kubelet."""
    return Tenants()


@dataclass(slots=True, eq=False)
class LastSeen:
    """What the last observation of each device has shown."""

    blocked: dict[str, str] = field(default_factory=dict)  # why no scrub can start
    holders: dict[str, tuple[Holder, ...]] = field(default_factory=dict)
    vitals: dict[str, Vitals] = field(default_factory=dict)  # the last complete health report


@dataclass(slots=True, eq=False)
class ServiceContext:
    """The shared objects and findings. Clock and randomness are parameters, so that tests control them."""

    ledger: Ledger
    observer: Observer
    jobs: Jobs
    active_policy: ActivePolicy
    now: Callable[[], Moment]
    token: Callable[[int], str]  # returns that many random bytes as hex
    chance: Callable[[], float]  # returns a random number in [0, 1)
    clear_obstacle: Callable[[DeviceInfo], str | None]  # what prevents us from clearing the memory, and the remedy
    fence: FenceUpkeep | None = None  # where the kernel tells who opens a GPU
    tenants: Callable[[], Awaitable[Tenants]] = no_tenants  # the pods that own devices, and their names; DeviceError
    seen: LastSeen = field(default_factory=LastSeen)
    news: Changed = field(init=False)  # what the service shows has changed: a row, or something that is in no row
    # By device: ``since`` of its record when it was withheld, and the uptime at which that ends.
    _withheld: dict[str, tuple[Moment, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.news = Changed(self.ledger.changed)

    def record(self, device: str) -> Record:
        """The record of a device. Raises InvalidRequest if no device has this UUID."""
        record = self.ledger.records.get(device)
        if record is None:
            raise InvalidRequest(f"cannot find device {device}: no device has this name", reason=Reason.UNKNOWN_DEVICE)
        return record

    def device_policy(self, device: str) -> DevicePolicy:
        """The policy in force for a device. Raises InvalidRequest if no device has this UUID."""
        return self.active_policy.device_policy(self.record(device).device)

    def operation(self, given: str = "") -> str:
        """The id of an operation in ledger and log: the caller's id, or a new one.

        Raises NotReady while the service stops.
        """
        self.jobs.require_running()
        return given or self.token(4)

    def require_clearable(self, device: str, cannot: str = "") -> None:
        """Raise NotReady if the memory cannot be cleared: the other steps of a scrub would prove nothing.

        ``cannot``: what the message begins with.
        """
        obstacle = self.clear_obstacle(self.record(device).device)
        if obstacle is not None:
            why, remedy = f"{cannot}cannot clear its memory: {obstacle}", "`autoclave doctor` on its node says more"
            raise NotReady(Reason.NOT_READY, why, remedy, device=device)

    def containers_wait(self, device: str) -> bool:
        """Whether no container can use the device before the service says yes.

        Then a pod can get it without a proof.
        """
        guard = self.observer.driver.guard
        return guard is not None and guard.rules.keeps_out(device)

    def receipts(self, record: Record, policy: Policy, *, granted: bool = False) -> str:
        """The node's directory with the receipt for the containers of a pod; empty if the policy gives them none.

        It is for the pod that the device is granted to, or for a pod that gets the device before the service knows
        more.
        """
        notary = self.ledger.notary
        if notary is None or policy.receipts is Receipts.KEEP:
            return ""
        files = notary.files
        return str(files.path(record) if granted else files.path_if_requested(record))

    async def observe(self, device: str, op: str) -> tuple[Record, Facts]:
        """Observe a device under its lock.

        What ends the trust in the device is recorded before the caller gets an answer.
        """
        record = self.record(device)
        facts = await self.observer.look(record, Purpose.CHANGE)
        ended = proof.ended(record, facts)
        if ended is not None:
            await self.ledger.append(op, (device, ended), seen={device: facts})
        return self.record(device), facts

    def withhold(self, devices: Collection[str]) -> None:
        """Stop offering devices whose request failed, or the kubelet would try them with one pod after the other.

        ``api.server`` waits for this news, and sends the plugin a new list.
        """
        deadline = self.now().uptime + WITHHOLD_SECONDS
        self._withheld |= {device: (self.record(device).since, deadline) for device in devices}
        self.news.notify()

    def offer_facts(self, record: Record) -> OfferFacts:
        """What an offer of this device depends on, apart from its record."""
        fault = self.ledger.fault is not None
        return OfferFacts(
            ledger_fault=fault,
            unrecorded=self._unrecorded(record) if fault else "",
            withheld=self.is_withheld(record),
            containers_wait=self.containers_wait(record.device.uuid),
            blocked=self.seen.blocked.get(record.device.uuid, ""),
        )

    def _unrecorded(self, record: Record) -> str:
        """The ailment that the device shows, while the ledger cannot be written."""
        vitals, policy = (
            self.seen.vitals.get(record.device.uuid),
            self.active_policy.device_policy(record.device).policy,
        )
        ailment = diagnose(vitals, record.health.baseline, policy)
        return ailment.detail if ailment is not None else ""

    def is_withheld(self, record: Record) -> bool:
        """Whether a request for this device failed recently, and the device is still in that state.

        A device in use stays withheld until it is released.
        """
        since, deadline = self._withheld.get(record.device.uuid, (None, 0.0))
        if since != record.since:
            return False
        return record.state is State.IN_USE or self.now().uptime < deadline

    async def close_orphaned_job(self, device: str, op: str) -> bool:
        """Close a job that no longer runs and whose end could not be written. Returns whether there was one."""
        record = self.record(device)
        if record.scrubs.job is None or self.jobs.of(device) is not None:
            return False
        event = next_action.interruption(record, "the end of the job could not be recorded", self.now())
        await self.ledger.append(op, (device, event))
        return True
