"""The cases of Secure Accelerator Access (KAR-0049), which Kubernetes AI Conformance demands, on the GPUs of this node.

Its own test, TestSecureAcceleratorAccess of kubernetes-sigs/ai-conformance, needs an image of NVIDIA. How a pod opens
the GPU of another one all the same is in test_fence.py.
"""

from tests.cluster.claims import Claims, claiming
from tests.cluster.cluster import container


async def found(claims: Claims, pod: str, name: str = "main") -> str:
    """How many GPUs a container has found."""
    return (await claims.cluster.said(pod, "HOLDING", name)).text


async def test_a_container_with_a_claim_finds_its_gpu(claims):
    await claims.create("given", 1)
    assert await found(claims, "given") == "gpus=1"


async def test_a_pod_without_a_claim_finds_no_gpu(claims):
    await claims.hold("given", 1)
    await claims.cluster.create("beside", container(gpus=0))
    assert await found(claims, "beside") == "gpus=0"


async def test_a_container_beside_that_of_the_claim_finds_no_gpu(claims):
    spec = claiming(template="gpus-1")
    await claims.put("both", spec | {"containers": (*spec["containers"], container(gpus=0, name="beside"))})
    assert [await found(claims, "both", name) for name in ("main", "beside")] == ["gpus=1", "gpus=0"]
