"""``autoclave receipt verify``, ``show``, ``export``, ``key``: the envelope, its statement, keys, checkpoint, proof."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autoclave.cli import DONE, NOT_CLEAN, SIMULATED, service_call, worst
from autoclave.cli.offline import EVERY, Offline
from autoclave.cli.output import document, human
from ground import paths, private_files
from ground.boot import boot_id
from ground.errors import FatalError, InvalidRequest, Reason, Refused, Unreachable
from ground.public_names import CLOSING_TYPE, PREDICATE_TYPE
from ground.quantities import quantity
from scrub_api import admin_client, views
from scrub_api.measurements import PATTERN_LEFT, UNSEARCHED
from scrubber.receipts import dsse, endorsement, handover_id, note, verification
from scrubber.receipts import key as key_file
from scrubber.receipts.signer import ReceiptError
from scrubber.receipts.statement import HANDOVER as SUBJECT
from scrubber.receipts.statement import guarded_in, handover_digest
from scrubber.receipts.tenant_files import CLOSING, CLOSING_PROOF, ENVELOPE, PROOF
from scrubber.receipts.verification import Expected, Logged
from scrubber.words import event_text

ID = re.compile(r"[0-9a-f]{16}")
HANDOVER = re.compile(r"[0-9a-f]{24}")
RECEIPT, OTHER = 2**20, 2**26  # bytes of the largest file that is read
DEV, DEVICE_NODE = Path("/dev"), re.compile(r"nvidia[0-9]+")

LISTS = "`autoclave receipt list` lists those that the ledger has"


@dataclass(frozen=True, slots=True)
class Kind:
    """Receipts of scrubs, or of tenancies."""

    word: str
    predicate: str
    row: str  # of the ledger
    files: tuple[str, str]  # the document and its proof


RECEIPTS = Kind("receipt", PREDICATE_TYPE, "scrub-passed", (ENVELOPE, PROOF))
CLOSINGS = Kind("closing receipt", CLOSING_TYPE, "tenancy-closed", (CLOSING, CLOSING_PROOF))

Files = tuple[Path, ...]
History = Callable[..., Awaitable[Sequence[views.HistoryEntry]]]


def verify(
    path: Path | None, files: tuple[Files, Files, Files], wanted: tuple[str, str, str], output: str,
    kind: Kind = RECEIPTS,
) -> int:  # fmt: skip
    """Verify receipts and say what was checked. ``files``: keys, keys of the site, checkpoints.

    Without a path: the receipt of each GPU of this container, which must be of this boot.
    """
    public = _trusted(*files[:2])
    if path is not None:
        return _verify(path, public, files[2], wanted, output, kind)
    gpu, boot, given = wanted
    try:
        folders = _in_container(os.environ.get(paths.RECEIPTS_VARIABLE, ""))
    except ReceiptError as error:
        return _not_verified(f"cannot find the receipts of this container: {error}", output)
    wanted = gpu, boot or boot_id(), given
    return worst([_verify(each, public, files[2], wanted, output, kind) for each in folders])


def _in_container(named: str) -> list[Path]:
    """The directories of the hand-overs of this container's GPUs."""
    if not named:
        why = "it has no GPU, the policy of its node has no `receipts: mount`, or the service cannot sign"
        raise ReceiptError(f"{paths.RECEIPTS_VARIABLE} is not set: {why}")
    try:
        folders = sorted(each for each in Path(named).iterdir() if HANDOVER.fullmatch(each.name))
    except OSError as error:
        raise ReceiptError(f"{named} cannot be read: {error.strerror}") from error
    gpus = max(1, sum(1 for each in DEV.iterdir() if DEVICE_NODE.fullmatch(each.name)))  # slices of a GPU share a node
    if len(folders) < gpus:
        has = quantity(len(folders), "hand-over")
        raise ReceiptError(f"{named} has {has}, and the container {quantity(gpus, 'GPU')}")
    return folders


def _not_verified(why: str, output: str) -> int:
    if output != "text":
        document.emit(document.single("ReceiptVerification", {"verified": False, "why": why}), output)
    human.warn(why)
    return NOT_CLEAN


