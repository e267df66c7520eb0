"""Verify a receipt as others do: who signed it, what it is for, and that the log of the node has it. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ground.public_names import CLOSING_TYPE, PREDICATE_TYPE
from ground.quantities import quantity
from scrubber.receipts import dsse, merkle, note
from scrubber.receipts.key import ReceiptError
from scrubber.receipts.note import Checkpoint
from scrubber.receipts.statement import HANDOVER, STATEMENT_TYPE, handover_digest

ROW_HASH = 64  # characters


@dataclass(frozen=True, slots=True)
class Expected:
    """What the receipt must be for. An empty value is not compared."""

    gpu: str = ""
    boot: str = ""
    handover: str = ""


@dataclass(frozen=True, slots=True)
class Logged:
    """Where the node's log has the receipt."""

    origin: str
    row: int
    rows: int  # of the log, by the checkpoint that came with the receipt
    compared: bool  # with a checkpoint of the same size from elsewhere


KINDS = {PREDICATE_TYPE: "a receipt", CLOSING_TYPE: "a closing receipt"}


def statement(
    envelope: str, keys: Collection[bytes], expected: Expected, kind: str = PREDICATE_TYPE
) -> dict[str, Any]:  # fmt: skip
    """The statement of a receipt, once one of the keys has signed it for this; ReceiptError names the wrong field.

    ``kind``: its predicate type.
    """
    payload = dsse.opened(envelope, keys)
    try:
        content: dict[str, Any] = json.loads(payload)
        types = (content.get("_type"), content.get("predicateType"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise ReceiptError("the type cannot be read: the payload is not a JSON object") from error
    if types != (STATEMENT_TYPE, kind):
        why = f"the type is {types[0]} with {types[1]}: this is not {KINDS[kind]} of version 1"
        closing = kind == PREDICATE_TYPE and types[1] == CLOSING_TYPE
        raise ReceiptError(why, *(["it is a closing receipt: give --closing"] if closing else []))
    try:
        gpu, boot = content["predicate"]["device"]["uuid"], content["predicate"]["boot"]["id"]
        subjects = [each["digest"]["sha256"] for each in content["subject"] if each["name"] == HANDOVER]
    except KeyError as error:
        raise ReceiptError(f"the statement has no field {error.args[0]}") from error
    except TypeError as error:
        raise ReceiptError("the statement has a field predicate or subject of another kind") from error
    if expected.gpu not in ("", gpu):
        raise ReceiptError(f"the gpu is wrong: the receipt is for {gpu}, not for {expected.gpu}")
    if expected.boot not in ("", boot):
        raise ReceiptError(f"the boot is wrong: the receipt is of boot {boot}, not of {expected.boot}")
    if expected.handover and subjects != [handover_digest(gpu, boot, expected.handover)]:
        raise ReceiptError(
            f"the hand-over is wrong: the receipt is for another one than {expected.handover}, such as an older one",
            "of a renamed copy, give the id with --handover",
        )
    return content


def logged(envelope: str, proof: str, keys: Collection[bytes], held: Sequence[str] = ()) -> Logged:
    """Where the log has the receipt, by the proof beside it; ReceiptError names what is wrong.

    ``held``: signed checkpoints of the same log from elsewhere. They must agree, and one must be younger.
    """
    given = note.parse_proof(proof)
    checkpoint = note.opened(given.checkpoint, keys)
    if given.index >= checkpoint.size:
        raise ReceiptError(f"the checkpoint has {quantity(checkpoint.size, 'row')}: it was made before the receipt")
    row_hash = given.extra.decode("ascii", errors="replace")
    leaf = merkle.leaf_of_row(row_hash, envelope)
    leads_to = merkle.root_above(given.index, checkpoint.size, leaf, given.hashes)
    if len(row_hash) != ROW_HASH or leads_to != checkpoint.root:
        raise ReceiptError("the proof does not lead from this receipt to its checkpoint: the log does not contain it")
    others = _of_log(checkpoint.origin, held, keys)
    for other in others:
        if other.size == checkpoint.size and other.root != checkpoint.root:
            raise ReceiptError("the checkpoint that you hold has another root: the node has shown two histories")
    newest = max((other.size for other in others), default=None)
    if newest is not None and given.index >= newest:
        raise ReceiptError(
            f"the checkpoint that you hold has {quantity(newest, 'row')}: it was made before the receipt"
        )
    same = any(other.size == checkpoint.size for other in others)
    return Logged(checkpoint.origin, given.index + 1, checkpoint.size, compared=same)


def _of_log(origin: str, held: Sequence[str], keys: Collection[bytes]) -> list[Checkpoint]:
    """Those of one log. Of several, those of other nodes, by other keys, or that are no checkpoints do not count."""
    checkpoints: list[Checkpoint] = []
    for each in held:
        with suppress(*([ReceiptError] if len(held) > 1 else [])):
            checkpoints.append(note.opened(each, keys))
    ours = [each for each in checkpoints if each.origin == origin]
    if held and not ours:
        others = ", ".join(sorted({each.origin for each in checkpoints})) or "no log that a given key has signed"
        raise ReceiptError(f"the checkpoint that you hold is of {others}, not of {origin}")
    return ours
