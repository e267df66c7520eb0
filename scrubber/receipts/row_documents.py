"""Whether the signed document in a row of the ledger is of this row.

Nobody can sign without the key, but whoever may write to the ledger can copy a document from another row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ground.quantities import quantity
from policies.values import FenceMode
from scrubber.core import verdict
from scrubber.core.events import Event, ScrubPassed, TenancyClosed
from scrubber.core.guarded import Guarded
from scrubber.core.model import Receipt
from scrubber.receipts import dsse, key
from scrubber.receipts.key import ReceiptError
from scrubber.receipts.statement import RECEIPT, as_said, guarded_in, utc

_Compared: TypeAlias = Mapping[str, tuple[object, object]]  # by its name: what the row says, and what was signed


def document_in(event: Event) -> str | None:
    """The signed document of this event, which is empty if it was not signed; None: such events have none."""
    match event:
        case ScrubPassed(receipt=Receipt(envelope=envelope)) | TenancyClosed(envelope=envelope):
            return envelope
        case _:
            return None


@dataclass(slots=True)
class Documents:
    """The signed documents of many rows, as far as they were checked."""

    keys: Collection[bytes] = ()  # public ones that may have signed; without any, no signature is verified
    signed: int = 0  # rows, by one of the keys if there are any
    unsigned: int = 0
    first_unsigned: int = 0  # row
    rows: dict[bytes, int] = field(default_factory=dict)  # by the SHA-256 of the document that it has, or had
    of_other_keys: dict[str, int] = field(default_factory=dict)  # a first row, by the id of a key that is none of these

    def check(self, row: int, event: Event, device: str, body: str) -> None:
        """Count the document of this event of a device; ReceiptError if it is wrong. ``body``: the event as stored."""
        if (envelope := document_in(event)) is None:
            return
        if why := why_not_its_own(event, device, body):
            raise ReceiptError(why)
        if not envelope:
            self.unsigned, self.first_unsigned = self.unsigned + 1, min(self.first_unsigned or row, row)
            return
        self.found(row, hashlib.sha256(envelope.encode()).digest())
        document = dsse.parsed(envelope)
        if envelope != dsse.written(document):  # otherwise a copy would not have the same SHA-256
            raise ReceiptError("its signed document is not in the form in which the service writes it")
        signers = [name for name, _ in document.signatures]
        if len(signers) != 1:
            raise ReceiptError(f"its signed document has {quantity(len(signers), 'signature')}, not one")
        by = [each for each in self.keys if key.key_id(each) in signers]
        if self.keys and not by:
            self.of_other_keys.setdefault(signers[0], row)
            return
        if by:
            dsse.opened(envelope, by)
        self.signed += 1

    def found(self, row: int, digest: bytes) -> None:
        """A row has, or had, the document with this SHA-256; ReceiptError if another row has it."""
        if (other := self.rows.setdefault(digest, row)) != row:
            raise ReceiptError(f"row {other} has the same signed document, and the later row is the copy")


def why_not_its_own(event: Event, device: str, body: str = "") -> str:
    """Why the signed document of this event of a device is not its own; empty if it is, or if there is none.

    Compares only what each version has written. ``body``: the event as it is stored, of which all is compared.
    """
    if not (envelope := document_in(event)):
        return ""
    try:
        said = json.loads(dsse.parsed(envelope).payload)
        match event:
            case ScrubPassed(receipt=receipt):
                compared = _of_scrub(said, receipt, device, body)
            case TenancyClosed():
                compared = _of_tenancy(said["predicate"], event, device)
            case _:
                return ""
    except (ReceiptError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "its signed document cannot be read"
    differs = [name for name, (mine, signed) in compared.items() if mine != signed]
    return f"its signed document has another {differs[0]}: it is of another row" if differs else ""


def _of_scrub(said: Any, receipt: Receipt, device: str, body: str) -> _Compared:  # noqa: ANN401 - as JSON has it
    predicate, [digest] = said["predicate"], [it["digest"]["sha256"] for it in said["subject"] if it["name"] == RECEIPT]
    cleared = predicate["sanitization"]
    return {
        "device": (device, predicate["device"]["uuid"]),
        "receipt": (receipt.id, predicate["receipt"]["id"]),
        "previous": (receipt.previous or "", predicate["receipt"].get("previous", "")),
        "time": (utc(receipt.finished), predicate["finished"]),
        "coveredBytes": (receipt.covered_bytes, cleared["coveredBytes"]),
        "allocatableBytes": (receipt.allocatable_bytes, cleared["allocatableBytes"]),
        "residueBytes": (receipt.residue_bytes, predicate["found"]["residueBytes"]),
        "digest": (receipt.digest, digest),
        "content": (verdict.digest_as_stored(body) if body else digest, digest),
    }


def _of_tenancy(said: Any, closed: TenancyClosed, device: str) -> _Compared:  # noqa: ANN401 - as JSON has it
    ended, tenant = closed.ended, said["tenant"]
    return {
        "device": (device, said["device"]["uuid"]),
        "receipt": (closed.receipt, said["wiped"]["receipt"]),
        "boot": (ended.boot_id, said["boot"]["id"]),
        "beginning": (utc(ended.began), said.get("began")),
        "end": (utc(ended.ended), said["ended"]),
        "uid": (ended.container or "", tenant.get("uid", "")),
        "pod": (as_said(ended.pod), tenant.get("pod", "")),
        "owner": (as_said(ended.acquired_by), tenant.get("owner", "")),
        "fence": (_said_of(ended.guarded), guarded_in(said["fence"])),
        "untilWiped": (_said_of(closed.until_wiped), guarded_in(said["untilWiped"])),
    }


def _said_of(guarded: Guarded) -> Guarded:
    """As much as ``guarded_in`` reads of it."""
    if guarded.mode is FenceMode.OFF:
        return Guarded(why=as_said(guarded.why))
    before = guarded.exempt_before or guarded.exempt
    return replace(guarded, since=None, why="", exempt_before=before, below=as_said(guarded.below))
