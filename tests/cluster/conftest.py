"""A real node of Kubernetes with Autoclave, for ``make cluster``. One node serves all tests of a run."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Node, Pod
from lightkube.resources.resource_v1 import DeviceClass, ResourceSlice
from lightkube.types import CascadeType

from demo.standins.do_nothing_plugin import RESOURCE
from plugin.dra.config import DRIVER
from scrubber.devices.simulated import layout
from tests.cluster import programs
from tests.cluster.autoclave import GPUS, ROOT_OF_FENCE, SIMULATED, Autoclave
from tests.cluster.claims import Claims, device_class, dra_driver
from tests.cluster.cluster import Cluster
from tests.cluster.in_front import InFront, replace
from tests.cluster.installed import Installed
from tests.cluster.programs import Program
from tests.deploy import kubernetes_versions

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "build/cluster"  # of the last run, journals of the pods included


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--programs", default="build/node", help="directory with the programs of a node")
    parser.addoption(
        "--kubernetes", default=kubernetes_versions.NEWEST, help="the version that the control plane emulates"
    )
    parser.addoption(
        "--fence",
        default="hold",
        choices=("hold", "refuse", "watch"),
        help="the mode of the fence, unless a test needs one",
    )
    parser.addoption("--image", default="build/image.tar", help="archive of the image")
    parser.addoption("--cuda-image", default="build/image-cuda12.tar", help="archive of the image for NVIDIA GPUs")
    parser.addoption(
        "--shell", action="store_true", help="with -s: test_access.py starts a shell, where its command can be typed"
    )
    parser.addoption("--remnant-rounds", type=int, default=1, help="how often the next pod looks, after each ending")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("cluster")
    if item.config.getoption("--shell"):
        item.add_marker(pytest.mark.timeout(0))
    if programs.WHOLE and item.get_closest_marker("long"):
        item.add_marker(pytest.mark.skip("many pods, for hours on the one slow processor of this machine"))


@pytest.fixture(scope="session")
def node(pytestconfig: pytest.Config) -> Iterator[programs.Node]:
    folder = (ROOT / pytestconfig.getoption("--programs")).resolve()
    if reason := programs.missing(folder):
        pytest.skip(reason)
    version = pytestconfig.getoption("--kubernetes")
    if version not in kubernetes_versions.VERSIONS:
        pytest.fail(f"--kubernetes {version}: docs/dra.md has {', '.join(kubernetes_versions.VERSIONS)}")
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    node = programs.Node(folder, LOGS, version)
    try:
        node.up()
        yield node
    finally:
        node.down()


@pytest.fixture(scope="session")
def gate(pytestconfig: pytest.Config) -> Callable[[str], bool]:
    """Whether the version of this run has a feature gate on."""
    return lambda name: kubernetes_versions.GATES[name][pytestconfig.getoption("--kubernetes")]


@pytest.fixture(autouse=True)
def _demand_gate(request: pytest.FixtureRequest, gate: Callable[[str], bool]) -> None:
    """Skip a test of what the version of this run does not have."""
    for marker in request.node.iter_markers("gate"):
        if not gate(marker.args[0]):
            pytest.skip(f"{marker.args[0]} is off in this version")


@pytest.fixture(scope="session")
def autoclave(node: programs.Node, pytestconfig: pytest.Config) -> Iterator[Autoclave]:
    """Its programs; ``pods`` starts those that a test has left ended."""
    node.demand_running()
    autoclave = Autoclave(LOGS, fence=pytestconfig.getoption("--fence"))
    yield autoclave
    autoclave.clear_away()


@pytest.fixture
async def bare(node: programs.Node, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:  # noqa: ARG001 - it runs
    """No pods, and no Autoclave."""
    journals = LOGS / "pods" / re.sub(r"\W+", "-", f"{request.path.stem}-{request.node.name}")
    journals.mkdir(parents=True)
    async with Cluster.connect() as client:
        cluster = Cluster(client, journals)
        await cluster.until(Node, programs.NODE, lambda node: node is not None)  # the kubelet may just start
        yield cluster
        await client.deletecollection(Job, cascade=CascadeType.BACKGROUND)
        names = await cluster.names()
        await client.deletecollection(Pod, grace_period=1)
        for name in names:
            await cluster.gone(name)


@pytest.fixture
async def pods(bare: Cluster, autoclave: Autoclave) -> Cluster:
    """Four clean GPUs that the scheduler may place, and no pods."""
    autoclave.rule()
    await autoclave.up()
    await autoclave.ready()
    await bare.offered(GPUS)
    return bare


@pytest.fixture
async def cluster(pods: Cluster) -> AsyncIterator[Cluster]:
    """The same; and no container of the test found bytes of another pod, lost its own, or got no GPU."""
    yield pods
    assert pods.faults() == []


@pytest.fixture
def floor(autoclave: Autoclave) -> Iterator[str]:
    """The resource of a plugin that does nothing, in place of Autoclave."""
    program = autoclave.floor()
    autoclave.uninstall()
    program.start()
    yield RESOURCE
    program.end()


@pytest.fixture
def refusing(pytestconfig: pytest.Config) -> None:
    """The kernel keeps pods off a GPU of others."""
    if ROOT_OF_FENCE is None or pytestconfig.getoption("--fence") == "watch":
        pytest.skip("takes --fence hold or refuse, and control groups of version 2")


@pytest.fixture
def gpu(pods: Cluster, refusing: None) -> layout.GpuFiles:  # noqa: ARG001 - the service has made it
    """The first GPU, which has a device node."""
    return layout.places(SIMULATED)[0]


@pytest.fixture
async def node_with_nvidia(
    pods: Cluster,
    autoclave: Autoclave,
    pytestconfig: pytest.Config,
) -> AsyncIterator[InFront]:
    """NVIDIA's plugin and ours, in place of our own devices; nothing is started."""
    program = (ROOT / pytestconfig.getoption("--programs") / "nvidia-device-plugin").resolve()
    if not program.exists():
        pytest.skip(f"{program} not found: see docs/real-nodes.md")
    autoclave.down()
    it = InFront(pods, program, await asyncio.to_thread(replace, autoclave), LOGS)
    await pods.offered(0)
    yield it
    it.end()
    autoclave.down()


