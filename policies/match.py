"""Which rule applies to a device, and which rules never do. Pure: the same set and device give the same result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from policies.policy_model import Match, Policy, PolicySet

DEFAULTS = "defaults"
_WILD = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Subject:
    """The properties of a device that a rule can test."""

    uuid: str
    index: int
    model: str
    mig: bool
    resource: str


@dataclass(frozen=True, slots=True)
class Matched:
    """The policy in force for a device, the rule that it comes from, and a sentence that explains it."""

    policy: Policy
    rule: str
    why: str


def resolve(policy_set: PolicySet, subject: Subject) -> Matched:
    """The policy of the first rule that matches, or ``defaults``."""
    for rule in policy_set.rules:
        clauses = list(_clauses(rule.match, subject))
        held = [clause for clause in clauses if clause is not None]
        if held == clauses:
            why = " and ".join(held) or "the rule matches every device"
            return Matched(rule.policy, rule.name, f"rule {rule.name}: {why}")
    why = "no rule matches" if policy_set.rules else "the policy has no rules"
    return Matched(policy_set.defaults, DEFAULTS, f"the {DEFAULTS}, because {why}")


def unreachable(matches: Sequence[Match]) -> Iterator[tuple[int, int]]:
    """Rules that never apply, each with an earlier rule that matches all their devices."""
    for later, match in enumerate(matches):
        earlier = next((index for index in range(later) if _covers(matches[index], match)), None)
        if earlier is not None:
            yield later, earlier


def _clauses(match: Match, subject: Subject) -> Iterator[str | None]:
    """One clause for each condition: why it holds, or None if it does not."""
    if match.model is not None:
        yield _fits("model", subject.model, match.model)
    if match.mig is not None:
        yield f"it is {'' if subject.mig else 'not '}a MIG device" if match.mig is subject.mig else None
    if match.resource is not None:
        yield _fits("resource", subject.resource, match.resource)
    if match.gpu is not None:
        yield next((clause for entry in match.gpu if (clause := _gpu_clause(entry, subject))), None)


def _fits(name: str, value: str, pattern: str) -> str | None:
    return f'{name} "{value}" matches "{pattern}"' if fnmatchcase(value, pattern) else None


def _gpu_clause(entry: int | str, subject: Subject) -> str | None:
    match entry:
        case int():
            return f"its index is {entry}" if entry == subject.index else None
        case str():
            return f'UUID "{subject.uuid}" begins with "{entry}"' if subject.uuid.startswith(entry) else None


def _covers(earlier: Match, later: Match) -> bool:
    """Whether the earlier rule surely matches every device of the later one. If unsure, False."""
    return (
        _glob_covers(earlier.model, later.model)
        and earlier.mig in (None, later.mig)
        and _glob_covers(earlier.resource, later.resource)
        and _gpu_covers(earlier.gpu, later.gpu)
    )


def _glob_covers(earlier: str | None, later: str | None) -> bool:
    if earlier in (None, "*", later):
        return True
    return later is not None and not _WILD & set(later) and fnmatchcase(later, earlier)


def _gpu_covers(earlier: tuple[int | str, ...] | None, later: tuple[int | str, ...] | None) -> bool:
    if earlier is None or later is None:
        return earlier is None
    return all(any(_entry_covers(wide, narrow) for wide in earlier) for narrow in later)


def _entry_covers(wide: int | str, narrow: int | str) -> bool:
    return narrow.startswith(wide) if isinstance(wide, str) and isinstance(narrow, str) else wide == narrow
