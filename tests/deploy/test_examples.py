"""The examples: pods of the trial on simulated GPUs get what the overlay gives, and the rule for a taint is valid."""

import re

import pytest

from deploy import generate
from plugin.cluster import api_objects
from scrubber.devices.simulated import layout
from tests.deploy import manifests

EXAMPLES = generate.ROOT / "deploy/examples"
NAMES = ("reader", "writer")


def pod(name):
    [doc] = manifests.documents((EXAMPLES / f"{name}.yaml").read_text())
    return doc


def test_no_example_is_left_out():
    # tests/cluster runs the descheduler
    assert sorted(path.stem for path in EXAMPLES.iterdir()) == ["descheduler", "node-readiness-rule", *NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_a_pod_of_the_api(name):
    assert pod(name)["kind"] == "Pod"
    assert manifests.check(pod(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_example_gets_every_gpu_of_the_overlay(name):
    """Else the reader might get another GPU than the writer had, and would prove nothing."""
    overlay = manifests.composed(generate.KUSTOMIZE / "overlays/simulated")
    flags = {component: manifests.flags(each) for component, _, each in manifests.containers(tuple(overlay))}
    resource = f"{flags['plugin']['--resource-prefix']}/gpu"
    gpus = int(flags["scrubber"]["--simulated-gpus"])
    [container] = pod(name)["spec"]["containers"]
    assert container["resources"] == {"limits": {resource: gpus}}


def test_the_writer_holds_each_of_its_gpus():
    """An open file makes its process a holder."""
    [container] = pod("writer")["spec"]["containers"]
    [limit] = container["resources"]["limits"].values()
    assert all(f"<{layout.CDI_SEEN_AS.format(index=index)}" in container["command"][-1] for index in range(limit))


def test_the_readiness_rule_has_the_fields_of_its_api():
    """The fields that the CustomResourceDefinition of v1alpha1 requires, within its limits."""
    rule = pod("node-readiness-rule")
    assert (rule["apiVersion"], rule["kind"]) == ("readiness.node.x-k8s.io/v1alpha1", "NodeReadinessRule")
    spec = rule["spec"]
    assert spec.keys() == {"nodeSelector", "conditions", "taint", "enforcementMode"}
    assert spec["enforcementMode"] in {"bootstrap-only", "continuous"}
    assert spec["nodeSelector"]["matchLabels"]
    assert spec["conditions"] == [{"type": api_objects.CONDITION, "requiredStatus": "True"}]
    assert spec["taint"].keys() == {"key", "effect"}
    assert re.fullmatch(r"readiness\.k8s\.io/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", spec["taint"]["key"])


@pytest.mark.parametrize("case", ["default", "reports", "dra"])
def test_the_daemonsets_tolerate_the_taint_of_the_readiness_rule(case):
    taint = pod("node-readiness-rule")["spec"]["taint"]
    workloads = [doc for doc in manifests.objects(case) if doc["kind"] == "DaemonSet"]
    assert len(workloads) == 2
    for workload in workloads:
        assert {"key": taint["key"], "operator": "Exists"} in workload["spec"]["template"]["spec"]["tolerations"]
