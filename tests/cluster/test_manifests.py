"""A real API server takes all manifests, as a dry run: fields, types, defaults and expressions."""

import pytest
from lightkube.core.exceptions import ApiError

from deploy import generate
from tests.cluster.installed import SPACE, apply
from tests.deploy import manifests

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
