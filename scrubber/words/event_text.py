"""Each event as a plain sentence for operators: its steps, findings, receipt, owner, quarantine, holders."""

from __future__ import annotations

from ground import calendar_time, process_names
from ground.documents.units import format_size
from ground.quantities import quantity
from policies.values import FenceMode
from scrub_api import views
from scrub_api.measurements import PATTERN_LEFT, UNSEARCHED, ZEROS, Uncovered
from scrubber.core import events as ev
from scrubber.core.guarded import Guarded
from scrubber.core.measured import Cleared, Mismatch, Restored, Scratched, Tested, Verified
from scrubber.core.model import (
    NOWHERE,
    OTHER_CONTAINERS,
    OTHER_PROGRAMS,
    OTHERS,
    Evicted,
    Grant,
    HealthRead,
    InTheWay,
    Job,
    Moment,
    Opener,
    Outcome,
    Owner,
    Quarantine,
    Receipt,
    Step,
    StepResult,
    Trigger,
    holder_names,
    place_words,
)

_TRIGGERS = {  # those whose stored name says too little
    Trigger.FIRST_LOOK: "nothing was known of its memory",
    Trigger.FOREIGN_USE: "it was used without a grant",
    Trigger.PROOF_EXPIRED: "its proof is no longer valid",
}
_OTHERS = {
    OTHER_CONTAINERS: ("other container", "other containers"),
    OTHER_PROGRAMS: ("other program of the node", "other programs of the node"),
}


def tell(event: ev.Event) -> str:
    """The event as a sentence."""
    match event:
        case ev.Discovered(device):
            return f"found {device.model} at index {device.name}; nothing is known about its memory"
        case ev.Described(device):
            return f"now seen as {device.model} at index {device.name}"
        case ev.Distrusted(why):
            return f"what was known about its memory no longer holds: {why}"
        case ev.Granted(grant):
            return f"handed out{_to(grant)} (grant {grant.id}, receipt {grant.receipt}){_announced(grant)}"
        case ev.GrantedUnproven(grant, why):
            return f"handed out{_to(grant)} WITHOUT PROOF (grant {grant.id}) under policy observe: {why}"
        case ev.LetIn(pods):
            return f"its claim is reserved for {quantity(len(pods), 'pod')}{_listed(pods)}"
        case ev.Deferred():
            return "given to a pod whose containers wait until it is proven clean"
        case ev.PutInUse(Owner(crowded=True, unannounced=True) as owner):  # perhaps nobody was given it
            return f"in use by {_user(owner)}, which is unannounced, and also by another pod's container"
        case ev.PutInUse(Owner(crowded=True) as owner):
            return f"in use by {_user(owner)}, and also by another pod's container"
        case ev.PutInUse(Owner(container=str(container), unannounced=True) as owner):
            return f"in use by {_user(owner) if owner.pod else container}, which is unannounced"
        case ev.PutInUse(owner):
            return f"in use by {_user(owner)}"
        case ev.Released(why):
            return f"released: {why}"
        case ev.Soiled(why, holders, times):
            user = f" by {holder_names(holders)}" if holders else ""
            again = _again(times, "no longer clean", "since its last tenancy, or since it was found")
            return f"no longer clean: {why}{user}{again}"
        case ev.OpenAttempted():
            return _attempts(event)
        case ev.FenceMissed(why):
            return f"the fence may have missed somebody: {why}"
        case ev.ScrubStarted(job):
            return f"{_job(job)} started"
        case ev.ProbationStarted(job, by):
            return f"probation: {_job(job)} started by {by}"
        case ev.StepsRecorded(_, results, begins):
            begun = [f"{views.step_words(begins.value)} begins"] if begins is not None else []
            return "; ".join([*map(_step, results), *begun])
        case ev.Escalated(_, why, path):
            return f"escalated to the {path.value} path: {why}"
        case ev.ScrubPassed(_, receipt):
            return _receipt(receipt)
        case ev.TenancyClosed():
            return _closed(event)
        case ev.ScrubFailed(why=why, times=times):
            again = _again(times, "not clean after a scrub", "since its last proof, its reinstatement or the boot")
            return f"not clean: {why}{again}"
        case ev.ScrubInterrupted(_, why):
            return f"scrub cancelled, nothing was proven: {why}"
        case ev.ErrorsNoted(codes, grave=grave):
            before = " that no scrub has judged, so a reset is due" if grave else ""
            return f"the driver reported {_xids(codes)}{before}"
        case ev.Reinstated(by):
            return f"reinstated WITHOUT EVIDENCE by {by}; it is scrubbed as after a tenant"
        case ev.QuarantineWithdrawn(by):
            return f"the quarantine that waited for the end of its use was withdrawn by {by}"
        case ev.AilmentFound(ailment):
            return f"sick while in use ({ailment.kind.value}): {ailment.detail}; left alone until it is released"
        case ev.Quarantined(quarantine):
            return _quarantine(quarantine)
        case ev.ServiceStarted(version, cut_off):
            before = "; its last run was interrupted, so it may not have run since the previous row" if cut_off else ""
            return f"the service started (version {version}){before}"
        case ev.ServiceStopped():
            return "the service was stopped"
        case ev.StoodStill(since, seconds, times, suspended):
            often = f" {times} times since {_time(since)}, together" if times > 1 else ""
            asleep = f"; the machine was suspended for {suspended:.0f} s of that time" if suspended else ""
            return (
                f"the service stood still{often} for {seconds:.0f} s, and answered no request during that time{asleep}"
            )
        case ev.WritesFailed(since, until, why):
            span = f"for {until.uptime - since.uptime:.0f} s, from {_time(since)} to {_time(until)}"
            return f"the ledger could not be written {span}: {why}"
        case ev.ClockMoved(seconds):
            return f"the clock was set {'forward' if seconds > 0 else 'back'} by {abs(seconds):.0f} s"
        case ev.PolicyInForce(name, digest):
            return f"policy {name} (digest {digest}) is in force from here on"


