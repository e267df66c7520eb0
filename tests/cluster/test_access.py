"""Who can open a GPU that it was not given: `autoclave access` as an outsider runs it, on the GPUs of this node.

The page docs/access.md has what these tests found. The containers are of an image that has this machine's Python. What
was found is kept in build/cluster/access.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import AsyncClient
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.resources.node_v1 import RuntimeClass

from access.hearing import LIVES
from plugin.dra.config import DRIVER, VENDOR_DRIVER
from tests.cluster import numbered_runc, nvidia_claims, programs
from tests.cluster.autoclave import GPUS
from tests.cluster.conftest import LOGS
from tests.cluster.isolated import STATE, second_version
from tests.cluster.nvidia import MAJOR
from tests.cluster.programs import KUBECONFIG
from tests.patience import WITHIN
from tests.python_image import write_files

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/access.md"
ADMINISTRATOR = {"HOME": str(STATE), "KUBECONFIG": str(KUBECONFIG)}
RBAC = "rbac.authorization.k8s.io/v1"
ACCOUNT = STATE / "access.kubeconfig"  # of an account that has the rights of the page, and no others
IMAGE, VARIABLE_IMAGE = "localhost/python:1", "localhost/python-variable:1"
SIMULATED, NVIDIA = "/dev/simulated-gpu[0-9]*", "/dev/nvidia[0-9]*"
NO_RUNTIME = "numbered"  # of NVIDIA: this one gives a container nothing
STRICT = yaml.safe_load((ROOT / "policies/strict.yaml").read_text())["defaults"]

PASS, FAIL, NOT_TRIED, NO_SUCH_WAY = "pass", "fail", "not tried", "not applicable"
CLOSED = {
    **dict.fromkeys(("no-request", "variable", "image-variable", "cdi-annotation"), PASS),
    "runtime-class": NO_SUCH_WAY,
    **dict.fromkeys(("host-dev", "own-node", "privileged", "privileged-own-node", "host-pid"), PASS),
    **dict.fromkeys(("second-container", "ephemeral-container", "init-container"), PASS),
    "leftover": PASS,
    "handed-on": FAIL,  # an open node that its owner sends: nobody asks the kernel again
    "kept-open": PASS,
}
BY_RIGHTS = {"privileged": FAIL, "privileged-own-node": FAIL}
UNLESS_LATE = "fail, or not tried where a container starts in more than the two seconds that the old process has"
NO_SERVICE = {"leftover": UNLESS_LATE, "kept-open": FAIL}
# What each level of the Pod Security Standards refuses at admission: what takes part in a way has the right, too.
BASELINE = frozenset({"host-dev", "privileged", "privileged-own-node", "host-pid", "handed-on", "kept-open"})
REFUSED = {"baseline": BASELINE, "restricted": BASELINE | {"own-node"}}
RUNS_ON = ["--way", "kept-open", "--way", "leftover"]  # both wait: so an interruption comes before the end
LATEST = 60.0  # seconds after the start: a random moment, before the end of a run
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
SEEDS = [pytest.param(seed, marks=pytest.mark.night if seed > 2 else ()) for seed in range(20)]
LABELS: Any = {"app.kubernetes.io/name": "autoclave-access"}


# To check a manifest, kubectl reads megabytes from the API server, and has half a minute. A whole machine takes longer.
UNCHECKED = """#!/bin/sh
case " $* " in *" create --filename=- "* | *" create configmap "*) set -- "$@" --validate=false ;; esac
exec {kubectl} "$@"
"""


class Table:
    """Runs the command, asks for all GPUs, and compares the verdicts; the whole report stays in the logs."""

    def __init__(self, folder: Path, *, shell: bool) -> None:
        """``folder``: has kubectl. ``shell``: a person types the command of ``shows``."""
        self._shell = shell
        path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._variables = os.environ | ADMINISTRATOR | {"PATH": path}

    def start(self, to: Path, *flags: str, nodes: str = SIMULATED) -> subprocess.Popen[str]:
        """Start the command, as an outsider does."""
        to.parent.mkdir(exist_ok=True)
        return self.run(*self.command(*flags, nodes=nodes), "--to", str(to), KUBECONFIG=str(ACCOUNT))

    def command(self, *flags: str, nodes: str = SIMULATED) -> list[str]:
        """The command without the directory of its result."""
        command = [sys.executable, "-m", "autoclave", "access", "run", "--node", programs.NODE, "--count", str(GPUS)]
        return [*command, "--nodes", nodes, "--image", IMAGE, "--variable-image", VARIABLE_IMAGE, *flags]

    def run(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """A command of a person who reaches the cluster, as its administrator unless the variables say another."""
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self._variables | variables, stdout=pipe, stderr=pipe, text=True)

    def by_hand(self, *command: str) -> None:
        """A shell of this person."""
        print(f"\nThe node is up until you type exit. The test runs:\n{shlex.join(command)}", flush=True)  # noqa: T201 - see above
        subprocess.run([os.environ.get("SHELL", "/bin/sh")], env=self._variables, check=False)

    async def shows(self, arm: str, wanted: dict[str, str], *flags: str, nodes: str = SIMULATED) -> dict[str, str]:
        """The verdict of each way is as wanted; the reasons."""
        if self._shell:
            await asyncio.to_thread(self.by_hand, *self.command(*flags, nodes=nodes))
            pytest.skip("a person typed the command")
        to = LOGS / "access" / arm
        _, said = await asyncio.to_thread(self.start(to, *flags, nodes=nodes).communicate)
        assert (to / "result.json").exists(), said
        result: dict[str, Any] = json.loads((to / "result.json").read_text())
        assert (result["ended_early"], result["left_behind"]) == ("", ""), said
        assert result["owner"]["opened"], said
        assert f" c:{MAJOR}:" not in said + json.dumps(result["ways"]), "a node that leads to no GPU here"
        found = {way["way"]: way["verdict"] for way in result["ways"]}
        if wanted["leftover"] == UNLESS_LATE and found["leftover"] in (FAIL, NOT_TRIED):
            wanted = wanted | {"leftover": found["leftover"]}
        assert found == wanted, said
        return {way["way"]: way["why"] for way in result["ways"]}


@pytest.fixture(scope="session")
def _images(node: programs.Node) -> None:
    write_files(STATE / "python.tar")
    layer = (STATE / "python.tar").read_bytes()
    search = "PATH=/usr/bin"
    node.load(programs.archive_of(IMAGE, layer, Env=[search]))
    node.load(programs.archive_of(VARIABLE_IMAGE, layer, Env=[search, "NVIDIA_VISIBLE_DEVICES=all"]))


@pytest.fixture(scope="session")
def _account(node: programs.Node, pytestconfig: pytest.Config) -> None:  # noqa: ARG001 - it runs
    def kubectl(*words: str, text: str = "") -> str:
        command = [str(_folder(pytestconfig) / "kubectl"), *words]
        return subprocess.check_output(command, input=text, text=True, env=os.environ | ADMINISTRATOR).strip()

    rules = yaml.safe_load("rules:" + PAGE.read_text().partition("```yaml\nrules:")[2].partition("```")[0])["rules"]
    role, account = {"kind": "ClusterRole", "name": "access"}, {"kind": "ServiceAccount", "name": "access"}
    bound = {"roleRef": role, "subjects": [{**account, "namespace": "default"}]}
    objects = [
        {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": "access"}, "rules": rules},
        {"apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": {"name": "access"}, **bound},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "access", "namespace": "default"}},
    ]
    whole = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    kubectl("apply", "--validate=false", "--filename=-", text=whole)
    programs.kubeconfig(ACCOUNT, kubectl("create", "token", "access", "--duration=24h"))


@pytest.fixture
def table(_images: None, _account: None, pytestconfig: pytest.Config) -> Table:
    """What an outsider has: the command, and kubectl."""
    shell = pytestconfig.getoption("--shell")
    if not programs.WHOLE:
        return Table(_folder(pytestconfig), shell=shell)
    (script := STATE / "commands/kubectl").parent.mkdir(exist_ok=True)
    script.write_text(UNCHECKED.format(kubectl=_folder(pytestconfig) / "kubectl"))
    script.chmod(0o755)
    return Table(script.parent, shell=shell)


def _folder(pytestconfig: pytest.Config) -> Path:
    return Path(ROOT, pytestconfig.getoption("--programs")).resolve()


@pytest.fixture
def refusing_claims(refusing: None) -> None:  # noqa: ARG001 - it skips
    """The same for pods with claims, whose control group must be there when the claim is prepared."""
    if not second_version():
        pytest.skip("in version 1 of control groups, the group that the fence asks for comes with the first container")


@pytest.fixture
async def runtime(pods, pytestconfig: pytest.Config) -> AsyncIterator[Callable[[str], Awaitable[list[str]]]]:
    """Gives the node a runtime, and says the flags of an owner; in its containers, NVIDIA's nodes lead to GPUs."""
    if not (_folder(pytestconfig) / "nvidia-container-runtime").exists():
        pytest.skip("nvidia-container-runtime not found: run make node")
    numbered_runc.install(_folder(pytestconfig))
    made: list[str] = []

    async def install(name: str) -> list[str]:
        await pods.client.create(RuntimeClass.from_dict({"metadata": {"name": name}, "handler": name}))
        made.append(name)
        return ["--runtime-class", name]

    yield install
    for name in made:
        await pods.client.delete(RuntimeClass, name)


