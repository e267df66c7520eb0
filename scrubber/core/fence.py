"""May a job go on with its next step?"""

from __future__ import annotations

from scrubber.core import answers, ownership
from scrubber.core.model import Blame, Facts, Record, State, Step


def check(record: Record, job: str, step: Step, facts: Facts) -> answers.Fenced | None:
    """Why a job must not run this step, or None. Asked again just before each step.

    The job may have outlived its caller, and the device may have a new holder meanwhile.
    """
    if record.state is not State.SCRUBBING or record.job is None or record.job.id != job:
        return answers.Fenced(Blame.SERVICE, "the device does not belong to this job any more")
    if facts.incarnation != record.incarnation:
        return answers.Fenced(Blame.SERVICE, "the node or the driver was restarted during the job")
    if facts.domain_resetting:
        return answers.Fenced(Blame.SERVICE, "a device of the same reset domain is being reset")
    if facts.holders is None:
        blame = Blame.SERVICE if facts.shortage else Blame.TENANT
        return answers.Fenced(blame, answers.why_unknown_for_operators(facts))
    if facts.holders:
        holders = ownership.holder_names(facts.holders)
        if ownership.live_container(facts.holders) is not None:
            return answers.Fenced(Blame.TENANT, f"a live container uses the device ({holders})")
        if step is not Step.EVICT:
            return answers.Fenced(Blame.TENANT, f"the device is used by {holders}")
    if step is Step.RESET and facts.siblings_busy is not False:
        return answers.Fenced(Blame.TENANT, "a device of the same reset domain is in use")
    return None
