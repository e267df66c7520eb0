"""Whole nodes: a kubelet stand-in, the real device plugin and the real scrub service, containers as real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from demo.installation import ByPlugin
from demo.stage import Stage
from demo.standins.kubelet import Kubelet
from demo.standins.runtime import Runtime
from demo.standins.timing import Timing
from tests.flows.node import BRISK, Node, Watched

Maker = Callable[..., Node]
Builder = Callable[..., Awaitable[Node]]


class AskedSoon(ByPlugin):
    """By a kubelet that gives PreStartContainer four seconds: a start that has to wait is refused soon."""

    def _kubelet(self, containers: Runtime) -> Kubelet:
        return Kubelet(self.root / "kubelet", containers, logs=self.root / "pods", timing=Timing(prestart=4.0))


@pytest.fixture
async def bare(tmp_path) -> AsyncIterator[Maker]:
    """Nodes on which nothing runs yet; gone after the test, whatever became of it."""
    made: list[Stage] = []

    def one(gpus: int = 2, policy: str = BRISK, *flags: str, runs: type[Watched] = Watched, soon: bool = False) -> Node:
        way = AskedSoon if soon else ByPlugin
        node = Node(Stage(gpus, "1MiB", _file(tmp_path, policy), runs=runs, flags=flags, installed_as=way))
        made.append(node.stage)
        return node

    yield one
    for stage in made:
        await stage.clear_away(keep=False)
        assert not getattr(stage.containers, "leaks", [])


@pytest.fixture
def build(bare: Maker) -> Builder:
    """Nodes with everything running and every GPU clean."""

    async def one(gpus: int = 2, policy: str = BRISK, *flags: str, soon: bool = False) -> Node:
        node = bare(gpus, policy, *flags, soon=soon)
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
