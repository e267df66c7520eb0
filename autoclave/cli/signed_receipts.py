"""``autoclave receipt show``, ``export``, ``key``: the signed receipts in the ledger of this node, and its key."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autoclave.cli import DONE, service_call
from autoclave.cli.offline import EVERY, Offline
from autoclave.cli.output import document, human
from autoclave.cli.output.statement_words import CLOSINGS, RECEIPTS, Kind, in_words
from ground import paths, private_files
from ground.errors import FatalError, InvalidRequest, Reason, Refused, Unreachable
from ground.quantities import quantity
from scrub_api import admin_client, views
from scrubber.core.events import ScrubPassed, TenancyClosed
from scrubber.ledger import ledger_rows
from scrubber.receipts import dsse, note, row_documents, tenant_files, verification
from scrubber.receipts import key as key_file
from scrubber.receipts.key import ReceiptError
from scrubber.receipts.statement import HANDOVER as SUBJECT
from scrubber.receipts.statement import handover_digest

ID = re.compile(r"[0-9a-f]{16}")

LISTS = "`autoclave receipt list` lists those that the ledger has"

History = Callable[..., Awaitable[Sequence[views.HistoryEntry]]]


def show(name: str, output: str, run_dir: Path | None, ledger: Path, kind: Kind) -> int:
    """Show a signed receipt of this node's ledger, by its id or its GPU; closing receipts also by their pod.

    Without ``run_dir``, no service is asked: the ledger may be a copy.
    """

    async def ask(admin: admin_client.AdminClient) -> list[Signed]:
        return await _signed(name, partial(admin.history, warn=human.warn), kind)

    try:
        found = service_call.ask(run_dir, ask) if run_dir else asyncio.run(_signed(name, Offline(ledger).history, kind))
    except Unreachable as error:
        found = asyncio.run(_signed(name, Offline(ledger, error).history, kind))
    for signed in found:
        keys, statement = signed.keys, signed.statement
        if output == "text":
            human.say(f"signed by   {', '.join(keys)} (not verified here)", *in_words(statement), "", signed.envelope)
        else:
            about = {"id": signed.id, "signed_by": keys, "statement": statement, "envelope": signed.envelope}
            document.emit(document.single("SignedReceipt", about), output)
    return DONE


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed receipt in the ledger. Nothing of it is verified."""

    id: str
    row: int
    envelope: str
    keys: list[str]
    statement: dict[str, Any]


async def _signed(name: str, history: History, kind: Kind) -> list[Signed]:
    """The receipt of this id, or the newest one of this GPU. FatalError if it is not signed.

    A closing receipt has the id of the wipe, which no other has. Also by the tenant: the newest one of each GPU.
    """
    if kind is CLOSINGS or ID.fullmatch(name):
        rows = await history("", limit=EVERY, kinds=(kind.row,))
        of_id = [entry for entry in rows if _id(_event(entry)) == name]
        of_tenant: dict[str, list[views.HistoryEntry]] = {}
        for entry in () if of_id else reversed(rows):  # a tenant may call itself by the id of a wipe
            if name in _tenants(_event(entry)):
                of_tenant.setdefault(entry.device, []).append(entry)
        if found := [of_id] if of_id else [*of_tenant.values()]:  # no later row takes the place of an id
            return [_opened(next(filter(_is_its_own, entries), entries[0]), kind) for entries in found]
    try:
        entries = [] if ID.fullmatch(name) else await history(name, limit=1, kinds=(kind.row,))
    except InvalidRequest as error:
        if error.reason is not Reason.UNKNOWN_DEVICE and kind is RECEIPTS:
            raise
        why = "it is neither the id of a receipt nor a GPU"
        if kind is CLOSINGS:
            why = "no hand-over of this id, tenant or GPU has ended and was wiped before the next one"
        raise InvalidRequest(f"cannot find {kind.word} {name}: {why}", LISTS) from error
    if not entries:
        none = (
            "no hand-over of it has ended and was wiped before the next one"
            if kind is CLOSINGS
            else "the ledger does not have it"
        )
        raise InvalidRequest(f"cannot find {kind.word} {name}: {none}", LISTS)
    return [_opened(entries[-1], kind)]


def _event(entry: views.HistoryEntry) -> ScrubPassed | TenancyClosed:
    """What the row says. Without the key, somebody may have written it."""
    return ledger_rows.decode(entry.kind, entry.body)  # type: ignore[return-value] # its kind


def _id(event: ScrubPassed | TenancyClosed) -> str:
    return event.receipt.id if isinstance(event, ScrubPassed) else event.receipt


def _tenants(event: ScrubPassed | TenancyClosed) -> set[str | None]:
    """The names of the tenant, by which a closing receipt is found, too."""
    if isinstance(event, ScrubPassed):
        return set()
    return {event.ended.container, event.ended.pod, event.ended.acquired_by}


def _is_its_own(entry: views.HistoryEntry) -> bool:
    """Whether the row has a signed document, and it is of this row."""
    event = _event(entry)
    return bool(row_documents.document_in(event)) and not row_documents.why_not_its_own(event, entry.device)