async def _start(node_with_nvidia, strategy: str) -> None:
    """NVIDIA's plugin without ours."""
    it = node_with_nvidia
    it.vendor = it.nvidia(KUBELET_SOCKET="", DEVICE_LIST_STRATEGY=strategy)
    it.vendor.start()
    await it.offered()


async def test_a_right_opens_a_gpu_of_a_do_nothing_plugin(table, pods, floor):
    await pods.offered(GPUS, floor)
    await table.shows("a do-nothing plugin", CLOSED | BY_RIGHTS | NO_SERVICE, "--resource", floor)


async def test_nvidias_runtime_opens_a_gpu_to_who_asks(table, node_with_nvidia, autoclave, runtime):
    autoclave.uninstall()
    await _start(node_with_nvidia, "envvar")
    wanted = CLOSED | BY_RIGHTS | NO_SERVICE | {"runtime-class": FAIL}
    await table.shows("NVIDIA's plugin, envvar", wanted, *await runtime("nvidia"), nodes=NVIDIA)


async def test_nvidias_plugin_with_cdi_opens_a_gpu_to_rights(table, node_with_nvidia, autoclave, runtime):
    autoclave.uninstall()
    await _start(node_with_nvidia, "cdi-cri")
    await table.shows("NVIDIA's plugin, CDI", CLOSED | BY_RIGHTS | NO_SERVICE, *await runtime(NO_RUNTIME), nodes=NVIDIA)