def _verify(
    path: Path, public: Sequence[bytes], checkpoints: Files, wanted: tuple[str, str, str], output: str, kind: Kind
) -> int:
    gpu, boot, given = wanted
    document_name, proof_name = kind.files
    envelope_file = path / document_name if path.is_dir() else path
    folder = envelope_file.absolute().parent  # a link has the id of its own name, whatever it leads to
    named = path.is_dir() or HANDOVER.fullmatch(folder.name)
    expected = Expected(gpu, boot, given or (folder.name or "/" if named else ""))
    held = [one for each in checkpoints for one in _read(each, note.notes_in, "checkpoint")]
    try:
        envelope = _text(envelope_file, RECEIPT).rstrip("\n")  # `jq -r` adds an end of line
        statement = verification.statement(envelope, public, expected, kind.predicate)
        proven = (folder / proof_name).exists() or path.is_dir() or bool(held)  # a container always has both files
        logged = verification.logged(envelope, _text(folder / proof_name, RECEIPT), public, held) if proven else None
    except ReceiptError as error:
        closing = kind is RECEIPTS and path.is_dir() and (path / CLOSING).exists() and not envelope_file.exists()
        hint = "; the directory holds a closing receipt: give --closing" if closing else ""
        return _not_verified(f"cannot trust the {kind.word} {envelope_file}: {error}{hint}", output)
    keys = [key_file.key_id(each) for each in public]
    simulated = _is_simulated(statement)
    if output == "text":
        human.say("verified", *_checked(statement, expected, logged, keys, held, kind), *_words(statement))
    else:
        compared = {f"{name}_compared": bool(value) for name, value in asdict(expected).items()}
        about = {"verified": True, "why": "", "simulated": simulated, "trusted_keys": keys, **compared}
        about |= {"log": None if logged is None else asdict(logged), "statement": statement}
        document.emit(document.single("ReceiptVerification", about), output)
    if simulated:
        human.warn("the GPU is simulated: the receipt claims nothing about hardware")
    return SIMULATED if simulated else DONE


def _is_simulated(statement: dict[str, Any]) -> bool:
    return statement["predicate"]["device"].get("simulated") is not None


def _trusted(keys: Files, site_keys: Files) -> list[bytes]:
    """The public keys in these files. A document that vouches for a key counts only if a site key signed it."""
    sites = [_read(each, key_file.public_key_of) for each in site_keys]
    return [_read(each, partial(_trusted_key, each, sites)) for each in keys]


def _trusted_key(file: Path, sites: Sequence[bytes], text: str) -> bytes:
    if not text.lstrip().startswith("{"):
        return key_file.public_key_of(text)
    if not sites:
        raise FatalError(
            f"cannot trust the key in {file}: only the key of its site shows that it is genuine",
            "name the key of the site with --site-key",
        )
    return endorsement.endorsed(text, sites)


def _read(file: Path, read: Callable[[str], Any], what: str = "key") -> Any:  # noqa: ANN401 - what ``read`` returns
    """What a file of the caller holds; FatalError names the file."""
    try:
        return read(_text(file))
    except ReceiptError as error:
        raise FatalError(f"cannot use the {what} in {file}: {error.message}", *error.remedies) from error


def _text(file: Path, most: int = OTHER) -> str:
    """The text of a file. Keys and checkpoints may come through a pipe; what others wrote must be a regular file."""
    try:
        if most == RECEIPT and not stat.S_ISREG(file.stat().st_mode):
            raise ReceiptError(f"{file} is not a regular file")
        with file.open("rb") as opened:
            content = opened.read(most + 1)
        if len(content) > most:
            raise ReceiptError(f"{file} has more than {most} bytes")
        return content.decode()
    except OSError as error:
        raise ReceiptError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ReceiptError(f"{file} is no text") from error


