"""A real node of Kubernetes with Autoclave, for ``make cluster``. One node serves all tests of a run."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType

from benchmarks.floor import RESOURCE
from tests.cluster import programs
from tests.cluster.autoclave import GPUS, Autoclave
from tests.cluster.cluster import Cluster

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "build/cluster"  # of the last run, journals of the pods included


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--programs", default="build/node", help="directory with the programs of a node")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("cluster")


@pytest.fixture(scope="session")
def node(pytestconfig: pytest.Config) -> Iterator[programs.Node]:
    folder = (ROOT / pytestconfig.getoption("--programs")).resolve()
    if reason := programs.missing(folder):
        pytest.skip(reason)
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    node = programs.Node(folder, LOGS)
    try:
        node.up()
        yield node
    finally:
        node.down()


@pytest.fixture(scope="session")
def autoclave(node: programs.Node) -> Iterator[Autoclave]:
    """Its programs; ``pods`` starts those that a test has left ended."""
    node.demand_running()
    autoclave = Autoclave(LOGS)
    yield autoclave
    autoclave.down()


@pytest.fixture
async def pods(autoclave: Autoclave, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """Four clean GPUs that the scheduler may place, and no pods."""
    journals = LOGS / "pods" / re.sub(r"\W+", "-", request.node.name)
    journals.mkdir(parents=True)
    async with Cluster.connect() as client:
        cluster = Cluster(client, journals)
        autoclave.rule()
        await autoclave.up()
        await autoclave.clean()
        await cluster.offered(GPUS)
        yield cluster
        await client.deletecollection(Job, cascade=CascadeType.BACKGROUND)
        names = await cluster.names()
        await client.deletecollection(Pod, grace_period=1)
        for name in names:
            await cluster.gone(name)


@pytest.fixture
async def cluster(pods: Cluster) -> AsyncIterator[Cluster]:
    """The same; and no container of the test found bytes of another pod, lost its own, or got no GPU."""
    yield pods
    assert pods.faults() == []


@pytest.fixture
def floor(autoclave: Autoclave) -> Iterator[str]:
    """The resource of a plugin that does nothing, in place of Autoclave."""
    program = autoclave.floor()
    autoclave.down()
    program.start()
    yield RESOURCE
    program.end()


@pytest.fixture(params=[0, 2], ids=["quiet", "busy"])
def load(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing beside, or two programs that use a core each."""
    with programs.busy(request.param):
        yield
