"""What a policy file without faults says, but probably does not mean. A service takes such a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ground import pod_groups
from ground.documents import yaml_tree
from ground.documents.faults import Loc, path
from policies.load import PolicyWarning, decoded, outdated, policies_of
from policies.policy_model import Policy

_INTERPRETER = re.compile(
    r"(|ba|da|a|z|k|mk|c|tc|fi)sh|busybox|env|(python|perl|ruby|lua|php|tclsh|pypy)[0-9.]*|node|nodejs|java|luajit|Rscript"
)
_SHIPPED = Policy().evict


def is_interpreter(exe: str) -> bool:
    """Whether a program runs whatever file it is given, such as a shell: its path stands for every script."""
    return _INTERPRETER.fullmatch(exe.rpartition("/")[2]) is not None


def found(data: bytes, source: str) -> tuple[PolicyWarning, ...]:
    """All warnings about a file without faults, in its order."""
    root, _ = yaml_tree.parse(decoded(data, source), source)
    warnings = [*outdated(data, source)]
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