@pytest.mark.parametrize("strategy", ["envvar", "cdi-cri"])
async def test_behind_autoclave_nvidias_gpus_stay_shut(table, node_with_nvidia, runtime, refusing, strategy):  # noqa: ARG001 - it skips
    it = node_with_nvidia
    flags = await runtime("nvidia" if strategy == "envvar" else NO_RUNTIME)
    it.vendor = it.nvidia(DEVICE_LIST_STRATEGY=strategy)
    await it.start()
    await it.offered()
    wanted = CLOSED | ({"runtime-class": PASS} if strategy == "envvar" else {})
    await table.shows(f"NVIDIA's plugin behind Autoclave, {strategy}", wanted, *flags, nodes=NVIDIA)


@pytest.mark.parametrize("policy", ["default", "strict"])
async def test_with_autoclave_no_pod_opens_a_gpu_of_another(table, pods, autoclave, refusing, policy):  # noqa: ARG001 - they run
    if policy == "strict":
        autoclave.rule(**STRICT)
        await autoclave.devices(lambda device: device.fence == STRICT["fence"]["mode"])
        await autoclave.clean()
    await table.shows(f"Autoclave, policy {policy}", CLOSED)


async def test_a_fence_that_watches_stops_no_right(table, pods, autoclave):  # noqa: ARG001 - they run
    autoclave.rule(fence={"mode": "watch"})
    await autoclave.devices(lambda device: device.fence == "watch")
    await table.shows("Autoclave, fence watch", CLOSED | BY_RIGHTS)


async def test_pods_without_a_claim_open_none_of_ours(table, refusing_claims, claims):  # noqa: ARG001 - they run
    await table.shows("Autoclave's DRA driver", CLOSED, "--device-class", DRIVER)