def _opened(entry: views.HistoryEntry, kind: Kind) -> Signed:
    event = _event(entry)
    its_id, envelope = _id(event), row_documents.document_in(event)
    if not envelope:
        raise Refused(
            Reason.INTERNAL, f"cannot use {kind.word} {its_id}: it is not signed", "`autoclave doctor` says why"
        )
    try:
        document_of = dsse.parsed(envelope)
        statement = json.loads(document_of.payload)
    except (ReceiptError, ValueError, RecursionError) as error:
        raise FatalError(f"cannot read {kind.word} {its_id}: {error}", "`autoclave ledger verify` checks it") from error
    if why := row_documents.why_not_its_own(event, entry.device):
        changed = "somebody has changed the ledger: `autoclave ledger verify` says more"
        raise FatalError(f"cannot use {kind.word} {its_id} of row {entry.seq}: {why}", changed)
    return Signed(its_id, entry.seq, envelope, [key for key, _ in document_of.signatures], statement)


def export(name: str, folder: Path, state_dir: Path, kind: Kind) -> int:
    """Write the two files of a receipt for others, into a directory called after its hand-over.

    The proof ends in the newest checkpoint that the service has signed: here nothing is signed.
    """
    try:
        key = key_file.read_key(state_dir)
    except (ReceiptError, OSError) as error:
        raise FatalError(f"cannot export a receipt: {error}") from error
    ledger = Offline(paths.ledger(state_dir))
    for signed in asyncio.run(_signed(name, ledger.history, kind)):
        _export(signed, ledger, folder, paths.last_checkpoint(state_dir), key, kind)
    return DONE


def _export(signed: Signed, ledger: Offline, folder: Path, newest: Path, key: key_file.FileKey, kind: Kind) -> None:
    predicate, subjects = signed.statement["predicate"], signed.statement["subject"]
    device, boot = predicate["device"]["uuid"], predicate["boot"]["id"]
    digests = {each["digest"]["sha256"] for each in subjects if each["name"] == SUBJECT}
    handover = tenant_files.found_handover(
        key.secret, device, ledger.tenancy(device) + 1, ledger.first_tenancies(device),
        lambda handover: handover_digest(device, boot, handover) in digests,
    )  # fmt: skip
    try:
        proof = _proof(signed, ledger, newest, key.public_key)
    except ReceiptError as error:
        asked = f"{signed.id} --closing" if kind is CLOSINGS else signed.id
        advice = f"`autoclave receipt show {asked} -o json` has the signed document, which verifies without the log"
        raise FatalError(f"cannot export {kind.word} {signed.id}: {error.message}", *error.remedies, advice) from error
    place, (document_name, proof_name) = folder / (handover or signed.id), kind.files
    try:
        private_files.write_for_others(place, {document_name: signed.envelope, proof_name: proof})
    except OSError as error:
        raise FatalError(f"cannot write the {kind.word} into {place}: {error.strerror}") from error
    if key.key_id not in signed.keys:
        human.warn(f"an earlier key has signed the receipt ({', '.join(signed.keys)}): verify it with both keys")
    if not handover:
        human.warn(f"its hand-over is no longer known: verify the file {place / document_name} alone")
    human.say(str(place))


def _proof(signed: Signed, ledger: Offline, newest: Path, public_key: bytes) -> str:
    """That the ledger has the receipt, by the newest checkpoint of the service; ReceiptError without such a one."""
    try:
        checkpoint = private_files.content(newest).decode(errors="replace")
    except FileNotFoundError as error:
        raise ReceiptError("the service has not signed a checkpoint yet", f"it does when it runs ({newest})") from error
    except OSError as error:
        raise ReceiptError(f"the newest checkpoint {newest} cannot be read: {error.strerror}") from error
    size = note.opened(checkpoint, [public_key]).size
    if size < signed.row:
        older = f"the newest checkpoint has {quantity(size, 'row')}: it was made before the receipt, row {signed.row}"
        raise ReceiptError(older, "the service signs one with each receipt, and every ten minutes")
    proof = note.prove(*ledger.prove(signed.row, size), checkpoint).text
    verification.logged(signed.envelope, proof, [public_key])  # as its readers do
    return proof


def show_key(state_dir: Path, node: str, output: str, *, rotate: bool) -> int:
    """Show the public key of this node, or make and show the next one."""
    try:
        name = note.log_name(node)
        key = key_file.make_next(state_dir) if rotate else key_file.read_key(state_dir)
    except (ReceiptError, OSError) as error:
        raise FatalError(f"cannot show the key of receipts: {error}") from error
    pem, vkey = key_file.public_pem(key.public_key), key_file.vkey(key.public_key, name)
    if output in {"json", "yaml"}:
        about = {"key": key.key_id, "pem": pem, "vkey": vkey, "next": rotate}
        document.emit(document.single("ReceiptKey", about), output)
        return DONE
    human.warn(f"the service signs with key {key.key_id}{' from its next start on: restart it' if rotate else ''}")
    human.say(*(pem if output == "pem" else vkey).splitlines())
    return DONE
