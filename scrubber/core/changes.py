"""What each event changes in the record of its device, and what it must fit: one arm for each event.

Beside the state, which ``states`` has, the record has small machines of its own:

* ``tenancy.owner``: ``owners`` has its table. A grant, a release, a distrusted record and the start of a scrub end the
  ownership. An unannounced owner is a pod that was seen on the device without an admitted start. A start, or the
  kubelet's checkpoint, makes it the owner; ``ownership`` says when it has left.
* ``tenancy.allocations``: grows with each announced grant, and starts again at zero when a tenant with an admitted
  start has ended. If the kubelet's checkpoint names fewer containers, another pod's container may still start: see
  ``ownership.contested``. An older ledger lacks allocations, so a device in it counts as handed out many times.
* ``scrubs.due_path``: a path stays due from the start of a scrub on it until a scrub passes that is as thorough. If the
  device was proven before, the start of its first look does not change the due path: such a test may end for a request.
  After an ailment, the path of ``ailments.path_after`` is due. After a grave error from before the first observation,
  the path ``reset`` is due. A reboot of the node counts as the reset of the path ``reset``.
* ``scrubs.setback``: how often a scrub has failed. It sets the next pause.
* ``scrubs.stuck``: who did not end, and since when (``core.stuck``). Only an evict that has passed says that nobody is
  stuck.
* ``scrubs.undecided``, ``scrubs.node_or_device``: failures whose cause is not decided yet. They count no matter what
  ended their job. A proof clears these two, ``setback`` and ``stuck``. A person's decision also clears them, and so
  does another boot or driver instance, because no process survives either.
* ``health.ailment``: set while the device is granted or in use. After the release, ``next_action`` turns it into a
  quarantine; until then the device is not offered, and no scrub may start on it. ``QuarantineWithdrawn`` ends only an
  ailment that an operator has named.
* ``health.quarantine.probes``: how often a probation has failed. It sets the next pause.
"""

from __future__ import annotations

from dataclasses import replace

from scrub_api.measurements import ZEROS
from scrubber.core import ailments, owners, pauses, stuck
from scrubber.core import events as ev
from scrubber.core.ailment_traits import AILMENTS
from scrubber.core.model import (
    AilmentKind,
    Baseline,
    Blame,
    Grant,
    Job,
    Moment,
    Owner,
    Receipt,
    ScrubPath,
    Setback,
    State,
    Step,
    Trigger,
    most_thorough,
)
from scrubber.core.record import Health, Record, Scrubs, Tenancy

MANY_ALLOCATIONS = 1000  # more than containers of a checkpoint: how many an older ledger lacks is not known
DURATIONS = 5  # of fast scrubs: they show how long one usually takes
RETURNS = 10  # from quarantine that are remembered


def first(event: ev.Discovered, at: Moment) -> Record:
    """The record of a device that was just discovered."""
    return Record(event.device, event.incarnation, State.UNKNOWN, at, Tenancy(_first_number(at)))


