"""Scrub, quarantine and reinstate for people: what is allowed, and the job or row that follows.

Each operation holds the lock of its device from the observation until the decision is recorded. Its error is about one
device, and gives only the reason: the caller knows the operation and the device.
"""

from __future__ import annotations

from functools import partialmethod

from ground.errors import NotReady, Reason, Refused
from policies.policy_model import Policy
from scrubber.core import ailments, answers, next_action, next_scrub
from scrubber.core import events as ev
from scrubber.core.model import Ailment, AilmentKind, Facts, ScrubPath, State, Trigger, holder_names, most_thorough
from scrubber.core.record import Record
from scrubber.jobs.scrub_job import ScrubJob
from scrubber.service.context import ServiceContext

IN_RESET = "it is being reset", "try again"


class OperatorRequests:
    """What a person can ask for one device."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def scrub(self, device: str, path: ScrubPath | None, *, op: str = "") -> ScrubJob:
        """Start a scrub now, or join the running job. If ``path`` is None, the scrub takes the path that is due.

        A running job that is less thorough than ``path`` is cancelled: it would not do what the caller asked for.
        """
        context = self._context
        async with context.jobs.locks.of([device]):
            op = context.operation(op)
            await context.close_orphaned_job(device, op)
            record = context.record(device)
            device_policy = context.active_policy.device_policy(record.device)
            policy = device_policy.policy
            _require_allowed(record, policy, path)
            running = context.jobs.of(device)
            if running is not None and most_thorough(running.path, path) is running.path:
                return running
            if record.health.quarantine is not None:
                _require_allowed(record, policy, next_scrub.next_path(record, policy))
                ailment = record.health.quarantine.ailment
                remedy = f"`autoclave reinstate {record.device.name}` tests it and brings it back"
                raise Refused(Reason.QUARANTINED, f"it is quarantined ({ailment.kind.value}: {ailment.detail})", remedy)
            context.require_clearable(device)
            if running is not None:
                await self._end_job(device, op)
            record, facts = await context.observe(device, op)
            if record.state in (State.GRANTED, State.IN_USE):
                owner = record.tenancy.acquired_by or (record.tenancy.owner.name if record.tenancy.owner else "")
                by = f", open in {facts.who}" if facts.holders else ""
                remedy = f"let its owner{owner and f' {owner}'} end first"
                raise Refused(Reason.IN_USE, f"it is {record.state.words}{by}", remedy)
            _require_free(record, facts, policy)
            if record.health.ailment is not None:
                remedy = f"then `autoclave explain {record.device.name}` says what brings it back"
                raise Refused(Reason.SICK, "it is sick and about to be quarantined", remedy)
            due = next_scrub.next_path(record, policy)
            taken = most_thorough(due, path)  # a person cannot ask for less than is due
            _require_allowed(record, policy, taken)
            return await context.jobs.start(device, taken, Trigger.REQUEST, device_policy, op)

    async def quarantine(self, device: str, reason: str, by: str, *, op: str = "") -> None:
        """Quarantine a device. A device in use is reported sick now and quarantined when it is released."""
        context = self._context
        async with context.jobs.locks.of([device]):
            op = context.operation(op)
            record = context.record(device)
            ailment = Ailment(AilmentKind.OPERATOR, reason, sticky=True)
            event: ev.Event = ev.AilmentFound(next_action.operator_ailment(record, f"{reason} (asked by {by})"))
            if record.state not in (State.GRANTED, State.IN_USE):
                vitals = await context.observer.health.vitals(device)
                policy = context.device_policy(device).policy
                event = next_action.quarantine(record, ailment, by, vitals, policy, context.now(), context.chance())
            await context.ledger.append(op, (device, event))
            await context.jobs.cancel(device)

    async def reinstate(
        self, device: str, reason: str, by: str, *, op: str = "", without_proof: bool = False
    ) -> ScrubJob | None:
        """Start at least the slow path on a quarantined device. The quarantine ends when the job passes.

        ``without_proof``: the quarantine ends now, and the device is scrubbed as after any pod.

        A quarantine that waits for the end of a use is withdrawn instead, and there is no job. If the device is sick
        too, nothing can be withdrawn.
        """
        context = self._context
        async with context.jobs.locks.of([device]):
            op = context.operation(op)
            await context.close_orphaned_job(device, op)
            running = context.jobs.of(device)
            record = context.record(device)
            who = f"{by}: {reason}" if reason else by
            if record.health.ailment is not None and record.health.ailment.kind is AilmentKind.OPERATOR:
                await context.ledger.append(op, (device, ev.QuarantineWithdrawn(who)))
                return None
            asked_before = record.scrubs.job is not None and record.scrubs.job.trigger is Trigger.REINSTATE
            if running is not None and asked_before and not without_proof:
                return running
            # A person decides now, so a probation ends.
            if record.health.quarantine is not None:
                await self._end_job(device, op)
            if context.record(device).state is not State.QUARANTINED:
                why, remedy = (
                    "it is not quarantined",
                    f"`autoclave scrub {record.device.name}` tests it with --path slow",
                )
                if record.health.ailment is not None:
                    why += f" yet: it is sick ({record.health.ailment.kind.value}), which cannot be withdrawn"
                    remedy = "try again after its release: then it is quarantined"
                raise Refused(Reason.NOT_QUARANTINED, why, remedy)
            context.require_clearable(device)
            device_policy = context.active_policy.device_policy(record.device)
            _require_free(*await context.observe(device, op), device_policy.policy)
            # The errors that the device reported before the person decided are noted: only newer ones count.
            vitals = await context.observer.health.vitals(device)
            earlier = next_action.earlier_errors(context.record(device).health.baseline, vitals, device_policy.policy)
            if earlier is not None:
                await context.ledger.append(op, (device, earlier))
            if without_proof:
                await context.ledger.append(op, (device, ev.Reinstated(who)))
            path = next_scrub.next_path(context.record(device), device_policy.policy)
            if without_proof:
                return await context.jobs.start(device, path, Trigger.REINSTATE, device_policy, op)
            path = most_thorough(ScrubPath.SLOW, path)
            _require_allowed(record, device_policy.policy, path)
            return await context.jobs.start(device, path, Trigger.REINSTATE, device_policy, op, who)

    reinstate_without_proof = partialmethod(reinstate, without_proof=True)

    async def _end_job(self, device: str, op: str) -> None:
        """Cancel the job of the device. It may have ended, or end now, while the ledger cannot be written."""
        if not await self._context.jobs.cancel_unless_resetting(device):
            raise NotReady(Reason.SCRUBBING, *IN_RESET)
        await self._context.close_orphaned_job(device, op)


def _require_free(record: Record, facts: Facts, policy: Policy) -> None:
    """Refuse a job that would fail at once: holders are unknown, or a scrub must not end one of them."""
    if facts.holders is None:
        raise NotReady(Reason.NOT_PROVEN_FREE, answers.why_unknown_for_operators(facts), answers.TRY_AGAIN)
    stuck = [holder for holder in facts.holders if not next_scrub.terminable(holder, record, policy)]
    if stuck:
        raise Refused(
            Reason.IN_USE, f"it is used by {holder_names(tuple(stuck), facts.pods)}", "end these processes first"
        )


def _require_allowed(record: Record, policy: Policy, path: ScrubPath | None) -> None:
    """Refuse a path with a reset that the policy forbids, and say what a person can do instead."""
    if not next_scrub.forbids(policy, path):
        return
    if next_scrub.reset_forbidden(record, policy):
        raise Refused(Reason.SICK, next_scrub.RESET_FORBIDDEN, ailments.RESET_BY_PERSON.format(gpu=record.device.name))
    raise Refused(Reason.INVALID_REQUEST, "the policy forbids resets (reset.when: never)", "choose the path slow")