def _time(moment: Moment) -> str:
    return time_of(moment.wall)


def time_of(wall: float) -> str:
    """A wall time as these sentences have it."""
    return f"{calendar_time.utc(wall):%Y-%m-%d %H:%M:%S} UTC"


def _again(times: int, what: str, since: str) -> str:
    return f" ({what} {times} times {since})" if times > 1 else ""


def _listed(pods: tuple[str, ...]) -> str:
    return f": {', '.join(pods)}" if pods else ""


def _user(owner: Owner) -> str:
    if owner.called:
        return f"{owner.called} (pod {owner.container})"
    return owner.container or "a process without a known container"


def _attempts(event: ev.OpenAttempted) -> str:
    opener, who = event.opener, _opener(event.opener)
    meanwhile = "while somebody else had it" if event.held else "while nobody had it"
    asked = f"asked the kernel at least {_often(opener.times)}"
    if opener.times == opener.refused:
        return f"refused: {who} {asked} {meanwhile}, and each of these was refused, {_when(opener)}"
    how = " which the policy exempted" if opener.exempt else f" {meanwhile}"
    in_part = 0 < opener.refused < opener.times
    several = opener.command != "1" if opener.place in OTHERS else opener.place in NOWHERE and in_part
    they, were = ("they", "were") if several else ("it", "was")
    refused = f", and {were} refused {_often(opener.refused)}" if opener.refused else ""
    return f"opened by {who}{how}; {they} {asked}{refused}, {_when(opener)}"


def _when(opener: Opener) -> str:
    first, last = time_of(opener.first), time_of(opener.last)
    return f"at {last}" if first == last else f"from {first} to {last}"


def _often(times: int) -> str:
    return quantity(times, "time")


