"""The two kinds of signed receipts, and what their statements say in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autoclave.cli.output import human
from ground.public_names import CLOSING_TYPE, PREDICATE_TYPE
from ground.quantities import quantity
from scrub_api.measurements import PATTERN_LEFT, UNSEARCHED
from scrubber.receipts.statement import guarded_in
from scrubber.receipts.tenant_files import CLOSING, CLOSING_PROOF, ENVELOPE, PROOF
from scrubber.words import event_text


@dataclass(frozen=True, slots=True)
class Kind:
    """Receipts of scrubs, or of tenancies."""

    word: str
    predicate: str
    row: str  # of the ledger
    files: tuple[str, str]  # the document and its proof


RECEIPTS = Kind("receipt", PREDICATE_TYPE, "scrub-passed", (ENVELOPE, PROOF))
CLOSINGS = Kind("closing receipt", CLOSING_TYPE, "tenancy-closed", (CLOSING, CLOSING_PROOF))


def is_simulated(statement: dict[str, Any]) -> bool:
    """Whether the receipt is of a simulated GPU, and claims nothing about hardware."""
    return statement["predicate"]["device"].get("simulated") is not None


def in_words(statement: dict[str, Any]) -> Iterator[str]:
    """The statement in plain words."""
    predicate = statement["predicate"]
    if statement["predicateType"] == CLOSING_TYPE:
        yield from _closing_words(predicate)
        return
    device, claim, evidence = predicate["device"], predicate["sanitization"], predicate["found"]
    about = f"{predicate['finished']}, for {device['model']} {device['uuid']}"
    yield f"receipt     {predicate['receipt']['id']} of {about}"
    parts = ", ".join(f"{human.size(part['bytes'])} {part['cause']}" for part in claim["uncovered"])
    covered = f"{claim['coveredBytes']} of {claim['allocatableBytes']} bytes, verification {claim['verification']}"
    rest = f"; not covered: {parts}" if parts else ""
    what = "none, of a SIMULATED GPU:" if is_simulated(statement) else f"{claim['category']} ({claim['standard']}) of"
    yield f"claim       {what} {covered}{rest}"
    if "units" in claim:
        beside = ", ".join(claim.get("unitsLeft", ["not said"]))
        units = f"{claim['unitsReached']} of {quantity(claim['units'], 'unit')}"
        yield f"on chip     shared memory and registers of {units} overwritten; not overwritten: {beside}"
    if "left" in claim:  # otherwise zeros
        yield f"left        {claim['left']}: {PATTERN_LEFT}"
    ended = f"{quantity(evidence['processes'], 'process', 'processes')}, {evidence['processesEnded']} of them ended"
    residue = f"{quantity(evidence['residueBytes'], 'byte')} not zero of {evidence['searchedBytes']} searched"
    yield f"found       {residue if evidence['searchedBytes'] else UNSEARCHED}; {ended}"
    if "witness" in predicate:
        yield f"use counter  {predicate['witness']}"
    if "fence" in predicate:
        since = f"since {predicate['fence']['since']}: " if "since" in predicate["fence"] else ""
        yield f"others      {since}{_others(predicate['fence'])}"
    steps = ", ".join(f"{step} {seconds:g}s" for step, seconds in predicate["steps"])
    yield f"done        {steps} ({predicate['path']})"
    program, policy = predicate["program"], predicate["policy"]
    on = f" on {predicate['node']}" if "node" in predicate else ""
    yield f"by          {program['name']} {program['version']}{on}, policy {policy['name']} ({policy['digest']})"


def _closing_words(predicate: dict[str, Any]) -> Iterator[str]:
    """What a closing receipt says."""
    device, tenant, wiped = predicate["device"], predicate["tenant"], predicate["wiped"]
    names = [tenant[name] for name in ("pod", "owner", "uid") if name in tenant]
    yield f"device      {device['model']} {device['uuid']}{', SIMULATED' if 'simulated' in device else ''}"
    yield f"tenant      {' / '.join(names) or 'not known'}"
    yield f"had it      from {predicate.get('began', 'an unknown time')} to {predicate['ended']}"
    yield f"others      {_others(predicate['fence'])}"
    yield f"until wiped {_others(predicate['untilWiped'])}"
    covered = f"{wiped['coveredBytes']} of {wiped['allocatableBytes']} bytes"
    yield f"wiped       {wiped['finished']}, {covered} (receipt {wiped['receipt']})"
    program, on = predicate["program"], f" on {predicate['node']}" if "node" in predicate else ""
    yield f"by          {program['name']} {program['version']}{on}"


def _others(fence: dict[str, Any]) -> str:
    """What the fence says of others, over a time."""
    exempt = f"; exempt: {fence['exempt']}" if "exempt" in fence else "; nobody is exempt"
    exempt += f", at first {fence['exemptBefore']}" if "exemptBefore" in fence else ""
    return event_text.guarded(guarded_in(fence)) + ("" if fence["mode"] == "none" else exempt)