def after(record: Record, event: ev.Event, at: Moment) -> Record:  # noqa: PLR0915 - a table with a row for each event
    """The record after an event, with its state unchanged.

    Raises IllegalEventError if the event does not fit the record. There is no default arm, so mypy finds an event
    without an arm.
    """
    tenancy, scrubs, health = record.tenancy, record.scrubs, record.health
    match event:
        case ev.Described(device):
            _demand(device.uuid == record.device.uuid, "the event describes another device")
            return replace(record, device=device)
        case ev.Distrusted():
            return _distrusted(record, event, at)
        case ev.Granted(grant):
            _demand(scrubs.receipt is not None and grant.receipt == scrubs.receipt.id, "the grant has another receipt")
            _demand(health.ailment is None, "the device has an ailment")
            given = _granted(tenancy, grant, at)
            receipt = scrubs.receipt
            if receipt is not None and given.number != tenancy.number:
                receipt = replace(receipt, envelope="")  # it names the hand-over that has ended
            return replace(record, tenancy=given, scrubs=replace(scrubs, receipt=receipt, half_cleared=False, soiled=0))
        case ev.GrantedUnproven(grant):
            used = replace(scrubs, receipt=None, half_cleared=False, soiled=0)
            return replace(record, tenancy=_granted(tenancy, grant, at), scrubs=used)
        case ev.LetIn(pods):
            _demand(tenancy.acquired_by != "", "nobody has acquired the device")
            return replace(record, tenancy=replace(tenancy, claim_pods=pods))
        case ev.Deferred():
            return replace(record, tenancy=replace(tenancy, deferred=at))
        case ev.PutInUse(owner):
            leads = owners.legal(tenancy.owner, owner)
            _demand(leads, "nothing that can be found out leads from its owner to this one")
            used = replace(scrubs, receipt=None, half_cleared=False, soiled=0)
            return replace(record, tenancy=_put_in_use(tenancy, owner), scrubs=used)
        case ev.Released() if tenancy.kept_for:
            given_back = replace(tenancy, number=tenancy.number + 1, kept_for="", held_from=None, claim_pods=None)
            return replace(record, tenancy=given_back)
        case ev.Released(restart=restart):
            _demand(tenancy.grant is not None or tenancy.owner is not None, "nobody has the device")
            released = _released(tenancy, at, restart=restart)
            return replace(record, tenancy=released, scrubs=replace(scrubs, receipt=None))
        case ev.Soiled(times=times):
            soiled = replace(scrubs, receipt=None, soiled=times)
            return replace(record, tenancy=replace(tenancy, began=None, ended=None), scrubs=soiled)
        case ev.OpenAttempted() | ev.FenceMissed():
            return record
        case ev.ScrubStarted(job):
            _demand(health.ailment is None, "the device has an ailment")
            return replace(record, tenancy=replace(tenancy, grant=None, owner=None), scrubs=_started(scrubs, job))
        case ev.ProbationStarted(job):
            if health.quarantine is not None:
                quarantine = replace(health.quarantine, probes=health.quarantine.probes + 1)
                health = replace(health, quarantine=quarantine)
            free = replace(tenancy, grant=None, owner=None)
            return replace(record, tenancy=free, scrubs=_started(scrubs, job), health=health)
        case ev.StepsRecorded(results=results, begins=begins):
            job, here = _job_of(scrubs, event), scrubs.stuck
            for evict in (result for result in results if result.step is Step.EVICT):
                here = stuck.after_answer(here, stuck.left_by(evict), at)
            job = replace(job, begun=begins, results=(*job.results, *results))
            return replace(record, scrubs=replace(scrubs, job=job, stuck=here))
        case ev.Escalated(path=path):
            job = replace(_job_of(scrubs, event), path=path)
            longer = replace(scrubs, job=job, due_path=path, half_cleared=_half_cleared(scrubs))
            return replace(record, scrubs=longer)
        case ev.ScrubPassed(receipt=receipt):
            job = _job_of(scrubs, event)
            _demand_proof(record, receipt)
            return replace(
                record,
                tenancy=replace(tenancy, began=None, ended=None),
                scrubs=_passed(scrubs, job, receipt, at),
                health=replace(health, baseline=receipt.baseline, quarantine=None, returns=_returns(health, job, at)),
            )
        case ev.TenancyClosed(ended=closed):
            # An older version closed a tenancy that waited for its next container later, at another wipe.
            earlier = closed.number < tenancy.number
            _demand(earlier or closed == record.fence.ended, "no such tenancy has ended and is not closed")
            return record
        case ev.ScrubFailed(why=why):
            job = _job_of(scrubs, event)
            _demand(health.quarantine is None, "the job of a quarantined device ends clean or in quarantine")
            setback, due = Setback(why, at, scrubs.failures + 1), most_thorough(scrubs.due_path, job.path)
            return replace(record, scrubs=replace(_without_job(scrubs, at), setback=setback, due_path=due))
        case ev.ScrubInterrupted():
            _job_of(scrubs, event)
            _demand(health.quarantine is None, "the job of a quarantined device ends clean or in quarantine")
            return replace(record, scrubs=_without_job(scrubs, at))
        case ev.AilmentFound(ailment):
            due = most_thorough(scrubs.due_path, ailments.path_after(ailment))
            return replace(record, scrubs=replace(scrubs, due_path=due), health=replace(health, ailment=ailment))
        case ev.Quarantined(quarantine):
            due = most_thorough(scrubs.due_path, ailments.path_after(quarantine.ailment))
            ended = replace(_without_job(scrubs, at), receipt=None, due_path=due)
            sick = replace(health, ailment=None, quarantine=quarantine, baseline=quarantine.baseline)
            return replace(record, scrubs=ended, health=sick)
        case ev.ErrorsNoted(last=last, grave=grave):
            noted = replace(health, baseline=replace(health.baseline, last_xid=last), errors_noted=at.uptime)
            return replace(record, scrubs=replace(scrubs, due_path=ScrubPath.RESET) if grave else scrubs, health=noted)
        case ev.Reinstated():
            back = replace(health, quarantine=None, returns=())
            return replace(record, scrubs=replace(_forgiven(scrubs), due_path=None), health=back)
        case ev.QuarantineWithdrawn():
            asked = health.ailment is not None and health.ailment.kind is AilmentKind.OPERATOR
            _demand(asked, "no operator has asked for its quarantine")
            # The ailment has made the fast path due.
            left = None if scrubs.due_path is ScrubPath.FAST else scrubs.due_path
            return replace(record, scrubs=replace(scrubs, due_path=left), health=replace(health, ailment=None))
        case (
            ev.Discovered() | ev.ServiceStarted() | ev.ServiceStopped() | ev.StoodStill() | ev.WritesFailed()
            | ev.ClockMoved() | ev.PolicyInForce()
        ):  # fmt: skip
            raise ev.IllegalEventError(f"cannot happen: {type(event).__name__} changes no record")


