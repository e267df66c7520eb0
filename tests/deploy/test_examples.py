"""The pods of the trial on simulated GPUs: what they ask for is what the overlay gives."""

import pytest

from deploy import generate
from scrubber.devices.simulated import layout
from tests.deploy import manifests

EXAMPLES = generate.ROOT / "deploy/examples"
NAMES = ("reader", "writer")


def pod(name):
    [doc] = manifests.documents((EXAMPLES / f"{name}.yaml").read_text())
    return doc


def test_no_example_is_left_out():
    assert sorted(path.stem for path in EXAMPLES.iterdir()) == ["descheduler", *NAMES]  # tests/cluster runs that one


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
