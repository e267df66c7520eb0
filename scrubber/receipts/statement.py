"""What a signed receipt says, of a scrub or of a tenancy: an in-toto statement (docs/receipts/predicate.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ground import calendar_time
from ground.public_names import CLOSING_TYPE, PREDICATE_TYPE
from policies.values import FenceMode
from scrub_api.measurements import ZEROS
from scrubber.core.guarded import UNKNOWN, EndedTenancy, Guarded
from scrubber.core.model import DeviceInfo, Moment, Receipt, Step

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
HANDOVER, RECEIPT = "hand-over", "receipt"  # the names of its subjects
STANDARD, CATEGORY = "NIST SP 800-88r2", "Clear"
LARGEST = 2400  # bytes of a statement: then an envelope has at most 3.4 KB
# Bytes of a text that others choose, and whether node and board are named: less where the statement gets too large. The
# checkpoint of the node's log names the node as well.
WORDS = ((64, True), (64, False), (32, False), (8, False))
PARTS = 6  # uncovered parts and tests that are named


@dataclass(frozen=True, slots=True)
class Program:
    """The program that wrote the receipt."""

    version: str
    name: str = "autoclave"
    simulated: bool = False  # its GPUs are simulated: a receipt claims nothing about hardware
    node: str = ""  # on which it runs


def handover_digest(device: str, boot_id: str, handover: str) -> str:
    """What a tenant computes from its device, the boot of its node, and the name of its directory."""
    return hashlib.sha256(f"{device}\n{boot_id}\n{handover}\n".encode()).hexdigest()


def statement(
    receipt: Receipt, device: DeviceInfo, handover: str, about: Program, owner_digest: str, guarded: Guarded = UNKNOWN
) -> bytes:
    """The bytes to sign. They name no owner, no container and no process. ``guarded``: since the last proof.

    The job's id is left out as well. Nobody can guess it, so nobody can try names of owners against the digest.
    """
    subjects = {
        HANDOVER: handover_digest(receipt.device, receipt.incarnation.boot_id, handover),
        RECEIPT: receipt.digest,
    }
    content = b""
    for length, named in WORDS:
        by, of = (about, device) if named else (replace(about, node=""), replace(device, serial=None))
        predicate = _predicate(receipt, of, by, owner_digest, guarded, partial(_words, length))
        content = _document(subjects, PREDICATE_TYPE, predicate)
        if len(content) <= LARGEST:
            break
    return content


def closing(
    ended: EndedTenancy, until_wiped: Guarded, wipe: Receipt, device: DeviceInfo, handover: str, about: Program
) -> bytes:
    """The bytes to sign at the end of a tenancy. They name its tenant, and none of the others."""
    subjects = {
        HANDOVER: handover_digest(device.uuid, ended.boot_id, handover),
        RECEIPT: wipe.digest,  # that of the wipe
    }
    predicate = _given(
        device=_given(uuid=device.uuid, model=as_said(device.model), simulated=about.simulated or None),
        node=as_said(about.node),
        boot={"id": ended.boot_id},
        program={"name": about.name, "version": as_said(about.version)},
        tenant=_given(uid=ended.container, pod=as_said(ended.pod), owner=as_said(ended.acquired_by)),
        began=utc(ended.began),
        ended=utc(ended.ended),
        fence=_fence(ended.guarded, as_said),
        untilWiped=_fence(until_wiped, as_said),
        wiped={
            "receipt": wipe.id,
            "finished": utc(wipe.finished),
            "coveredBytes": wipe.covered_bytes,
            "allocatableBytes": wipe.allocatable_bytes,
        },
    )
    return _document(subjects, CLOSING_TYPE, predicate)


def _document(subjects: Mapping[str, str], kind: str, predicate: Mapping[str, object]) -> bytes:
    document = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
        "predicateType": kind,
        "predicate": predicate,
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _fence(guarded: Guarded, words: Callable[[str], str]) -> dict[str, object]:
    """What the fence has counted of others. ``mode`` none: nothing is known, and ``why``."""
    if guarded.mode is FenceMode.OFF:
        return {"mode": "none", "why": words(guarded.why)}
    return _given(
        mode=guarded.mode.value,
        modeBefore=guarded.mode_before.value if guarded.mode_before is not guarded.mode else None,
        exempt=guarded.exempt,
        exemptBefore=guarded.exempt_before if guarded.exempt_before != guarded.exempt else None,
        letThrough=guarded.let_through,
        ignored=guarded.ignored,
        refused=guarded.refused,
        gaps=guarded.gaps,
        openToAll=guarded.open_to_all or None,
        below=words(guarded.below),
    )


def guarded_in(fence: Mapping[str, Any]) -> Guarded:
    """What ``_fence`` has written, but for its beginning."""
    if fence["mode"] == "none":
        return Guarded(why=fence["why"])
    mode, exempt = FenceMode(fence["mode"]), fence.get("exempt", "")
    return Guarded(
        mode=mode,
        mode_before=FenceMode(fence.get("modeBefore", mode)),
        exempt=exempt,
        exempt_before=fence.get("exemptBefore", exempt),
        let_through=fence["letThrough"],
        ignored=fence["ignored"],
        refused=fence["refused"],
        gaps=fence["gaps"],
        open_to_all=fence.get("openToAll", False),
        below=fence.get("below", ""),
    )


def utc(moment: Moment | None) -> str | None:
    """A time in a statement."""
    if moment is None:
        return None
    return calendar_time.utc(moment.wall).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _predicate(
    receipt: Receipt, device: DeviceInfo, about: Program, owner_digest: str, guarded: Guarded,
    words: Callable[[str], str],
) -> dict[str, object]:  # fmt: skip
    return _given(
        device={"uuid": receipt.device, "model": words(device.model), "memoryBytes": device.memory_bytes}
        | _given(pciAddress=words(device.pci_address or ""), serial=words(device.serial or ""), parent=device.parent)
        | _given(simulated=about.simulated or None),
        node=words(about.node),
        boot={"id": receipt.incarnation.boot_id, "driver": words(receipt.incarnation.driver)},
        program={"name": about.name, "version": words(about.version)},
        policy={"name": words(receipt.policy), "digest": receipt.policy_digest},
        finished=utc(receipt.finished),
        uptime=round(receipt.finished.uptime, 3),
        path=receipt.path.value,
        steps=[[step.value, round(seconds, 3)] for step, seconds in receipt.steps],
        sanitization=_given(
            simulated=about.simulated or None,
            standard=None if about.simulated else STANDARD,
            category=None if about.simulated else CATEGORY,
            # Whether all that was written was read back. The verdict demands it on each path.
            verification="full" if Step.VERIFY in dict(receipt.steps) else "none",
            coveredBytes=receipt.covered_bytes,
            allocatableBytes=receipt.allocatable_bytes,
            uncovered=_uncovered(receipt, words),
            patterns=list(receipt.patterns),
            left=None if receipt.leaves == ZEROS else receipt.leaves,
            units=receipt.units,
            unitsReached=receipt.units_reached,
            sharedUnreachedBytes=receipt.shared_unreached_bytes,
            unitsLeft=[words(each) for each in receipt.units_left] or None,
            tests=[words(test) for test in receipt.tests[:PARTS]],
        ),
        found=_given(
            residueBytes=receipt.residue_bytes,
            searchedBytes=receipt.covered_bytes if receipt.searched_bytes is None else receipt.searched_bytes,
            processes=receipt.processes_found,
            processesEnded=receipt.processes_terminated,
        ),
        witness=words(receipt.witness),
        fence=_given(since=utc(guarded.since)) | _fence(guarded, words),
        receipt=_given(id=receipt.id, previous=receipt.previous or "", lastOwner=owner_digest),
    )


def _uncovered(receipt: Receipt, words: Callable[[str], str]) -> list[dict[str, object]]:
    """All that was not covered, by cause: the largest parts, and the rest as one. The sum stays."""
    parts = sorted(receipt.uncovered, key=lambda part: part.bytes, reverse=True)
    named = parts if len(parts) <= PARTS else parts[: PARTS - 1]
    shown: list[dict[str, object]] = [{"cause": words(part.cause), "bytes": part.bytes} for part in named]
    if rest := sum(part.bytes for part in parts[len(named) :]):
        shown.append({"cause": "other causes", "bytes": rest})
    return shown


def _given(**fields: object) -> dict[str, object]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value not in (None, "")}


def as_said(text: str) -> str:
    """A text that others have chosen, such as the name of a node, as a closing receipt has it: a long one is cut."""
    return _words(WORDS[0][0], text)


def _words(length: int, text: str) -> str:
    """A text that others have chosen, cut to its place, without characters that JSON writes longer."""
    plain = "".join(letter if letter.isprintable() and letter not in '"\\' else " " for letter in text)
    return plain.encode()[:length].decode(errors="ignore")