def _demand(holds: bool, why_not: str) -> None:  # noqa: FBT001 - each call reads as a sentence
    """Raise IllegalEventError unless this is true."""
    if not holds:
        raise ev.IllegalEventError(f"cannot happen: {why_not}")


# -- who has the device


def _first_number(at: Moment) -> int:
    """The number of the first tenancy. It is higher than each number in a ledger that was lost."""
    return int(at.wall * 1000)


def first_tenancy(event: ev.Event, at: Moment) -> int | None:
    """The number from which the device counts its tenancies from this event on; None if it counts on."""
    begins = isinstance(event, ev.Discovered) or (isinstance(event, ev.Distrusted) and event.older_ledger)
    return _first_number(at) if begins else None


def _granted(tenancy: Tenancy, grant: Grant, at: Moment) -> Tenancy:
    owned = tenancy.owner is not None
    # Another pod gets the device that waits for a restart. Of a grant at a start, only the start tells.
    follows = tenancy.awaits != "" and not grant.at_start
    left = follows or (owned and tenancy.start_admitted) or tenancy.kept_for not in ("", grant.owner)
    return replace(
        tenancy,
        number=tenancy.number + left,
        grant=grant,
        owner=None,
        deferred=tenancy.deferred if grant.at_start else None,
        # If no start was admitted so far, the tenancy begins anew: processes from before this grant are foreign.
        began=tenancy.began if tenancy.span is not None else at.uptime,
        ended=_ended(tenancy, at) if owned else tenancy.ended,
        allocations=tenancy.allocations + (grant.announced and not grant.at_start),
        last_owner=tenancy.awaits if follows else tenancy.last_owner,
        kept_for="",
        awaits=tenancy.awaits if grant.at_start else "",
        held_from=tenancy.held_from if grant.at_start else None,
        claim_pods=tenancy.claim_pods if tenancy.kept_for != "" and tenancy.kept_for == grant.owner else None,
    )


def _put_in_use(tenancy: Tenancy, owner: Owner) -> Tenancy:
    left = _replaced(tenancy, owner)
    return replace(
        tenancy,
        number=tenancy.number + left,
        owner=owner,
        began=owner.since.uptime if tenancy.began is None else tenancy.began,
        awaits=tenancy.awaits if owner.unannounced else "",
        last_owner=(left and tenancy.awaits) or tenancy.last_owner,
    )


