"""What a valid policy file says, but probably does not mean, is a warning with its place."""

from __future__ import annotations

import json

import pytest

from policies import load
from policies.policy_model import Evict

REPLACING = """\
name: mine
defaults: {evict: {operator_namespaces: [monitoring, kube-system]}}
rules:
  - {name: one, match: {gpu: [GPU-1]}, policy: {evict: {bystanders: [/usr/bin/telegraf]}}}
"""
SHIPPED = Evict()


def warned(text: str) -> list[str]:
    """Each warning without the name of the file."""
    load.load_text(text, "p.yaml")
    return [str(it).removeprefix("p.yaml:") for it in load.warnings_of(text.encode(), "p.yaml")]


def with_bystanders(*entries: str, **evict: list[str]) -> str:
    """A file that adds these to the shipped bystanders."""
    lists = {"bystanders": [*SHIPPED.bystanders, *entries], **evict}
    return f"name: mine\ndefaults: {{evict: {json.dumps(lists)}}}\n"


@pytest.mark.parametrize("name", load.shipped())
def test_a_shipped_policy_has_no_warning(name: str) -> None:
    assert warned(load.read_shipped(name)) == []


def test_warnings_come_in_the_order_of_the_file() -> None:
    first, second = warned(REPLACING)
    assert first.startswith("2:20: defaults.evict.operator_namespaces takes the place of the shipped list, and lacks ")
    assert all(name in first for name in {*SHIPPED.operator_namespaces} - {"kube-system"})
    assert second.startswith("4:57: rules[0].policy.evict.bystanders takes the place")


@pytest.mark.parametrize("items", [[], ["kube-system"], [*SHIPPED.operator_namespaces, "monitoring"]])
def test_a_list_that_only_loses_or_only_adds_is_not(items: list[str]) -> None:
    assert warned(f"name: mine\ndefaults: {{evict: {{operator_namespaces: {json.dumps(items)}}}}}\n") == []


@pytest.mark.parametrize("program", ["bash", "sh", "busybox", "python3", "python3.11", "perl5.36.0", "node", "env"])
def test_a_bystander_that_runs_every_script_is_named(program: str) -> None:
    [found] = warned(with_bystanders(f"/usr/bin/{program}"))
    assert f"bystanders[{len(SHIPPED.bystanders)}] is /usr/bin/{program}, so each script that root runs is a" in found


@pytest.mark.parametrize("program", ["telegraf", "nvidia-sh-exporter", "node_exporter", "python-monitor"])
def test_a_program_of_its_own_is_no_interpreter(program: str) -> None:
    assert warned(with_bystanders(f"/usr/bin/{program}")) == []


def test_a_bystander_of_a_namespace_without_exemption_is_named() -> None:
    [found] = warned(with_bystanders("obs:/usr/bin/x"))
    assert "is obs:/usr/bin/x, but obs is not in evict.operator_namespaces" in found
    assert warned(with_bystanders("obs:/usr/bin/x", operator_namespaces=[*SHIPPED.operator_namespaces, "obs"])) == []
    assert len(warned(with_bystanders("nvidia:/usr/bin/x", operator_namespaces=[]))) == 1
    of_a_rule = with_bystanders(operator_namespaces=[*SHIPPED.operator_namespaces, "obs"])
    of_a_rule += f"rules: [{{name: a, match: {{}}, policy: {{evict: {{bystanders: {json.dumps(['obs:/x'])}}}}}}}]\n"
    [lacks] = warned(of_a_rule)
    assert "takes the place of the shipped list" in lacks, "the rule inherits the namespaces"


@pytest.mark.parametrize(
    ("unit", "is_named"),
    [
        ("-.slice", True), ("kubepods.slice", True), ("/kubepods", True), ("/kubepods/besteffort", True),
        ("kubelet-kubepods.slice", True), ("/k3s/kubepods", True),
        ("telegraf.service", False), ("user.slice", False), ("kubepods.service", False), ("/podruntime/mine", False),
    ],
)  # fmt: skip
def test_a_unit_that_holds_the_pods_is_named(unit: str, *, is_named: bool) -> None:
    found = warned(f"name: mine\ndefaults: {{fence: {{exempt: {{units: [{json.dumps(unit)}]}}}}}}\n")
    assert [f"exempt.units[0] is {unit}, which holds the pods too" in it for it in found] == [True] * is_named
