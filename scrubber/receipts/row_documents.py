"""Whether the signed document in a row of the ledger is of this row.

Nobody can sign without the key, but whoever may write to the ledger can copy a document from another row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from policies.policy_model import FenceMode
from scrubber.core.events import Event, ScrubPassed, TenancyClosed
from scrubber.core.guarded import Guarded
from scrubber.core.model import Receipt
from scrubber.receipts import dsse, key
from scrubber.receipts.key import ReceiptError
from scrubber.receipts.statement import as_said, guarded_in, utc

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
    of_other_keys: Counter[str] = field(default_factory=Counter)  # rows by the ids of keys that are none of these

    def check(self, event: Event, device: str) -> None:
        """Count the document of this event of a device; ReceiptError if it is wrong."""
        if (envelope := document_in(event)) is None:
            return
        if why := why_not_its_own(event, device):
            raise ReceiptError(why)
        if not envelope:
            self.unsigned += 1
            return
        signers = [name for name, _ in dsse.parsed(envelope).signatures]
        if self.keys and {*signers}.isdisjoint(map(key.key_id, self.keys)):
            self.of_other_keys[" and ".join(signers)] += 1
            return
        if self.keys:
            dsse.opened(envelope, self.keys)
        self.signed += 1


def why_not_its_own(event: Event, device: str) -> str:
    """Why the signed document of this event of a device is not its own; empty if it is, or if there is none.

    Compares only what each version has written.
    """
    if not (envelope := document_in(event)):
        return ""
    try:
        said = json.loads(dsse.parsed(envelope).payload)["predicate"]
        match event:
            case ScrubPassed(receipt=receipt):
                compared = _of_scrub(said, receipt, device)
            case TenancyClosed():
                compared = _of_tenancy(said, event, device)
            case _:
                return ""
    except (ReceiptError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "its signed document cannot be read"
    differs = [name for name, (mine, signed) in compared.items() if mine != signed]
    return f"its signed document has another {differs[0]}: it is of another row" if differs else ""


def _of_scrub(said: Any, receipt: Receipt, device: str) -> _Compared:  # noqa: ANN401 - as JSON has it
    cleared = said["sanitization"]
    return {
        "device": (device, said["device"]["uuid"]),
        "receipt": (receipt.id, said["receipt"]["id"]),
        "boot": (receipt.incarnation.boot_id, said["boot"]["id"]),
        "time": (utc(receipt.finished), said["finished"]),
        "coveredBytes": (receipt.covered_bytes, cleared["coveredBytes"]),
        "allocatableBytes": (receipt.allocatable_bytes, cleared["allocatableBytes"]),
        "residueBytes": (receipt.residue_bytes, said["found"]["residueBytes"]),
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
    return replace(guarded, since=None, why="", exempt="", exempt_before="", below=as_said(guarded.below))