async def test_nvidias_dra_driver_opens_a_gpu_to_rights(table, pods, autoclave, pytestconfig, runtime):
    program = nvidia_claims.program(pytestconfig)
    async with nvidia_claims.alone(pods, autoclave, program, LOGS):
        flags = (*await runtime(NO_RUNTIME), "--device-class", VENDOR_DRIVER)
        wanted = CLOSED | BY_RIGHTS | NO_SERVICE
        await table.shows("NVIDIA's DRA driver", wanted, *flags, nodes=NVIDIA)


async def test_behind_autoclave_claims_of_nvidia_stay_shut(
    table, pods, autoclave, pytestconfig, runtime, refusing_claims  # noqa: ARG001 - it skips
):  # fmt: skip
    program = nvidia_claims.program(pytestconfig)
    async with nvidia_claims.behind(pods, autoclave, program, LOGS):
        flags = (*await runtime(NO_RUNTIME), "--device-class", VENDOR_DRIVER)
        await table.shows("NVIDIA's DRA driver behind Autoclave", CLOSED, *flags, nodes=NVIDIA)


@pytest.mark.parametrize("level", REFUSED)
async def test_a_level_refuses_the_ways_that_need_a_right(table, pods, floor, level):
    await pods.offered(GPUS, floor)
    wanted = CLOSED | {"leftover": UNLESS_LATE, "handed-on": PASS}
    whys = await table.shows(f"level {level}", wanted, "--resource", floor, "--pod-security", level)
    refused = {name for name, why in whys.items() if "refused at admission: " in why and "violates PodSecurity" in why}
    assert refused == REFUSED[level], whys


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_interruption_at_a_random_moment_leaves_nothing(table, pods, autoclave, seed):
    moments = random.Random(seed)  # noqa: S311 - no secret
    number, moment = SIGNALS[seed % len(SIGNALS)], moments.uniform(0, LATEST)
    ways = [f"--way={name}" for name in moments.sample(sorted(CLOSED), 3)]
    run = table.start(LOGS / f"access/interrupted {seed}", *RUNS_ON, *ways)
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(run.wait, moment)
    assert run.returncode is None, f"the run came to its end in {moment:.1f} s: {run.communicate()}"
    run.send_signal(number)
    _, said = await asyncio.to_thread(run.communicate)
    print(f"seed {seed}: {number.name} after {moment:.1f} s, {' '.join(ways)}; {said.splitlines()[-1:]}")  # noqa: T201 - for the log
    if number is signal.SIGKILL:
        await _all_end(pods.client, hasten=True)
        labels = ",".join(f"{name}={value}" for name, value in LABELS.items())
        by_hand = table.run("kubectl", "delete", "namespace", "--selector", labels)  # as the page says
        _, refused = await asyncio.to_thread(by_hand.communicate)
        assert by_hand.returncode == 0, refused
    else:
        assert run.wait() in (130, 1, -number), said  # before it listens, it has made nothing
    assert await _names(pods.client) == []
    await _all_end(pods.client, hasten=False)
    await autoclave.clean()


async def _names(client: AsyncClient) -> list[str]:
    """All objects of a run: they are in its namespace."""
    listed = client.list(Namespace, labels=LABELS)
    return [str(each.to_dict()["metadata"]["name"]) async for each in listed]


async def _all_end(client: AsyncClient, *, hasten: bool) -> None:
    """Return when nothing runs of the command. ``hasten``: each pod has a deadline; bring it near."""
    while running := _processes():
        for namespace in await _names(client) if hasten else ():
            for pod in [each.to_dict() async for each in client.list(Pod, namespace=namespace)]:
                assert 0 < pod["spec"]["activeDeadlineSeconds"] <= LIVES
                name = str(pod["metadata"]["name"])
                await client.patch(Pod, name, {"spec": {"activeDeadlineSeconds": 1}}, namespace=namespace)
        for pid, words in running.items():
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                ready, _, _ = await asyncio.to_thread(select.select, [descriptor], [], [], WITHIN)
                os.close(descriptor)
                assert ready, f"process {pid} goes on: {words!r}"


def _processes() -> dict[int, bytes]:
    """The probes in containers, and the programs that the command has started."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes()
            if b"/probe/probe.py" in words or b"autoclave-access-" in words:
                found[int(folder.name)] = words
    return found
