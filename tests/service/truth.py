"""Compares every deed and every durable row of the service with what really happened.

A violation is a broken promise towards a pod. Two cases are excused, because the service could not know: a foreign
process that came and went between two observations while no driver keeps the uses and no kernel counts them, and one
that came after the last observation.
"""

from __future__ import annotations

import math
from functools import partial

from policies.policy_model import Eviction, Mode, Policy
from scrubber.core import events as ev
from scrubber.core import states
from scrubber.core.model import Grant, ScrubPath, State, Step
from scrubber.core.record import Record
from scrubber.policy import ActivePolicy
from scrubber.words import event_text
from tests.service.node import Gpu, Kind, Node, Process, number_of
from tests.trace import FOUND, ROW

FATAL = {48, 79}  # of the driver errors that a test brings about
WATCH_EVERY = 0.25
A_LOOK = WATCH_EVERY + 0.01
A_SLOW_LOOK = 15.0  # a hung driver keeps a look waiting for so long at most
STEPS = {
    ScrubPath.FAST: [Step.EVICT, Step.CLEAR, Step.VERIFY, Step.SCRATCH, Step.SETTINGS, Step.HEALTH],
    ScrubPath.SLOW: [
        Step.EVICT, Step.CLEAR, Step.VERIFY, Step.SCRATCH, Step.SELFTEST, Step.SETTINGS, Step.HEALTH,
    ],
    ScrubPath.RESET: [
        Step.EVICT, Step.RESET, Step.CLEAR, Step.VERIFY, Step.SCRATCH, Step.SELFTEST, Step.SETTINGS, Step.HEALTH,
    ],
}  # fmt: skip


