"""What a signed receipt says: an in-toto statement with a predicate of our own (docs/receipts/predicate.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ground import calendar_time
from ground.public_names import PREDICATE_TYPE
from scrub_api.measurements import ZEROS
from scrubber.core.model import DeviceInfo, Receipt, Step

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
HANDOVER, RECEIPT = "hand-over", "receipt"  # the names of its subjects
STANDARD, CATEGORY = "NIST SP 800-88r2", "Clear"
LARGEST = 2136  # bytes of a statement: then an envelope has at most 3 KB
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


def statement(receipt: Receipt, device: DeviceInfo, handover: str, about: Program, owner_digest: str) -> bytes:
    """The bytes to sign. They name no owner, no container and no process.

    The job's id is left out as well. Nobody can guess it, so nobody can try names of owners against the digest.
    """
    subjects = {
        HANDOVER: handover_digest(receipt.device, receipt.incarnation.boot_id, handover),
        RECEIPT: receipt.digest,
    }
    content = b""
    for length, named in WORDS:
        by, of = (about, device) if named else (replace(about, node=""), replace(device, serial=None))
        document = {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
            "predicateType": PREDICATE_TYPE,
            "predicate": _predicate(receipt, of, by, owner_digest, partial(_words, length)),
        }
        content = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
        if len(content) <= LARGEST:
            break
    return content


def _predicate(
    receipt: Receipt, device: DeviceInfo, about: Program, owner_digest: str, words: Callable[[str], str]
) -> dict[str, object]:
    finished = calendar_time.utc(receipt.finished.wall).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return _given(
        device={"uuid": receipt.device, "model": words(device.model), "memoryBytes": device.memory_bytes}
        | _given(pciAddress=words(device.pci_address or ""), serial=words(device.serial or ""), parent=device.parent)
        | _given(simulated=about.simulated or None),
        node=words(about.node),
        boot={"id": receipt.incarnation.boot_id, "driver": words(receipt.incarnation.driver)},
        program={"name": about.name, "version": words(about.version)},
        policy={"name": words(receipt.policy), "digest": receipt.policy_digest},
        finished=finished,
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


def _words(length: int, text: str) -> str:
    """A text that others have chosen, cut to its place, without characters that JSON writes longer."""
    plain = "".join(letter if letter.isprintable() and letter not in '"\\' else " " for letter in text)
    return plain.encode()[:length].decode(errors="ignore")
