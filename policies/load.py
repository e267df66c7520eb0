"""Read a policy file: the result is a policy set, or all faults of the file.

The ``policy`` of a rule lists the differences from ``defaults``. It is merged over ``defaults`` and then checked, so
that an invalid combination of values is found and reported at the rule.

A file without faults may get warnings: it says something that it probably does not mean. A service takes such a file.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ground import pod_groups
from ground.documents import validation, yaml_tree
from ground.documents.faults import DocumentError, DocumentFault, Loc, path, quote
from policies import match
from policies.policy_model import MOST_RULES, Match, Policy, PolicySet

LARGEST = 256 * 1024  # bytes; the longest shipped policy has less than 20 KiB

_INTERPRETER = re.compile(
    r"(|ba|da|a|z|k|mk|c|tc|fi)sh|busybox|env|(python|perl|ruby|lua|php|tclsh|pypy)[0-9.]*|node|nodejs|java|luajit|Rscript"
)
_SHIPPED = Policy().evict


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyWarning:
    """Where a file without faults may not do what was meant. Lines and columns begin at 1."""

    source: str
    line: int
    column: int
    path: str
    text: str  # about the path, as the rest of a sentence that begins with it

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}: {self.path} {self.text}"


def load(name_or_path: str) -> PolicySet:
    """The policy set of a shipped name such as ``default``, or of a file."""
    if name_or_path in shipped():
        return load_text(read_shipped(name_or_path), f"{name_or_path}.yaml")
    return load_bytes(read(name_or_path), name_or_path)


def shipped() -> tuple[str, ...]:
    """The names of the shipped policies."""
    files = (entry.name for entry in resources.files("policies").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def read_shipped(name: str) -> str:
    """The text of a shipped policy with its comments."""
    return resources.files("policies").joinpath(f"{name}.yaml").read_text("utf-8")


def schema() -> str:
    """The JSON Schema of a policy file, for editors."""
    return resources.files("policies").joinpath("schema.json").read_text("utf-8")


def load_bytes(data: bytes, source: str) -> PolicySet:
    """The policy set of a file with this content."""
    return load_text(decoded(data, source), source)


def load_text(text: str, source: str) -> PolicySet:
    """Read all policies from a text. Raises DocumentError with all faults."""
    root, faults = yaml_tree.parse(text, source)
    policies = dict(policies_of(root.plain()))
    problems = [*_problems(root, policies), *_clashes(root)]
    if faults or problems:
        raise DocumentError(*faults, *(problem.fault(root, source) for problem in problems))
    return validation.build(PolicySet, _with(root, policies))


def read(name: str) -> bytes:
    """The content of a policy file; DocumentError if it cannot be read."""
    expected = f"a policy file or one of {', '.join(shipped())}"
    try:
        with Path(name).open("rb") as file:
            return file.read(LARGEST + 1)
    except FileNotFoundError:
        raise DocumentError(DocumentFault(name, 1, 1, "", "no such file", expected)) from None
    except (OSError, ValueError) as error:  # ValueError: an invalid file name
        why = error.strerror if isinstance(error, OSError) else error
        raise DocumentError(DocumentFault(name, 1, 1, "", f"a file that cannot be read ({why})", expected)) from error


def decoded(data: bytes, name: str) -> str:
    """The text of a file; DocumentError if it is none."""
    if len(data) > LARGEST:
        raise DocumentError(DocumentFault(name, 1, 1, "", "a larger file", f"at most {LARGEST // 1024}KiB"))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise DocumentError(
            DocumentFault(name, line, column, "", f"the byte {data[error.start]:#04x}", "UTF-8 text")
        ) from error


def policies_of(document: object) -> Iterator[tuple[Loc, object]]:
    """Every policy of a document after the merge, with its location."""
    defaults = document.get("defaults") if isinstance(document, dict) else None
    if isinstance(defaults, dict):
        yield ("defaults",), defaults
    for index, rule in enumerate(_rules(document)):
        if isinstance(rule.get("policy"), dict):
            yield ("rules", index, "policy"), _merge(defaults, rule["policy"])


def _merge(base: object, over: object) -> object:
    """Merge mappings key by key. Any other value, also a list, replaces the old value."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {**base, **{key: _merge(base.get(key), value) for key, value in over.items()}}


def _problems(root: yaml_tree.YamlNode, policies: Mapping[Loc, object]) -> Iterator[validation.Problem]:
    """The problems of the file, then of each policy. A rule is not blamed for what it inherits."""
    frame = validation.problems(PolicySet, _with(root, {loc: {} for loc in policies}))
    inside = (problem.under(loc) for loc, policy in policies.items() for problem in validation.problems(Policy, policy))
    for problem in (*frame, *(problem for problem in inside if _stands_in(root, problem))):
        node = root.find(problem.loc)
        if node is None or node.value is not None:  # the tree has reported a key without a value
            yield problem


