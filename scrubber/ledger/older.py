"""Events and snapshots of older versions, as this version would have written them. Pure.

A stored row stays as it is, because its leaf in the tree is of its bytes. Only what is read is brought up to date. The
formats that can be read, and what differs in them:

* 3: a row for the start of each step, and one for its result, whose findings had one class for all steps; burn-ins; a
  setback had what follows from a scrub that failed
* 4: rows as today, with the findings of 3; burn-ins
* 5: the findings of 3
* 6: who had come past the create gate, in each record of a snapshot
* 7: nothing of what the fence has counted
* 8: no rows of what the fence may have missed, nor below which control group it stood
* 9: no mark in the hash of a row (``ledger_rows.Mark``), so a deleted row may have been evidence
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from scrubber.core.model import Step, Trigger
from scrubber.core.plans import STEPS

OLDEST = 3  # the first version whose rows are leaves of a tree alone

JSON = dict[str, Any]

STARTED, FINISHED, RECORDED = "step-started", "step-finished", "steps-recorded"
STEP_KINDS = frozenset({STARTED, FINISHED})
_WITH_JOB = frozenset({"scrub-started", "probation-started"})
_OF_A_FAILURE = ("undecided", "node_or_device")  # fields of a record's scrubs, and before of their setback


def event(kind: str, body: JSON) -> tuple[str, JSON] | None:
    """Kind and body of the event today; None if no older version wrote it in another way."""
    if kind == STARTED:
        marked = body["step"] if STEPS[Step(body["step"])].marked else None
        return RECORDED, {"job": body["job"], "results": [], "begins": marked}
    if kind == FINISHED:
        return RECORDED, {"job": body["job"], "results": _results([body["result"]]), "begins": None}
    if kind == RECORDED:
        return kind, body | {"results": _results(body["results"])}
    if kind in _WITH_JOB:
        return kind, body | {"job": _job(body["job"])}
    return None


def records(before: object) -> list[JSON]:
    """The records of a snapshot today."""
    if not isinstance(before, list):
        raise TypeError("no list of records")
    return [_record(each) for each in before]


def _record(before: JSON) -> JSON:
    now = {name: value for name, value in before.items() if name != "bypasses"}
    now["scrubs"] = {name: value for name, value in before["scrubs"].items() if name != "burn_in_begun"}
    scrubs, setback = now["scrubs"], now["scrubs"].get("setback")
    if scrubs.get("job") is not None:
        scrubs["job"] = _job(scrubs["job"])
    if setback is not None:
        scrubs["setback"] = {name: setback[name] for name in ("detail", "at", "count") if name in setback}
        scrubs |= {name: setback[name] for name in _OF_A_FAILURE if name in setback}
        if setback.get("stuck"):
            scrubs["stuck"] = {"holders": setback["stuck"], "since": setback["stuck_since"]}
    return now


def _job(before: JSON) -> JSON:
    now = {name: value for name, value in before.items() if name != "step"} | {"results": _results(before["results"])}
    step = before.get("step")
    if step is not None and STEPS[Step(step)].marked:
        now["begun"] = step
    if now["trigger"] == "burn-in":
        now["trigger"] = Trigger.REQUEST.value
    return now


def _results(before: Iterable[JSON]) -> list[JSON]:
    return [result | {"findings": _findings(result)} for result in before]


def _findings(result: JSON) -> JSON | None:
    """What the step found, without the fields of other steps; None if it did not find all that it has to."""
    found, kind = result["findings"], STEPS[Step(result["step"])].finds
    if found is None or not is_dataclass(kind):
        return None
    kept = {each.name: found[each.name] for each in fields(kind) if found.get(each.name) is not None}
    needed = {each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING}
    return kept if needed <= kept.keys() else None