def _checked(
    statement: dict[str, Any], expected: Expected, logged: Logged | None, keys: Sequence[str], held: Sequence[str],
    kind: Kind,
) -> Iterator[str]:  # fmt: skip
    """One line for each thing that was checked, or was not."""
    predicate = statement["predicate"]
    yield f"signature   by {'one of ' if len(keys) > 1 else ''}{', '.join(keys)}"
    for name, value, given, flag in (
        ("gpu", predicate["device"]["uuid"], expected.gpu, "--gpu"),
        ("boot", predicate["boot"]["id"], expected.boot, "--boot"),
        ("hand-over", expected.handover or "not known", expected.handover, "--handover"),
    ):
        yield f"{name:11} {value}{'' if given else f' (not compared: {flag})'}"
    if logged is None:
        yield f"log         not checked: there is no {kind.files[1]} beside it"
        return
    yield f"log         row {logged.row} of {logged.rows} of {logged.origin}"
    advice = "yours has another size; `autoclave ledger verify` compares them" if held else "--checkpoint"
    compared = "the same was held elsewhere" if logged.compared else f"not compared with one of the same size: {advice}"
    yield f"checkpoint  {compared}"


def _words(statement: dict[str, Any]) -> Iterator[str]:
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
    what = "none, of a SIMULATED GPU:" if _is_simulated(statement) else f"{claim['category']} ({claim['standard']}) of"
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


def show(name: str, output: str, run_dir: Path, ledger: Path, kind: Kind) -> int:
    """Show a signed receipt of this node's ledger, by its id or its GPU; closing receipts also by their pod."""

    async def ask(admin: admin_client.AdminClient) -> list[Signed]:
        return await _signed(name, partial(admin.history, warn=human.warn), kind)

    try:
        found = service_call.ask(run_dir, ask)
    except Unreachable as error:
        found = asyncio.run(_signed(name, Offline(ledger, error).history, kind))
    for signed in found:
        keys, statement = signed.keys, signed.statement
        if output == "text":
            human.say(f"signed by   {', '.join(keys)} (not verified here)", *_words(statement), "", signed.envelope)
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

    Closing receipts also by the id with which the hand-over began, and by its tenant: one for each GPU.
    """
    found: dict[str, Signed] = {}
    if kind is CLOSINGS or ID.fullmatch(name):
        for entry in reversed(await history("", limit=EVERY, kinds=(kind.row,))):
            receipt, names = _about(entry, kind)
            if name in names and entry.device not in found:
                found[entry.device] = _opened(entry, receipt, kind)
    if found:
        return list(found.values())
    try:
        entries = [] if ID.fullmatch(name) else await history(name, limit=1, kinds=(kind.row,))
    except InvalidRequest as error:
        if error.reason is not Reason.UNKNOWN_DEVICE and kind is RECEIPTS:
            raise
        why = "it is neither the id of a receipt nor a GPU"
        if kind is CLOSINGS:
            why = "no hand-over of this id, tenant or GPU has ended and was wiped since"
        raise InvalidRequest(f"cannot find {kind.word} {name}: {why}", LISTS) from error
    if not entries:
        none = (
            "no hand-over of it has ended and was wiped since then"
            if kind is CLOSINGS
            else "the ledger does not have it"
        )
        raise InvalidRequest(f"cannot find {kind.word} {name}: {none}", LISTS)
    return [_opened(entries[-1], _about(entries[-1], kind)[0], kind)]


def _about(entry: views.HistoryEntry, kind: Kind) -> tuple[dict[str, Any], set[str]]:
    """The id and the document in a row, and what it can be found by."""
    body = json.loads(entry.body)
    if kind is RECEIPTS:
        return body["receipt"], {body["receipt"]["id"]}
    ended = body["ended"]
    names = {ended[name] for name in ("receipt", "container", "pod", "acquired_by")} - {None, ""}
    return {"id": ended["receipt"] or body["receipt"], "envelope": body["envelope"]}, names


def _opened(entry: views.HistoryEntry, receipt: dict[str, Any], kind: Kind) -> Signed:
    envelope = receipt.get("envelope", "")
    if not envelope:
        raise Refused(
            Reason.INTERNAL, f"cannot use {kind.word} {receipt['id']}: it is not signed", "`autoclave doctor` says why"
        )
    try:
        document_of = dsse.parsed(envelope)
        statement = json.loads(document_of.payload)
    except (ReceiptError, ValueError, RecursionError) as error:
        raise FatalError(
            f"cannot read {kind.word} {receipt['id']}: {error}", "`autoclave ledger verify` checks it"
        ) from error
    return Signed(receipt["id"], entry.seq, envelope, [key for key, _ in document_of.signatures], statement)


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
    handover = handover_id.found_handover(
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