def _opener(opener: Opener) -> str:
    if opener.place in OTHERS:
        number = int(opener.command)
        one, several = _OTHERS[opener.place]
        whose = "its" if number == 1 else "their"
        return f"at least {quantity(number, one, several)} without a row of {whose} own{',' if opener.exempt else ''}"
    in_part = 0 < opener.refused < opener.times  # nobody knows which of these attempts the last process made
    if opener.place in NOWHERE and in_part:
        return f"processes called {process_names.quoted(opener.command)} ({opener.place}){',' if opener.exempt else ''}"
    if opener.place in NOWHERE:
        return process_names.describe(opener.command, opener.pid, opener.place)
    place = place_words(opener.place, opener.pod)
    if in_part:
        return f"{place}{',' if opener.exempt else ''}"
    return f"{place}, last by {process_names.describe(opener.command, opener.pid)},"


def _to(grant: Grant) -> str:
    return f" to {grant.owner}" if grant.owner else ""


def _announced(grant: Grant) -> str:
    if grant.until_release:
        return ", until it is released"
    return "" if grant.announced else ", its start will not be announced"


def _xids(codes: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"xid {code}" + (f" {count} times" if count > 1 else "") for code, count in codes)


def _job(job: Job) -> str:
    why = _TRIGGERS.get(job.trigger, job.trigger.value)
    return f"scrub {job.id} on the {job.path.value} path ({why})"


def _step(result: StepResult) -> str:
    notes = [note for note in _notes(result) if note]
    noted = f" ({'; '.join(notes)})" if notes else ""
    mark = "" if result.outcome is Outcome.PASSED else " - not clean"
    return f"{views.step_words(result.step.value)} {result.outcome.value} in {result.seconds:.3f} s{noted}{mark}"


def _notes(result: StepResult) -> tuple[str, ...]:
    """What a step found that operators must know, and its own words. Empty texts say nothing."""
    match result.findings:
        case Evicted(holders, terminated):
            found = f"found {holder_names(holders)}" if holders else ""
            ended = f"ended pid {', '.join(map(str, terminated))}" if terminated else ""
            return result.detail, found, ended
        case Cleared(mismatch=wrong, uncovered=uncovered, drift=drift) as clear:
            left_out = f"not covered: {_parts(uncovered)}" if uncovered else ""
            return result.detail, _residue(clear), left_out, _wrong(wrong), _restored(drift)
        case Verified(mismatch=wrong):
            return result.detail, _wrong(wrong)
        case Scratched(units, reached):
            return result.detail, f"{reached} of {quantity(units, 'unit')}"
        case Tested(tests, mismatch=wrong):
            return f"ran {', '.join(tests)}" if tests else "", result.detail, _wrong(wrong)
        case Restored(drift):
            return result.detail, _restored(drift)
        case HealthRead() | InTheWay() | None:  # the detail names who is in the way
            return (result.detail,)


def _residue(clear: Cleared) -> str:
    if not clear.residue_bytes:
        return ""
    first = f", the first at {clear.residue_at[0]:#x}" if clear.residue_at else ""
    return f"{quantity(clear.residue_bytes, 'byte was', 'bytes were')} not zero before{first}"


def _wrong(at: Mismatch | None) -> str:
    if at is None:
        return ""
    wrong = f"at byte {at.offset} {at.got:#04x} was read where {at.expected:#04x} was written"
    return f"{wrong}, {quantity(at.count, 'byte')} wrong in all"


def _restored(drift: tuple[str, ...]) -> str:
    return f"restored {', '.join(drift)}" if drift else ""


def _parts(uncovered: tuple[Uncovered, ...]) -> str:
    return ", ".join(f"{format_size(part.bytes)} {part.cause}" for part in uncovered)