def _replaced(tenancy: Tenancy, owner: Owner) -> bool:
    """Whether the tenancy of an admitted pod ends with this owner, because another pod starts.

    Policy ``observe`` allows it. The other policies allow it if the pod was deleted while its device was scrubbed for a
    restart.
    """
    if tenancy.awaits:
        return not owner.unannounced and owner.container != tenancy.awaits
    before = tenancy.owner
    if before is None or before.container is None or before.unannounced or tenancy.until_release:
        return False
    return owner.container != before.container


def _released(tenancy: Tenancy, at: Moment, *, restart: bool) -> Tenancy:
    owner, admitted = tenancy.owner, tenancy.start_admitted
    left = admitted and not restart
    awaits = "" if tenancy.until_release else tenancy.container or ""
    return replace(
        tenancy,
        number=tenancy.number + left,
        grant=None,
        owner=None,
        ended=_ended(tenancy, at),
        allocations=tenancy.allocations if restart else _unused_allocations(tenancy),
        last_owner=owner.container if left and owner is not None else tenancy.last_owner,
        left_by=_left_by(tenancy),
        kept_for=tenancy.acquired_by if restart and tenancy.until_release else "",
        awaits=awaits if restart else tenancy.awaits,
        held_from=None if left else tenancy.held_from,
        claim_pods=tenancy.claim_pods if restart and tenancy.until_release else None,
    )


def _ended(tenancy: Tenancy, at: Moment) -> float | None:
    """When the last admitted tenant ended. A process that starts later is not its leftover."""
    return at.uptime if tenancy.start_admitted else tenancy.ended


def _unused_allocations(tenancy: Tenancy) -> int:
    """What still counts after a release: nothing if a tenant with an admitted start has ended."""
    return 0 if tenancy.start_admitted else tenancy.allocations


def _left_by(tenancy: Tenancy) -> str:
    """For whom the device was acquired, at the end of the tenancy. Without a grant, no tenancy ends."""
    return tenancy.grant.owner if tenancy.grant is not None else tenancy.left_by


# -- its scrubs


def _job_of(
    scrubs: Scrubs, event: ev.StepsRecorded | ev.Escalated | ev.ScrubPassed | ev.ScrubFailed | ev.ScrubInterrupted
) -> Job:  # fmt: skip
    """The running job, which must be the job that the event is about."""
    if scrubs.job is None or event.job != scrubs.job.id:
        raise ev.IllegalEventError("cannot happen: the event is about another job")
    return scrubs.job


def _started(scrubs: Scrubs, job: Job) -> Scrubs:
    """With this job. Unless the job may end for a request, its path stays due until a scrub passes."""
    known = job.trigger is Trigger.FIRST_LOOK and scrubs.tested is not None and job.path is not ScrubPath.RESET
    due = scrubs.due_path if known else most_thorough(scrubs.due_path, job.path)
    return replace(scrubs, job=job, receipt=None, due_path=due)


def _without_job(scrubs: Scrubs, at: Moment) -> Scrubs:
    """The record after a job has ended without a proof, for any reason."""
    blamed = {result.blame for result in scrubs.job.results} if scrubs.job is not None else set()
    return replace(
        scrubs,
        job=None,
        half_cleared=_half_cleared(scrubs),
        undecided=scrubs.undecided or Blame.UNDECIDED in blamed,
        node_or_device=scrubs.node_or_device or (at if Blame.NODE_OR_DEVICE in blamed else None),
    )


def _half_cleared(scrubs: Scrubs) -> bool:
    """Whether a clear has begun since the last tenancy, and nothing proves that it ended."""
    job = scrubs.job
    begun = () if job is None else (job.begun, *(result.step for result in job.results))
    return scrubs.half_cleared or Step.CLEAR in begun


def _demand_proof(record: Record, receipt: Receipt) -> None:
    """Reject a receipt that does not prove what it must."""
    _demand(receipt.device == record.device.uuid, "the receipt is for another device")
    _demand(receipt.incarnation == record.incarnation, "the receipt is of another boot or driver")
    _demand(receipt.previous == record.scrubs.last_receipt, "the receipt does not follow the one before")
    was_reset = any(step is Step.RESET for step, _ in receipt.steps)
    met = was_reset or record.scrubs.due_path is not ScrubPath.RESET
    _demand(met, "the device needs a reset, and the receipt names none")