def _stands_in(root: yaml_tree.YamlNode, problem: validation.Problem) -> bool:
    """Whether a problem is about something that the rule contains, or about a key that the rule lacks."""
    return any(map(root.find, problem.places)) or (problem.missing and root.find(problem.loc[:-1]) is not None)


def _clashes(root: yaml_tree.YamlNode) -> Iterator[validation.Problem]:
    """Conflicts between rules: a duplicate name, or a rule that never applies."""
    rules = list(enumerate(_rules(root.plain())))
    names = {match.DEFAULTS}
    for index, rule in rules:
        name = rule.get("name")
        if isinstance(name, str):
            if name in names:
                expected = f"a name that neither another rule nor {match.DEFAULTS} has"
                yield validation.Problem(("rules", index, "name"), f"the name {quote(name)} again", expected)
            names.add(name)
    readable = [
        (index, validation.build(Match, rule["match"]))
        for index, rule in rules
        if "match" in rule and not validation.problems(Match, rule["match"])
    ]
    for later, earlier in match.unreachable([matches for _, matches in readable]):
        name = rules[readable[earlier][0]][1].get("name")
        expected = f"devices that the earlier rule {name} does not match"
        yield validation.Problem(("rules", readable[later][0], "match"), "a rule that never applies", expected)


def _rules(document: object) -> Iterator[dict[str, Any]]:
    """The rules as written. An entry that is not a mapping becomes an empty mapping, so that the numbers stay."""
    rules = document.get("rules") if isinstance(document, dict) else None
    for rule in rules[:MOST_RULES] if isinstance(rules, list) else ():
        yield rule if isinstance(rule, dict) else {}


def _with(root: yaml_tree.YamlNode, policies: Mapping[Loc, object]) -> object:
    """The document with these policies in place of its own."""
    document: Any = root.plain()
    for (*way, last), policy in policies.items():
        functools.reduce(operator.getitem, way, document)[last] = policy
    return document


def is_interpreter(exe: str) -> bool:
    """Whether a program runs whatever file it is given, such as a shell: its path stands for every script."""
    return _INTERPRETER.fullmatch(exe.rpartition("/")[2]) is not None


def warnings_of(data: bytes, source: str) -> tuple[PolicyWarning, ...]:
    """All warnings about a file without faults, in its order."""
    root, _ = yaml_tree.parse(decoded(data, source), source)
    warnings = list[PolicyWarning]()
    for where, policy in policies_of(root.plain()):
        for loc, text in _about(root, where, policy if isinstance(policy, dict) else {}):
            place = root.nearest(loc).key
            warnings.append(PolicyWarning(source, place.line, place.column, path(loc), text))
    return tuple(sorted(warnings, key=lambda warning: (warning.line, warning.column)))


def _about(root: yaml_tree.YamlNode, where: Loc, policy: dict[str, Any]) -> Iterator[tuple[Loc, str]]:
    for name in ("operator_namespaces", "bystanders"):
        loc = (*where, "evict", name)
        if root.find(loc) is not None:
            own, shipped = [entry for _, entry in _entries(root, loc)], getattr(_SHIPPED, name)
            lacking = [entry for entry in shipped if entry not in own]
            if lacking and not {*own} <= {*shipped}:  # who only takes entries out wants them out
                names = ", ".join(lacking)
                yield loc, f"takes the place of the shipped list, and lacks {names}: add those that run on your nodes"
    evict = policy.get("evict") or {}
    namespaces = evict.get("operator_namespaces", _SHIPPED.operator_namespaces)
    for loc, entry in _entries(root, (*where, "evict", "bystanders")):
        namespace, colon, _ = entry.partition(":/")
        if is_interpreter(entry) and not colon:
            text = f"is {entry}, so each script that root runs is a bystander: run yours with a copy of {entry} under "
            yield loc, f"{text}another name, and list that"
        if colon and namespace not in namespaces:
            text = f"is {entry}, but {namespace} is not in evict.operator_namespaces, so the fence keeps its pods off: "
            text += "add it there, unless --operator-namespace (policy.operatorNamespaces of the chart) names it"
            yield loc, text
    for loc, unit in _entries(root, (*where, "fence", "exempt", "units")):
        if unit == "-.slice" or pod_groups.holds_pods(unit if unit.startswith("/") else f"/{unit}"):
            yield loc, f"is {unit}, which holds the pods too, so it exempts nobody: name the units that need GPUs"


def _entries(root: yaml_tree.YamlNode, loc: Loc) -> Iterator[tuple[Loc, str]]:
    """The entries of a list that stands in the file, with their places."""
    node = root.find(loc)
    entries = node.plain() if node is not None else ()
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        yield (*loc, index), str(entry)
