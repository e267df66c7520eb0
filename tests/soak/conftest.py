"""A node with a witness, for long histories."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from demo.stage import Stage
from tests.flows.node import Node
from tests.soak.witness import Witness

BRISK = "{paths: {first_look: fast}, clear: {passes: zero}, evict: {grace: 200ms}, budgets: {owner_wait: 500ms}}"
Builder = Callable[[int], Awaitable[Node]]


@pytest.fixture
def soak(request) -> bool:
    """Whether there is time for the long histories."""
    return bool(request.config.getoption("--soak", default=False))


@pytest.fixture
def seed() -> str:
    """Another history every time; SOAK_SEED, in the environment, begins an old one again."""
    chosen = os.environ.get("SOAK_SEED") or secrets.token_hex(4)
    print(f"SOAK_SEED={chosen}")  # noqa: T201 - shown with -s, and when the test fails
    return chosen


@pytest.fixture
async def build(tmp_path) -> AsyncIterator[Builder]:
    """Nodes whose runtime is a witness; everything is gone afterwards."""
    made: list[Stage] = []
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"name: soak\ndefaults: {BRISK}\n")

    async def one(gpus: int) -> Node:
        stage = Stage(gpus, "1MiB", str(policy), runs=Witness)
        made.append(stage)
        witness(stage).ledger = stage.ledger
        node = Node(stage)
        await node.up()
        return node

    yield one
    for stage in made:
        for pid in witness(stage).zombies:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await stage.clear_away(keep="SOAK_KEEP" in os.environ)


def witness(stage: Stage) -> Witness:
    """The runtime of a stage of ours."""
    assert isinstance(stage.containers, Witness)
    return stage.containers