def _passed(scrubs: Scrubs, job: Job, receipt: Receipt, at: Moment) -> Scrubs:
    """The device is clean: the receipt is valid from now on."""
    fast, took = receipt.path is ScrubPath.FAST, scrubs.fast_seconds
    if fast:
        took = (*took[1 - DURATIONS :], at.uptime - job.started.uptime)
    met = most_thorough(scrubs.due_path, receipt.path) is receipt.path
    return replace(
        _forgiven(scrubs),
        job=None,
        receipt=receipt,
        last_receipt=receipt.digest,
        proven_at=receipt.finished.uptime,
        half_cleared=False,
        pattern_left=receipt.leaves != ZEROS,
        due_path=None if met else scrubs.due_path,
        fast_seconds=took,
        tested=at.wall if not fast or scrubs.tested is None else scrubs.tested,
    )


def _forgiven(scrubs: Scrubs) -> Scrubs:
    """Without a memory of what has failed."""
    return replace(scrubs, setback=None, stuck=None, undecided=False, node_or_device=None)


def _returns(health: Health, job: Job, at: Moment) -> tuple[float, ...]:
    """The returns after a scrub has passed. A reinstatement clears them: maintenance does not count as flapping."""
    if health.quarantine is None:
        return health.returns
    if job.trigger is not Trigger.PROBATION:
        return ()
    if AILMENTS[health.quarantine.ailment.kind].blameless:
        return health.returns
    return (*health.returns[1 - RETURNS :], at.wall)


# -- another boot or driver, or an older ledger


def _distrusted(record: Record, event: ev.Distrusted, at: Moment) -> Record:
    """What was known about its memory is no longer true. A reboot restarts the numbers and counts of errors."""
    rebooted = event.incarnation.boot_id != record.incarnation.boot_id
    baseline = Baseline() if rebooted else record.health.baseline
    quarantine = record.health.quarantine
    if quarantine is not None:  # it stays, and its next probation is timed anew
        again = None if quarantine.next_probe is None else at.uptime + pauses.after_interruption(quarantine)
        quarantine = replace(quarantine, next_probe=again, baseline=baseline)
    due = record.scrubs.due_path
    if rebooted and due is ScrubPath.RESET:
        due = ScrubPath.SLOW  # the reboot has reset the device
    same = event.incarnation == record.incarnation  # else all processes have ended, and times may be of another boot
    return replace(
        record,
        incarnation=event.incarnation,
        since=at if record.state is State.UNKNOWN else record.since,  # that may be of another boot
        tenancy=_forgotten(record.tenancy, at, older_ledger=event.older_ledger),
        scrubs=replace(
            record.scrubs if same else _forgiven(record.scrubs),
            receipt=None,
            proven_at=0.0 if rebooted else record.scrubs.proven_at,
            # As after a first observation.
            due_path=most_thorough(ScrubPath.SLOW, due) if quarantine is not None else due,
        ),
        health=replace(record.health, baseline=baseline, quarantine=quarantine, errors_noted=None),
    )


def _forgotten(tenancy: Tenancy, at: Moment, *, older_ledger: bool) -> Tenancy:
    # The containers of the tenancy that ends may start again, with the mount that the runtime knows.
    may_return = tenancy.start_admitted or tenancy.awaits != ""
    held_from = tenancy.number if may_return and tenancy.held_from is None else tenancy.held_from
    left = may_return or tenancy.kept_for != ""
    return replace(
        tenancy,
        number=_first_number(at) if older_ledger else tenancy.number + left,
        grant=None,
        owner=None,
        deferred=None,
        began=None,
        ended=None,
        allocations=_unused_allocations(tenancy) + (MANY_ALLOCATIONS if older_ledger else 0),
        left_by=_left_by(tenancy),
        kept_for="",
        awaits="",
        held_from=None if older_ledger else held_from,
        claim_pods=None,
    )
