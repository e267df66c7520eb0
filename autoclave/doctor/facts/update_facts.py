"""Facts about an update: the ledger that an older version has left, and the policy and the values that come into force.

Nothing is written. What cannot be read is an error: an update that was not checked is not called safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from autoclave.doctor.facts import chart_values, posture
from autoclave.doctor.facts.chart_values import Values, value_of
from autoclave.doctor.node_facts import CheckFault, Room
from ground import boot, errors, paths, private_files
from ground.documents.faults import DocumentError, DocumentFault
from policies import load
from policies.policy_model import FenceMode, PolicySet
from scrubber.core.events import PolicyInForce
from scrubber.ledger.entry_queries import Window
from scrubber.ledger.ledger_files import LedgerPaths
from scrubber.ledger.ledger_rows import KINDS
from scrubber.ledger.reading import LedgerFile
from scrubber.policy import digest_of
from scrubber.receipts.key import KEY

ELSEWHERE = ("policy.existingConfigMap", "policy.byNodeLabel")  # values with a policy that the file does not have
IN_PODS = "/etc/autoclave/policy"  # where the chart mounts the policy


@dataclass(frozen=True, slots=True)
class PolicyAsRead:
    """A policy as this version reads it."""

    source: str  # a file, a value of the chart, or a name
    policies: PolicySet | None  # None: it has faults, or was not found
    faults: tuple[DocumentFault, ...] = ()
    outdated: tuple[load.PolicyWarning, ...] = ()
    place: str = ""  # the path of the file for the service, if that is known


@dataclass(frozen=True, slots=True)
class LastPolicy(PolicyAsRead):
    """The policy that was last in force on the node, with this version's meaning of each field."""

    copied_from: str = ""  # the policy file of the service, of which this one is a copy; empty if it is of none
    with_fence: bool = False  # whether it has the fence of the last service, which a flag may have chosen


@dataclass(frozen=True, slots=True)
class StateFault:
    """Why the service cannot use its state directory, and what to do."""

    why: str
    starts: bool = False  # but it hands out no GPU


@dataclass(frozen=True, slots=True)
class Update:
    """All that is known before an update."""

    ledger: LedgerFile
    policy: PolicyAsRead  # which comes into force
    unread: tuple[str, ...]  # the values with the policy of the node, which was not read
    last: LastPolicy
    values: Values  # of the chart; empty if no file was named
    flags: Mapping[str, Collection[str]]  # those that programs of this version take, by the value that adds some
    boot_id: str  # of the machine on which the doctor runs
    uptime: float  # of the same
    fault: StateFault | None
    key_missing: str  # the file of the key of receipts, if it does not exist
    room: Room | CheckFault | None  # in it; None if a ledger alone was named


def gather(
    ledger: LedgerFile,
    state: Path | None,
    policy: str | None,
    values: Path | None,
    flags: Mapping[str, Collection[str]],
) -> Update:
    """What is known before an update. FatalError or DocumentError if a file that was named cannot be read.

    ``state``: None if a ledger alone was named, such as a copy. ``policy``: a file or a shipped name; None if none was
    named: then it is that of the values, or the last one of the node.
    """
    given = chart_values.read_values(values) if values is not None else {}
    unread, written = _unread(policy, given), _last(ledger)
    last = _with_fence(written, ledger)
    kept = last if values is None else written  # the values say which fence replaces that of the policy, if any
    next_one = _fenced(_policy_to_come(policy, given, str(values), unread) or kept, value_of(given, "policy.fence"))
    here = boot.boot_id(), boot.uptime()
    room = posture.room_in(str(state)) if state is not None else None
    key = paths.receipt_key(state) / KEY if state is not None else None
    missing = str(key) if key is not None and not key.exists() else ""
    return Update(ledger, next_one, unread, last, given, flags, *here, _fault(state), missing, room)


def _fault(state: Path | None) -> StateFault | None:
    if state is None:
        return None
    try:
        if why := private_files.directory_fault(state, private_files.NOT_TO_CHANGE):
            return StateFault(errors.joined(why, private_files.MAKE_PRIVATE))
        LedgerPaths(paths.ledger(state)).check(private_files.demand_own)
    except private_files.ForeignFileError as error:
        return StateFault(f"{error.filename}: {error.strerror}", starts=True)
    except OSError as error:
        return StateFault(f"{error.strerror}")
    return None