class Truth:
    """The judge."""

    def __init__(self, node: Node, active_policy: ActivePolicy) -> None:
        """Nothing has happened yet."""
        self.node = node
        self.active_policy = active_policy
        self.violations: list[str] = []
        self.entries: list[ev.LedgerEntry] = []
        self.records: dict[str, Record] = {}
        self.changed: dict[str, float] = {}  # the loop's time of the last row of a device
        self.granted: dict[str, float] = {}  # when a device last went out
        self.proven: dict[str, float] = {}  # uptime of the last proof
        self.unproven: set[str] = set()  # went out under policy observe, and was not proven since
        self.users_since_proof: dict[str, set[str]] = {}  # containers that were on it since it was last proven
        self.first_write: dict[str, float] = {}  # uptime of the first write of a device's last clear
        self.released: dict[str, float] = {}  # uptime of the last release
        self.claims: dict[str, str] = {}  # device -> the claim that has it, and has not begun to give it back

    def policy(self, uuid: str) -> Policy:
        """What is in force for a device."""
        return self.active_policy.device_policy(self.node.gpus[uuid].info).policy

    def accuse(self, text: str) -> None:
        """A promise was broken."""
        self.violations.append(text)
        self.node.trace.say(FOUND, text)

    # -- deeds

    def working(self, gpu: Gpu, worker: Process) -> None:
        """A step begins that may need the device for itself (I4)."""
        others = (it for it in gpu.processes.values() if it is not worker)
        if any(it.kind is Kind.WORKER and it.life == self.node.life for it in others):
            self.accuse(f"two workers on {gpu.info.uuid}")

    def deed(self, gpu: Gpu, step: Step) -> None:
        """Something destructive happens now (I2)."""
        if step is Step.CLEAR:
            self.first_write.setdefault(gpu.info.uuid, self.node.now().uptime)
        for process in gpu.users():
            if self._known_long(process.came) and not self._came_unlisted(gpu, step, process):
                self.accuse(f"{step.value} on {gpu.info.uuid} while {process.name} uses it")
        if step is Step.RESET:
            if not self.node.away:
                self.accuse(f"reset of {gpu.info.uuid} while the service itself has the driver open")
            for sibling in self._siblings(gpu):
                self._reset_under(gpu, sibling)

    def killing(self, gpu: Gpu, process: Process) -> None:
        """A worker ends a process."""
        policy = self.policy(gpu.info.uuid)
        if process.container is not None:
            self.accuse(f"{process.name} of a live container was killed on {gpu.info.uuid}")
        began, ended = self.records[gpu.info.uuid].tenancy.began, self.released.get(gpu.info.uuid, math.inf)
        before_any_tenancy = began is None or process.started < began
        foreign = process.kind is Kind.FOREIGN_PROCESS and (before_any_tenancy or process.started > ended)
        if foreign and policy.evict.foreign is Eviction.WAIT:
            self.accuse(f"{process.name}, nobody's tenant, was killed on {gpu.info.uuid}")
        if process.kind is Kind.TENANT and policy.evict.leftovers is Eviction.WAIT and not before_any_tenancy:
            self.accuse(f"{process.name} was killed on {gpu.info.uuid} although the policy waits")

    def fence(self, uuid: str) -> None:
        """A device that belongs to nobody is open to the service alone. A row may be followed in its moment."""
        node, record, changed = self.node, self.records.get(uuid), self.changed.get(uuid, math.inf)
        if node.kernel is None or record is None or node.loop.time() <= changed:
            return
        if node.driver_hangs or node.kernel.fails or not self._known_long(changed, 0.0):
            return  # a service that has just started learns the numbers from the driver, then asks the kernel
        grant = record.tenancy.grant
        announced = grant is not None and grant.announced and not grant.until_release
        unowned = record.state not in (State.GRANTED, State.IN_USE) or (record.state is State.GRANTED and announced)
        if unowned and not node.kernel.is_closed(number_of(node.gpus[uuid])):
            self.accuse(f"{uuid}, which is {record.state.value}, is open to others than the service")

    # -- rows

    def written(self, entry: ev.LedgerEntry) -> None:
        """A row is durable."""
        if isinstance(entry.event, ev.OF_NODE):
            return
        before = self.records.get(entry.device)
        self.entries.append(entry)
        self.node.trace.say(ROW, partial(event_text.tell, entry.event), entry.device)
        self.records[entry.device] = states.apply(before, entry)
        self.changed[entry.device] = self.node.loop.time()
        match entry.event:
            case ev.StepsRecorded(begins=Step.CLEAR):
                self.first_write.pop(entry.device, None)
            case ev.Granted(grant):
                self._pass_on(entry.device, grant)
                self._granted(entry.device, before, grant)
            case ev.GrantedUnproven(grant):
                self._pass_on(entry.device, grant)
                self.granted[entry.device] = self.node.loop.time()
                self.unproven.add(entry.device)
                if self.policy(entry.device).mode is not Mode.OBSERVE:
                    self.accuse(f"{entry.device} went out unproven, and nobody wrote that it may (I1)")
            case ev.Released(why):
                self.released[entry.device] = entry.at.uptime
                if why.startswith(("it was asked for again", "another owner is about to start")):
                    self.given_back(entry.device)  # by a request or a start without an owner, as in ``_pass_on``
            case ev.ScrubPassed(_, receipt):
                self._believed_clean(entry.device, before, receipt.path)
                self.proven[entry.device] = receipt.finished.uptime

    def _pass_on(self, uuid: str, grant: Grant) -> None:
        """A request without an owner implies that the last owner has left."""
        if not grant.owner:
            self.given_back(uuid)

    def taken(self, claim: str, uuid: str) -> None:
        """The service says that a claim has a device."""
        holder = self.claims.setdefault(uuid, claim)
        if holder != claim:
            self.accuse(f"{claim} has {uuid}, which {holder} has not given back")

    def given_back(self, *uuids: str, claim: str = "") -> None:
        """Somebody asks the service to take back these devices, or all devices of a claim."""
        self.claims = {uuid: it for uuid, it in self.claims.items() if uuid not in uuids and it != claim}

    def at_rest(self, uuid: str) -> None:
        """The device is clean, and everybody has left it."""
        self._no_bytes_but(uuid, None, "left clean")

    def started(self, tenant: str, uuid: str) -> None:
        """The service says that a container of this tenant may start."""
        if uuid in self.unproven or self.policy(uuid).mode is Mode.OBSERVE:
            return
        if tenant not in self.users_since_proof.get(uuid, set()):
            self._no_bytes_but(uuid, tenant, "started on")
        for process in self.node.gpus[uuid].users():
            if process.container != tenant and self._known_long(process.came):
                self.accuse(f"{tenant} was started on {uuid} beside {process.name}")

    def _granted(self, uuid: str, before: Record | None, grant: Grant) -> None:
        gpu = self.node.gpus[uuid]
        if (
            before is None
            or before.state not in (State.CLEAN, State.GRANTED)
            or before.health.ailment
            or before.health.quarantine
        ):
            self.accuse(f"{uuid} was granted from {before.state.value if before else 'nowhere'} (I1)")
        searched = self.node.kernel is not None or not grant.announced  # if not now, then before its start
        for process in gpu.processes.values():
            lingers = process.kind is Kind.WORKER and process.life != self.node.life
            unseen = self._came_during_the_look(process) or (process.secret and not searched)
            if not lingers and not unseen and self._known_long(process.came, 0.0):
                self.accuse(f"{uuid} was granted while {process.name} is on it")
        self._no_bytes_but(uuid, None, "granted", searched=searched)
        self.granted[uuid] = self.node.loop.time()

    def _believed_clean(self, uuid: str, before: Record | None, path: ScrubPath) -> None:
        gpu = self.node.gpus[uuid]
        self._no_bytes_but(uuid, None, "called clean")
        job = before.scrubs.job if before is not None else None
        if gpu.deeds != STEPS[path] or job is None or job.path is not path:
            self.accuse(f"{uuid} was called clean after {[step.value for step in gpu.deeds]} (I6)")
        if gpu.chip is not None and not self._excused(gpu.chip):
            self.accuse(f"leak: {uuid} was called clean with bytes of {gpu.chip.name} on its chip")
        if gpu.lost or gpu.cut or gpu.away or gpu.remap_failed or gpu.remap_pending or gpu.leaked:
            self.accuse(f"{uuid} was called clean although it is not well")
        if before and any(xid.code in FATAL and xid.number > before.health.baseline.last_xid for xid in gpu.xids):
            self.accuse(f"{uuid} was called clean in spite of a fatal xid")
        users = [it for it in gpu.users() if not self._came_during_the_look(it)]
        if any(self._known_long(process.came, 0.0) for process in users):
            self.accuse(f"{uuid} was called clean while it is used")
        used = self.node.keeps_uses and gpu.left > self.first_write.get(uuid, math.inf)
        if used and self.node.now().uptime - gpu.left > A_LOOK:
            self.accuse(f"{uuid} was called clean although it was used since its clear began")
        self.unproven.discard(uuid)
        self.users_since_proof.pop(uuid, None)

    # -- the same few looks

    def _no_bytes_but(self, uuid: str, tenant: str | None, what: str, *, searched: bool = True) -> None:
        writers = {it for it in self.node.gpus[uuid].blocks if it is not None and it.name != tenant}
        for writer in writers:
            if not self._excused(writer) and (searched or not writer.secret):
                self.accuse(f"leak: {uuid} was {what} with bytes of {writer.name} in its memory")

    def _excused(self, writer: Process) -> bool:
        if self.node.kernel is not None:  # it has counted, also while no service was up
            return self._came_with_the_proof(writer)
        if self._came_during_the_look(writer):
            return True
        unseen = writer.kind is Kind.FOREIGN_PROCESS and not writer.seen and not writer.alive
        return unseen and not writer.unwatched and not self.node.keeps_uses

    def _known_long(self, since: float, look: float = A_LOOK) -> bool:
        """Whether a look that is good enough had the time to show it."""
        hung = self.node.loop.time() - self.node.hung_at < A_SLOW_LOOK
        return self.node.loop.time() - since > look + (A_SLOW_LOOK if hung else 0.0) or (look == 0.0 and not hung)

    def _came_with_the_proof(self, process: Process) -> bool:
        """Whether it came in the moment of the last proof: on a real node some time passes between the two."""
        return process.kind is Kind.FOREIGN_PROCESS and self.proven.get(process.gpu) == process.started

    def _came_during_the_look(self, process: Process) -> bool:
        """Whether it came during the last search, and stays: only the fence counts who has not left."""
        return self.node.kernel is None and process.secret and process.came == self.node.loop.time()

    def _came_unlisted(self, gpu: Gpu, step: Step, process: Process) -> bool:
        """Whether it came after the search of this scrub, and has no context: it loses no memory, and no list has it.

        A reset takes a search of its own.
        """
        job = self.records[gpu.info.uuid].scrubs.job
        since_then = job is not None and process.started >= job.started.uptime
        return process.secret and since_then and step is not Step.RESET

    def _siblings(self, gpu: Gpu) -> list[Gpu]:
        domain = gpu.info.reset_domain
        return [it for it in self.node.gpus.values() if domain and it.info.reset_domain == domain and it is not gpu]

    def _reset_under(self, gpu: Gpu, sibling: Gpu) -> None:
        uuid = sibling.info.uuid
        state = self.records[uuid].state
        taken = state in (State.GRANTED, State.IN_USE) and self._known_long(self.granted.get(uuid, 0.0))
        if taken or any(self._known_long(process.came) for process in sibling.processes.values()):
            self.accuse(f"{gpu.info.uuid} was reset while its sibling {uuid} is in use")
