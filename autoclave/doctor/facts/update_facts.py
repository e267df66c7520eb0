"""Facts about an update: the ledger that an older version has left, and the policy and the values that come into force.

Nothing is written. What cannot be read is an error: an update that was not checked is not called safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ground import boot, errors, paths, private_files
from ground.documents.faults import DocumentError, DocumentFault, describe
from ground.errors import FatalError
from policies import load
from policies.policy_model import FenceMode, PolicySet
from scrubber.core.events import PolicyInForce
from scrubber.ledger.entry_queries import Window
from scrubber.ledger.ledger_files import LedgerPaths
from scrubber.ledger.ledger_rows import KINDS
from scrubber.ledger.reading import LedgerFile

Values = Mapping[str, Any]
ELSEWHERE = ("policy.existingConfigMap", "policy.byNodeLabel")  # values with a policy that the file does not have


@dataclass(frozen=True, slots=True)
class PolicyToCome:
    """The policy that this version would have in force, or why it refuses it."""

    source: str  # a file, a value of the chart, or the name of a shipped policy
    policies: PolicySet | None
    faults: tuple[DocumentFault, ...] = ()
    outdated: tuple[load.OutdatedField, ...] = ()
    elsewhere: tuple[str, ...] = ()  # the values with the policy of the node, which was not read


@dataclass(frozen=True, slots=True)
class Update:
    """All that is known before an update."""

    ledger: LedgerFile
    policy: PolicyToCome
    values: Values  # of the chart; empty if no file was named
    flags: Mapping[str, Collection[str]]  # those that programs of this version take, by the value that adds some
    boot_id: str  # of the machine on which the doctor runs
    uptime: float  # of the same
    fault: str | None  # why the service does not start with this state directory


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
    given = read_values(values) if values is not None else {}
    to_come = _policy(ledger, policy, given, str(values))
    return Update(ledger, to_come, given, flags, boot.boot_id(), boot.uptime(), _fault(state))


def _fault(state: Path | None) -> str | None:
    """Why the service refuses the directory, or a file of the ledger in it, and what to do."""
    if state is None:
        return None
    try:
        if why := private_files.directory_fault(state, private_files.NOT_TO_CHANGE):
            return errors.joined(why, private_files.MAKE_PRIVATE)
        LedgerPaths(paths.ledger(state)).check(private_files.demand_own)
    except private_files.ForeignFileError as error:
        return f"{error.filename}: {error.strerror}"
    except OSError as error:
        return f"{error.strerror}"
    return None


def read_values(path: Path) -> Values:
    """The values in a file for Helm, also of one without any; FatalError if it is none."""
    remedy = "name the file that Helm gets; `helm get values RELEASE -n NAMESPACE -o yaml` prints it"
    try:
        found = YAML(typ="safe", pure=True).load(path.read_text("utf-8-sig"))
    except OSError as error:
        raise FatalError(f"cannot read the values {path}: {error.strerror}", remedy) from error
    except UnicodeDecodeError as error:
        raise FatalError(f"cannot read the values {path}: it is not UTF-8 text", remedy) from error
    except (YAMLError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise FatalError(f"cannot read the values {path}: it is not YAML ({why})", remedy) from error
    if not isinstance(found, dict | None):
        raise FatalError(f"cannot read the values {path}: found {describe(found)}, expected a mapping", remedy)
    return found or {}


def former_values() -> Mapping[str, str]:
    """The values of older versions that change nothing any more, each with the reason."""
    text = resources.files("autoclave.doctor").joinpath("former_values.yaml").read_text("utf-8")
    former: Mapping[str, str] = YAML(typ="safe", pure=True).load(text)
    return former


def value_of(values: Values, name: str) -> Any:  # noqa: ANN401 - of any type
    """The value of a name such as ``policy.fence``; None if it is not given."""
    found: Any = values
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _policy(ledger: LedgerFile, named: str | None, values: Values, file: str) -> PolicyToCome:
    """The policy that was named, else that of the values, else the one that the node has in force."""
    elsewhere = tuple(name for name in ELSEWHERE if named is None and value_of(values, name))
    inline, shipped = value_of(values, "policy.inline"), value_of(values, "policy.shipped")
    kept = paths.last_policy(ledger.path.parent)
    if named is not None:
        found = _from_bytes(load.read(named), named) if named not in load.shipped() else _shipped(named)
    elif not elsewhere and isinstance(inline, str) and inline:
        found = _from_bytes(inline.encode(), f"{file}, policy.inline")
    elif not elsewhere and shipped in load.shipped():
        found = _shipped(shipped)
    elif kept.exists():
        found = _from_bytes(load.read(str(kept)), str(kept))
    else:
        found = _shipped(_last_name(ledger))
    return replace(_fenced(found, value_of(values, "policy.fence")), elsewhere=elsewhere)


def _from_bytes(text: bytes, source: str) -> PolicyToCome:
    try:
        return PolicyToCome(source, load.load_bytes(text, source), outdated=load.outdated(text, source))
    except DocumentError as error:
        return PolicyToCome(source, None, error.faults, _also_outdated(text, source, error.faults))


def _also_outdated(text: bytes, source: str, faults: tuple[DocumentFault, ...]) -> tuple[load.OutdatedField, ...]:
    """The fields of an older version in a file with faults, but for those that are faults."""
    places = {(fault.line, fault.column) for fault in faults}
    try:
        return tuple(field for field in load.outdated(text, source) if (field.line, field.column) not in places)
    except DocumentError:  # it is no text
        return ()


def _shipped(name: str) -> PolicyToCome:
    return PolicyToCome(name, load.load(name))


def _last_name(ledger: LedgerFile) -> str:
    """The shipped policy that was last in force, as the ledger says; ``default`` if it does not say."""
    kinds = Window(kinds=frozenset({KINDS[PolicyInForce]}))
    names = [
        entry.event.name
        for entry in asyncio.run(ledger.history(None, None, 1, kinds)).entries
        if isinstance(entry.event, PolicyInForce)
    ]
    receipts = [record.scrubs.receipt for record in ledger.records.values() if record.scrubs.receipt is not None]
    newest = sorted(receipts, key=lambda receipt: receipt.finished.wall)  # format 3 has no row of the policy
    names += [receipt.policy.partition("/")[0] for receipt in reversed(newest)]
    return next((name for name in names if name in load.shipped()), "default")


def _fenced(policy: PolicyToCome, mode: object) -> PolicyToCome:
    """With the fence that the values choose instead of the policy's."""
    if policy.policies is None or mode not in {each.value for each in FenceMode}:
        return policy
    return replace(policy, policies=policy.policies.fenced(FenceMode(mode)))
