"""Facts about a state directory: whether a service of this user can use its ledger, and sign with its key."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autoclave.doctor.facts import posture
from autoclave.doctor.node_facts import CheckFault, Room
from ground import errors, paths, private_files
from scrubber.ledger.ledger_files import LedgerPaths
from scrubber.receipts import key
from scrubber.receipts.key import ReceiptError


@dataclass(frozen=True, slots=True)
class StateFault:
    """Why the service cannot use its state directory, and what to do."""

    why: str
    starts: bool = False  # but it hands out no GPU


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """What a service of this user finds there."""

    path: Path
    room: Room | CheckFault
    owner: int
    user: int  # of this check. If it is not the owner, the next two say nothing
    fault: StateFault | None
    keys: Sequence[str] | CheckFault  # the ids of the key of receipts and, after a rotation, of the next one
    key_folder: Path


def look(state: Path) -> StateDirectory:
    """The state directory. OSError if it cannot be reached."""
    room, owner, user = posture.room_in(str(state)), state.lstat().st_uid, os.geteuid()
    fault, keys = (_fault(state), _keys(state)) if owner == user else (None, ())
    return StateDirectory(state, room, owner, user, fault, keys, paths.receipt_key(state))


def _fault(state: Path) -> StateFault | None:
    ledger = LedgerPaths(paths.ledger(state))
    try:
        if why := private_files.directory_fault(state, private_files.NOT_TO_CHANGE):
            return StateFault(f"the state directory {state}: {errors.joined(why, private_files.MAKE_PRIVATE)}")
        ledger.check(private_files.demand_own)
        private_files.demand_own(ledger.lock)
    except private_files.ForeignFileError as error:
        return StateFault(f"{error.filename}: {error.strerror}", starts=True)
    except OSError as error:
        return StateFault(f"{error.filename}: {error.strerror}")
    return None


def _keys(state: Path) -> Sequence[str] | CheckFault:
    folder = paths.receipt_key(state)
    if key.can_sign() and not folder.is_symlink() and not folder.exists():
        return CheckFault(f"{folder} is missing, so the service makes a new key", absent=True)
    try:
        present = key.read_key(state)
    except ReceiptError as error:
        return CheckFault(error.message, absent=not key.can_sign(), remedy=errors.joined(*error.remedies))
    except ImportError as error:  # a part of ``cryptography`` is missing
        return CheckFault(str(error))
    return [each.key_id for each in (present, present.next) if each is not None]
