"""Pods on a whole node, from admission to deletion."""


async def test_a_pod_gets_a_clean_gpu_and_the_next_one_finds_nothing_of_it(build):
    node = await build(gpus=1)
    first = await node.run("first")
    uuid = node.gpu(first)
    assert node.memory(uuid)
    await node.kubelet.delete(first)
    await node.clean(uuid)
    assert not node.memory(uuid)
    assert node.gpu(await node.run("second")) == uuid
