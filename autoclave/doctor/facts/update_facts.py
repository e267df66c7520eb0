"""Facts about an update: the ledger that an older version has left, and the policy and the values that come into force.

Nothing is written. What cannot be read is an error: an update that was not checked is not called safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from autoclave.doctor.facts import chart_values, state_directory
from autoclave.doctor.facts.chart_values import Values, value_of
from autoclave.doctor.facts.state_directory import StateDirectory
from ground import boot, paths, private_files
from ground.documents.faults import DocumentError, DocumentFault
from policies import load
from policies.policy_model import PolicySet
from policies.values import FenceMode
from scrubber.core.events import PolicyInForce
from scrubber.ledger.entry_queries import Window
from scrubber.ledger.ledger_rows import KINDS
from scrubber.ledger.reading import LedgerFile
from scrubber.policy import digest_of

ELSEWHERE = ("policy.existingConfigMap", "policy.byNodeLabel")  # values with a policy that the file does not have
IN_PODS = "/etc/autoclave/policy"  # where the chart mounts the policy
OF_CHART = "default"  # the policy that the chart takes if the values choose none


class Choice(Enum):
    """What chooses the policy that comes into force."""

    NAMED = "a flag or the values"
    CHART = "the chart, because the values choose none"
    LAST = "the node, which keeps its last one"


@dataclass(frozen=True, slots=True)
class PolicyAsRead:
    """A policy as this version reads it."""

    source: str  # a file, a value of the chart, or a name
    policies: PolicySet | None  # None: it has faults, or was not read
    faults: tuple[DocumentFault, ...] = ()
    place: str = ""  # the policy file of the service; empty if it has none, or if that is not known
    unread: str = ""  # why it was not read


@dataclass(frozen=True, slots=True)
class Update:
    """All that is known before an update."""

    ledger: LedgerFile
    signed_by: str  # the id of the key that signed the receipts in it; empty if none did
    state: StateDirectory | None  # None if a ledger alone was named
    policy: PolicyAsRead  # which comes into force
    choice: Choice
    unread: tuple[str, ...]  # the values with the policy of the node, which was not read
    last: PolicyAsRead  # which was last in force on the node, with this version's meaning of each field
    fence_known: bool  # whether it has the fence of the last service, which a flag may have chosen
    values: Values  # of the chart; empty if no file was named
    flags: Mapping[str, Collection[str]]  # those that programs of this version take, by the value that adds some
    boot_id: str  # of the machine on which the doctor runs
    uptime: float  # of the same


def gather(
    ledger: LedgerFile,
    state: Path | None,
    policy: str | None,
    values: Path | None,
    flags: Mapping[str, Collection[str]],
) -> Update:
    """What is known before an update. FatalError or DocumentError if a file that was named cannot be read.

    ``state``: None if a ledger alone was named, such as a copy. ``policy``: a file or a shipped name; None if none was
    named: then it is that of the values and the chart, or without values the last one of the node.
    """
    given = chart_values.read_values(values) if values is not None else {}
    unread, written = _unread(policy, given), _last(ledger)
    in_force = _as_in_force(written, ledger)
    if policy is not None:
        choice, chosen = Choice.NAMED, _named(policy)
    elif values is None:
        choice, chosen = Choice.LAST, in_force or written
    elif unread:
        choice, chosen = Choice.LAST, written  # the values say which fence replaces that of the policy, if any
    else:
        choice, chosen = _of_values(given, str(values))
    return Update(
        ledger,
        ledger.signed_by(),
        state_directory.look(state) if state is not None else None,
        _fenced(chosen, value_of(given, "policy.fence")),
        choice,
        unread,
        in_force or written,
        in_force is not None,
        given,
        flags,
        boot.boot_id(),
        boot.uptime(),
    )


def _unread(named: str | None, values: Values) -> tuple[str, ...]:
    """The names of values that choose a policy from elsewhere, or a policy that does not exist."""
    if named is not None:
        return ()
    elsewhere = tuple(name for name in ELSEWHERE if value_of(values, name))
    shipped = value_of(values, "policy.shipped")
    unknown = shipped is not None and shipped not in load.shipped() and not value_of(values, "policy.inline")
    return (*elsewhere, "policy.shipped") if unknown else elsewhere


def _named(policy: str) -> PolicyAsRead:
    return _shipped(policy) if policy in load.shipped() else _from_bytes(load.read(policy), policy)


def _of_values(values: Values, file: str) -> tuple[Choice, PolicyAsRead]:
    inline, shipped = value_of(values, "policy.inline"), value_of(values, "policy.shipped")
    if isinstance(inline, str) and inline:
        place = f"{IN_PODS}/{value_of(values, 'policy.key') or 'policy.yaml'}"
        return Choice.NAMED, replace(_from_bytes(inline.encode(), f"{file}, policy.inline"), place=place)
    return (Choice.CHART, _shipped(OF_CHART)) if shipped is None else (Choice.NAMED, _shipped(shipped))


def _from_bytes(text: bytes, source: str) -> PolicyAsRead:
    try:
        return PolicyAsRead(source, load.load_bytes(text, source))
    except DocumentError as error:
        return PolicyAsRead(source, None, error.faults)


def _shipped(name: str) -> PolicyAsRead:
    return PolicyAsRead(name, load.load(name))


def _last(ledger: LedgerFile) -> PolicyAsRead:
    """The policy that the service has kept, as it does of a file; else the shipped one that the ledger names."""
    kept = paths.last_policy(ledger.path.parent)
    if not kept.exists():
        name, _ = _last_in_force(ledger)
        return _shipped(name) if name in load.shipped() else PolicyAsRead(name, None, unread="is not in its state")
    try:
        text = private_files.content(kept)  # the service trusts no file that another user could have written
    except OSError as error:
        return PolicyAsRead(str(kept), None, unread=f"cannot be read ({error.strerror})")
    first, _, rest = text.partition(b"\n")
    if not first.startswith(b"# "):
        alone = _from_bytes(text, str(kept))
        return alone if alone.policies else PolicyAsRead(str(kept), None, unread="is damaged")
    file = first[2:].decode(errors="replace")  # of which it is a copy
    return replace(_from_bytes(rest, file), place=file)  # without the first line: faults name the lines of that file


def _as_in_force(last: PolicyAsRead, ledger: LedgerFile) -> PolicyAsRead | None:
    """With the fence of the last service. None if the digest in the ledger tells none: an older version had others."""
    _, digest = _last_in_force(ledger)
    for mode in (None, *FenceMode):
        fenced = _fenced(last, mode)
        if fenced.policies is not None and digest_of(fenced.policies) == digest:
            return fenced
    return None


def _last_in_force(ledger: LedgerFile) -> tuple[str, str]:
    """The name and the digest of the policy that was last in force, as the ledger says; empty if it does not say."""
    kinds = Window(kinds=frozenset({KINDS[PolicyInForce]}))
    for entry in asyncio.run(ledger.history(None, None, 1, kinds)).entries:
        if isinstance(entry.event, PolicyInForce):
            return entry.event.name, entry.event.digest
    receipts = [record.scrubs.receipt for record in ledger.records.values() if record.scrubs.receipt is not None]
    newest = max(receipts, key=lambda receipt: receipt.finished.wall, default=None)  # format 3 has no row of the policy
    return ("" if newest is None else newest.policy.partition("/")[0]), ""


def _fenced(policy: PolicyAsRead, mode: object) -> PolicyAsRead:
    """With this fence instead of the policy's, as the values or a flag choose it."""
    if policy.policies is None or mode not in {each.value for each in FenceMode}:
        return policy
    return replace(policy, policies=policy.policies.fenced(FenceMode(mode)))