def _receipt(receipt: Receipt) -> str:
    share = receipt.covered_bytes / receipt.allocatable_bytes
    written = f" ({', '.join(receipt.patterns)})" if receipt.patterns else ""
    searched = f" in the {receipt.searched_bytes} that were searched" if receipt.searched_bytes is not None else ""
    residue = f"{quantity(receipt.residue_bytes, 'byte')} of residue found{searched}"
    residue = UNSEARCHED if receipt.searched_bytes == 0 else residue
    proven = (
        f"proven clean (receipt {receipt.id}): {receipt.covered_bytes} of {receipt.allocatable_bytes} bytes"
        f" ({share:.2%}) overwritten{written} and read back,"
        f" {residue},"
        f" {_ended(receipt)}"
    )
    notes = [proven, *([f"signed by {receipt.signed_by}"] if receipt.envelope else [])]
    notes += [PATTERN_LEFT] if receipt.leaves != ZEROS else []
    notes += [*([f"the last owner was {receipt.last_owner}"] if receipt.last_owner else [])]
    notes += [*(["the device was reset"] if any(step is Step.RESET for step, _ in receipt.steps) else [])]
    if receipt.uncovered:
        notes.append(f"not covered: {_parts(receipt.uncovered)}")
    if receipt.units is not None:
        units = f"{receipt.units_reached} of {quantity(receipt.units, 'unit')}"
        notes.append(f"shared memory and registers overwritten on {units}")
    if receipt.shared_unreached_bytes:
        notes.append(f"{format_size(receipt.shared_unreached_bytes)} of shared memory out of reach")
    if receipt.units_left:
        notes.append(f"not overwritten on the chip: {', '.join(receipt.units_left)}")
    if receipt.tests:
        notes.append(f"tested: {', '.join(receipt.tests)}")
    if receipt.witness:
        notes.append(f"use counter: {receipt.witness}")
    return "; ".join(notes)


def _closed(closed: ev.TenancyClosed) -> str:
    ended = closed.ended
    whose = ended.pod or ended.container or ended.acquired_by or "somebody unknown"
    began = _time(ended.began) if ended.began is not None else "an unknown time"
    whose += f", who had it from {began} to {_time(ended.ended)}"
    notes = [f"wiped after {whose} (the receipt of the wipe is {closed.receipt})"]
    notes += [f"others: {guarded(ended.guarded)}", f"others until it was wiped: {guarded(closed.until_wiped)}"]
    return "; ".join(notes)


def guarded(fence: Guarded) -> str:
    """What the fence tells about others in a time, such as that of a tenancy."""
    if fence.mode is FenceMode.OFF:
        return f"not known: {fence.why}"
    notes = [
        f"{quantity(fence.let_through, 'open attempt')} let through, {fence.refused} refused (fence: {fence.modes})"
    ]
    notes += [f"{quantity(fence.ignored, 'open attempt')} of programs that the policy ignores"] if fence.ignored else []
    notes += [f"{quantity(fence.gaps, 'moment')} at which the fence may have missed somebody"] if fence.gaps else []
    notes += ["for a time open to all"] if fence.open_to_all else []
    notes += [f"of processes below {fence.below} only"] if fence.below else []
    return ", ".join(notes)


def _ended(receipt: Receipt) -> str:
    if not receipt.processes_found:
        return "no process was left"
    return f"{receipt.processes_terminated} of {quantity(receipt.processes_found, 'process', 'processes')} ended"


def _quarantine(quarantine: Quarantine) -> str:
    ailment = quarantine.ailment
    kept = "until an operator reinstates it" if quarantine.next_probe is None else "Autoclave will test it again"
    again = quarantine.last_try not in ("", ailment.detail)
    tried = f"last probation: {quarantine.last_try}; " if again else ""
    others = tuple(error for error in quarantine.errors if error != (ailment.xid, 1))  # the detail names that one
    errors = f"; the driver reported {_xids(others)}" if others else ""
    return f"{tried}quarantined by {quarantine.by} ({ailment.kind.value}): {ailment.detail}{errors}; {kept}"