@pytest.fixture
async def alone(node_with_nvidia: InFront, autoclave: Autoclave) -> InFront:
    """Pods get GPUs of NVIDIA's plugin, without Autoclave."""
    it = node_with_nvidia
    autoclave.uninstall()
    it.vendor = it.nvidia(KUBELET_SOCKET="")
    it.vendor.start()
    await it.offered()
    return it


@pytest.fixture
async def behind(node_with_nvidia: InFront) -> AsyncIterator[InFront]:
    """Pods get GPUs of NVIDIA's plugin, behind Autoclave."""
    it = node_with_nvidia
    await it.start()
    await it.offered()
    yield it
    assert it.cluster.faults() == []


@pytest.fixture
async def driver(pods: Cluster, autoclave: Autoclave, request: pytest.FixtureRequest) -> AsyncIterator[Program]:
    """Our driver, in place of the device plugin. The parameter, if there is one, is more flags."""
    autoclave.plugin.end()
    driver = dra_driver(LOGS, *getattr(request, "param", ()))
    driver.start()
    yield driver
    driver.end()
    await pods.client.deletecollection(ResourceSlice)


@pytest.fixture
async def claims(pods: Cluster, driver: Program) -> AsyncIterator[Claims]:  # noqa: ARG001 - it runs
    """Four clean GPUs in a slice, and no pods."""
    claims = Claims(pods)
    await pods.client.create(device_class(DRIVER))
    await claims.offer(1, GPUS)
    await claims.sliced(lambda devices: len(devices) == GPUS)
    yield claims
    await claims.clear()
    await pods.client.delete(DeviceClass, DRIVER)
    assert pods.faults() == []


@pytest.fixture(scope="module")
def installed(
    node: programs.Node, autoclave: Autoclave, pytestconfig: pytest.Config, request: pytest.FixtureRequest
) -> Iterator[Installed]:
    """Autoclave as the chart installs it with the module's ``VALUES`` and ``FENCE``, in place of our own processes."""
    archive = ROOT / pytestconfig.getoption("--image")
    if not archive.exists():
        pytest.skip(
            f"no image in {archive}: make image ARGS='--cuda none --archive {pytestconfig.getoption('--image')}'"
        )
    autoclave.uninstall()
    node.load(archive)
    fence = getattr(request.module, "FENCE", pytestconfig.getoption("--fence"))
    installed = Installed(LOGS / request.module.__name__.rpartition(".")[2], request.module.VALUES, fence)
    try:
        asyncio.run(installed.up())
        yield installed
    finally:
        installed.keep_logs()
        asyncio.run(installed.down())


@pytest.fixture(params=[0, 2], ids=["quiet", "busy"])
def load(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing beside, or two programs that use a core each."""
    with programs.busy(request.param):
        yield
