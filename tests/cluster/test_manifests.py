"""A real API server takes all manifests, as a dry run: fields, types, defaults and expressions.

The admission policies of the DRA driver are in force for their tests.
"""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.config import models
from lightkube.core.exceptions import ApiError
from lightkube.core.resource_registry import resource_registry
from lightkube.resources.admissionregistration_v1 import ValidatingAdmissionPolicy
from lightkube.resources.core_v1 import Node, ServiceAccountToken
from lightkube.resources.resource_v1 import ResourceSlice
from lightkube.types import PatchType

from deploy import generate
from plugin.dra import resource_slices
from tests.cluster import programs
from tests.cluster.cluster import container
from tests.cluster.installed import SPACE, apply
from tests.cluster.programs import NODE
from tests.deploy import manifests
from tests.patience import WITHIN

KNOWN = manifests.GROUPS  # without Prometheus's operator, whose types this API server does not have


async def accepts(cluster, documents):
    await apply(cluster, [SPACE])
    await apply(cluster, [doc for doc in documents if doc["apiVersion"] in KNOWN], dry_run=True)


@pytest.mark.parametrize("case", manifests.MATRIX)
async def test_the_objects_of_the_chart_are_accepted(bare, case):
    await accepts(bare, manifests.objects(case))


@pytest.mark.parametrize("folder", ["base", *(f"overlays/{name}" for name in generate.OVERLAYS)])
async def test_the_objects_of_kustomize_are_accepted(bare, folder):
    await accepts(bare, manifests.composed(generate.KUSTOMIZE / folder))


async def test_an_unknown_field_is_not_accepted(bare):
    """What the other tests rely on."""
    account = manifests.of("default", "ServiceAccount", "-scrubber")
    with pytest.raises(ApiError, match="automount"):
        await accepts(bare, [{**account, "automount": False}])


DRIVER = manifests.MATRIX["dra with everything"]["dra"]["driverName"]
POLICIES = ("-own-slice", "-gpu-pods")


@pytest.fixture
async def guarded(bare):
    """The rights and the admission policies of the driver, and a second node, where no kubelet runs."""
    docs = [
        doc
        for doc in manifests.objects("dra with everything")
        if doc["kind"] in {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
        or doc["metadata"]["name"].endswith(POLICIES)
    ]
    await apply(bare, [SPACE, *docs])
    await bare.client.create(Node.from_dict({"metadata": {"name": "other"}, "spec": {"unschedulable": True}}))
    yield bare
    await bare.client.delete(Node, "other")
    for doc in docs:
        resource: Any = resource_registry.load(doc["apiVersion"], doc["kind"])
        await bare.client.delete(resource, doc["metadata"]["name"], namespace=doc["metadata"].get("namespace"))


@asynccontextmanager
async def driver_of(cluster, node):
    """The API server, as the token of the driver of a node opens it. Without a node, the token names none."""
    bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node}} if node else {}
    request = ServiceAccountToken.from_dict({"metadata": {}, "spec": {"audiences": [], **bound}})
    made = await cluster.client.create(request, "autoclave-dra", namespace=generate.NAMESPACE)
    server = models.Cluster(programs.API, certificate_auth=str(programs.CERTIFICATE))
    config = KubeConfig.from_one(cluster=server, user=models.User(token=made.status.token))
    async with AsyncClient(config, trust_env=False) as client:
        yield client


async def write_slice(client, node, **spec):
    """As a dry run, the slice that the driver of a node writes, with other fields in its specification."""
    wanted = resource_slices.resource_slice(resource_slices.Pool(DRIVER, node, "uid"), (), taints=True)
    wanted["spec"] |= spec
    name = wanted["metadata"]["name"]
    await client.patch(ResourceSlice, name, wanted, patch_type=PatchType.APPLY, field_manager="tests", dry_run=True)


async def until_refused(text, request):
    """Wait until a policy refuses a request: it is in force a moment after the API server has it."""
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                await request()
            except ApiError as error:
                assert text in str(error)  # noqa: PT017 - the policy may not be in force yet
                return
            await asyncio.sleep(0.1)


async def test_a_driver_writes_only_its_own_nodes_slice(guarded):
    async with driver_of(guarded, NODE) as ours, driver_of(guarded, "") as nameless:
        await until_refused("slices of its own node only", lambda: write_slice(ours, "other"))
        await write_slice(ours, NODE)
        refusals = {
            "slices of its own node only": write_slice(nameless, NODE),
            f"slices of {DRIVER} only": write_slice(ours, NODE, driver="gpu.nvidia.com"),
            "names slice and pool after its node": write_slice(
                ours, NODE, pool={"name": "other", "generation": 9, "resourceSliceCount": 1}
            ),
            'cannot delete resource "resourceslices"': ours.delete(ResourceSlice, "any"),
        }
        for text, request in refusals.items():
            with pytest.raises(ApiError, match=text):
                await request


async def test_a_pod_that_takes_a_gpu_is_refused_by_choice(guarded):
    hasty = {"terminationGracePeriodSeconds": 0}

    async def create(claim="none", env=(), path="/srv", **spec) -> None:
        plain = guarded.spec(container(gpus=0))
        spec |= {"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]} if claim else {}
        volumes = [*plain["volumes"], {"name": "devices", "hostPath": {"path": path}}]
        await guarded.create("taking", container(gpus=0) | {"env": list(env)}, **spec, volumes=volumes)
        await guarded.delete("taking", grace=0)
        await guarded.gone("taking")

    visible = {"name": "NVIDIA_VISIBLE_DEVICES"}
    await until_refused("terminationGracePeriodSeconds of at least 1", lambda: create(**hasty))
    await create(env=[visible, visible | {"value": "void"}])
    await create(claim="", **hasty)
    with pytest.raises(ApiError, match="remove NVIDIA_VISIBLE_DEVICES"):
        await create(env=[visible | {"value": "all"}])
    with pytest.raises(ApiError, match="do not mount the devices"):
        await create(path="/dev/nvidia0")


async def test_the_api_server_warns_of_no_expression_of_the_driver(guarded):
    """It checks the types in the expressions of admission policies."""
    for doc in manifests.objects("dra with everything"):
        if doc["kind"] == "ValidatingAdmissionPolicy" and doc["metadata"]["name"].endswith(POLICIES):
            checked = await guarded.until(
                ValidatingAdmissionPolicy, doc["metadata"]["name"], lambda it: it.status and it.status.typeChecking
            )
            assert checked.status.typeChecking.expressionWarnings in (None, [])
