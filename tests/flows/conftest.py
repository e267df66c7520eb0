"""Whole nodes: a kubelet stand-in, the real device plugin and the real scrub service, containers as real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from demo.stage import Stage
from tests.flows.node import BRISK, Node, Watched

Maker = Callable[..., Node]
Builder = Callable[..., Awaitable[Node]]


@pytest.fixture
async def bare(tmp_path) -> AsyncIterator[Maker]:
    """Nodes on which nothing runs yet; gone after the test, whatever became of it."""
    made: list[Stage] = []

    def one(gpus: int = 2, policy: str = BRISK, *flags: str, runs: type[Watched] = Watched) -> Node:
        node = Node(Stage(gpus, "1MiB", _file(tmp_path, policy), runs=runs, flags=flags))
        made.append(node.stage)
        return node

    yield one
    for stage in made:
        await stage.clear_away(keep=False)
        assert not getattr(stage.containers, "leaks", [])


@pytest.fixture
def build(bare: Maker) -> Builder:
    """Nodes with everything running and every GPU clean."""

    async def one(gpus: int = 2, policy: str = BRISK, *flags: str) -> Node:
        node = bare(gpus, policy, *flags)
        await node.up()
        return node

    return one


@pytest.fixture
async def node(build) -> Node:
    """Two clean GPUs under a policy that takes no time for a reset."""
    it: Node = await build()
    return it


def _file(tmp_path, policy: str) -> str:
    """A policy by its name, or of a few lines."""
    if "{" not in policy:
        return policy
    file = tmp_path / "policy.yaml"
    file.write_text(f"name: few-lines\ndefaults: {policy}\n")
    return str(file)