def _unread(named: str | None, values: Values) -> tuple[str, ...]:
    """The names of values that choose a policy from elsewhere, or a policy that does not exist."""
    if named is not None:
        return ()
    elsewhere = tuple(name for name in ELSEWHERE if value_of(values, name))
    shipped = value_of(values, "policy.shipped")
    unknown = shipped is not None and shipped not in load.shipped() and not value_of(values, "policy.inline")
    return (*elsewhere, "policy.shipped") if unknown else elsewhere


def _policy_to_come(named: str | None, values: Values, file: str, unread: tuple[str, ...]) -> PolicyAsRead | None:
    """The policy that was named, else that of the values; None if the node keeps the last one."""
    inline, shipped = value_of(values, "policy.inline"), value_of(values, "policy.shipped")
    if named is not None:
        return _shipped(named) if named in load.shipped() else _from_bytes(load.read(named), named)
    if unread:
        return None
    if isinstance(inline, str) and inline:
        place = f"{IN_PODS}/{value_of(values, 'policy.key') or 'policy.yaml'}"
        return replace(_from_bytes(inline.encode(), f"{file}, policy.inline"), place=place)
    return _shipped(shipped) if shipped is not None else None


def _from_bytes(text: bytes, source: str) -> PolicyAsRead:
    try:
        return PolicyAsRead(source, load.load_bytes(text, source), outdated=load.outdated(text, source))
    except DocumentError as error:
        return PolicyAsRead(source, None, error.faults, _also_outdated(text, source, error.faults))


def _also_outdated(text: bytes, source: str, faults: tuple[DocumentFault, ...]) -> tuple[load.PolicyWarning, ...]:
    """The fields of an older version in a file with faults, but for those that are faults."""
    places = {(fault.line, fault.column) for fault in faults}
    try:
        return tuple(field for field in load.outdated(text, source) if (field.line, field.column) not in places)
    except DocumentError:  # it is not text
        return ()


def _shipped(name: str) -> PolicyAsRead:
    return PolicyAsRead(name, load.load(name))


def _last(ledger: LedgerFile) -> LastPolicy:
    """The policy that the service has kept, as it does of a file; else the shipped one that the ledger names."""
    kept = paths.last_policy(ledger.path.parent)
    name, _ = _last_in_force(ledger)
    if kept.exists():
        text = load.read(str(kept))
        first, _, rest = text.partition(b"\n")
        copied_from = first[2:].decode(errors="replace") if first.startswith(b"# ") else ""
        # without the first line, so that faults name the lines of that file
        found = _from_bytes(rest, copied_from) if copied_from else _from_bytes(text, str(kept))
    else:
        found, copied_from = _shipped(name) if name in load.shipped() else PolicyAsRead(name, None), ""
    return LastPolicy(found.source, found.policies, found.faults, found.outdated, copied_from, copied_from)


def _with_fence(last: LastPolicy, ledger: LedgerFile) -> LastPolicy:
    """With the fence of the last service, if the digest in the ledger tells it: an older version had other digests."""
    _, digest = _last_in_force(ledger)
    for mode in (None, *FenceMode):
        fenced = _fenced(last, mode)
        if fenced.policies is not None and digest_of(fenced.policies) == digest:
            return replace(fenced, with_fence=True)
    return last


def _last_in_force(ledger: LedgerFile) -> tuple[str, str]:
    """The name and the digest of the policy that was last in force, as the ledger says; empty if it does not say."""
    kinds = Window(kinds=frozenset({KINDS[PolicyInForce]}))
    for entry in asyncio.run(ledger.history(None, None, 1, kinds)).entries:
        if isinstance(entry.event, PolicyInForce):
            return entry.event.name, entry.event.digest
    receipts = [record.scrubs.receipt for record in ledger.records.values() if record.scrubs.receipt is not None]
    newest = max(receipts, key=lambda receipt: receipt.finished.wall, default=None)  # format 3 has no row of the policy
    return ("" if newest is None else newest.policy.partition("/")[0]), ""


P = TypeVar("P", bound=PolicyAsRead)


def _fenced(policy: P, mode: object) -> P:
    """With this fence instead of the policy's, as the values or a flag choose it."""
    if policy.policies is None or mode not in {each.value for each in FenceMode}:
        return policy
    return replace(policy, policies=policy.policies.fenced(FenceMode(mode)))
