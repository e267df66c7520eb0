"""Signs receipts and checkpoints, and puts them where others find them: the ledger, the log, the tenant's directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ground import log, private_files
from scrubber.core import events as ev
from scrubber.core.guarded import UNKNOWN, EndedTenancy, Guarded
from scrubber.core.model import Receipt
from scrubber.core.record import Change, Record
from scrubber.receipts import dsse, note, statement
from scrubber.receipts.key import FileKey
from scrubber.receipts.merkle import Inclusion
from scrubber.receipts.note import Checkpoint
from scrubber.receipts.statement import Program
from scrubber.receipts.tenant_files import TenantFiles, handover_id, owner_digest

logger = log.get("receipts")


@dataclass(slots=True)
class SigningState:
    """What has happened since the start of the service."""

    last_checkpoint: float | None = None  # wall; when the newest checkpoint was signed


class Notary:
    """Signs the ledger. Its errors are logged: without a signature, a clean GPU is still clean."""

    def __init__(
        self, key: FileKey, origin: str, program: Program, files: TenantFiles, state: SigningState, newest_in: Path
    ) -> None:
        """``origin``: the name of the node's log in each checkpoint. ``newest_in``: the file of the newest one."""
        self._key = key
        self._origin = origin
        self._program = program
        self.files = files
        self._state = state
        self._newest_in = newest_in
        self.newest = ""  # checkpoint, signed

    def seal(self, record: Record, receipt: Receipt, guarded: Guarded = UNKNOWN) -> Receipt:
        """The receipt with its signed document, which is for the next tenant. ``record``: the device before it.

        ``guarded``: since the last proof.
        """
        try:
            handover = self.files.handover(record)
            owner = owner_digest(self._key.secret, handover, record.tenancy.left_by or record.tenancy.last_owner or "")
            document = statement.statement(receipt, record.device, handover, self._program, owner, guarded)
            return replace(receipt, envelope=dsse.envelope(document, self._key))
        except Exception:  # whatever the signer raises: the device is clean all the same
            logger.exception("cannot sign a receipt", device=receipt.device, receipt=receipt.id)
            return receipt

    def close(self, record: Record, ended: EndedTenancy, wipe: Receipt, until_wiped: Guarded) -> str:
        """The signed document for the tenant that has left; empty: it cannot be signed."""
        try:
            handover = handover_id(self._key.secret, record.device.uuid, ended.number)
            document = statement.closing(ended, until_wiped, wipe, record.device, handover, self._program)
            return dsse.envelope(document, self._key)
        except Exception:  # as for a receipt
            logger.exception("cannot sign a closing receipt", device=record.device.uuid, receipt=wipe.id)
            return ""

    def recorded(self, changes: Sequence[Change], prove: Callable[[int], tuple[Inclusion, str]]) -> None:
        """Write the documents that tenants get, and remove those of proofs and tenancies that have ended.

        ``prove``: that the row of this number is in the tree over all rows; and the row's hash.
        """
        for entry, before, after in changes:
            envelope, proof = "", ""
            if isinstance(entry.event, ev.ScrubPassed) and entry.event.receipt.envelope:
                envelope = entry.event.receipt.envelope
                included, row_hash = prove(entry.seq)
                proof = note.prove(included, row_hash, self.checkpoint(included)).text
            self.files.changed(before, after, envelope, proof)

    def checkpoint(self, included: Inclusion) -> str:
        """Sign the size and the root of the tree, and log it: the log leaves the node, so others can hold it.

        Returns the signed note. A file has the newest one, for exports: nobody but the service signs.
        """
        signed = note.sign(Checkpoint(self._origin, included.size, included.root), self._key)
        self.newest, self._state.last_checkpoint = signed, time.time()
        logger.info("checkpoint", checkpoint=signed, rows=included.size)
        try:  # of no use after a power loss: the next start signs another one
            private_files.replace(self._newest_in, signed.encode(), durable=False)
        except OSError as error:
            logger.error("cannot keep the newest checkpoint for exports", error=error.strerror)  # noqa: TRY400 - expected
        return signed
