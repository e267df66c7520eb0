"""NVIDIA's own device plugin behind Autoclave: it registers with ours, and knows nothing of it."""

import re
from contextlib import nullcontext
from functools import partial
from signal import SIGKILL, SIGTERM

import pytest
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

from tests.cluster import files
from tests.cluster.autoclave import GPUS, registered, stand_by
from tests.cluster.cluster import container
from tests.cluster.escapes import stays_shut
from tests.cluster.nvidia import lose, mounted
from tests.cluster.programs import until_ready
from tests.fetching import fetch
from tests.plugin.live_plugin import FOLLOWED

ONLY_PREFERS = {"DP_DISABLE_HEALTHCHECKS": "all"}  # NVIDIA's plugin goes on calling a lost GPU healthy
STRATEGIES = ["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]


async def test_without_autoclave_the_next_pod_finds_the_secret(alone):
    """What the other tests rely on."""
    await alone.hold("first")
    await alone.cluster.delete("first")
    await alone.cluster.gone("first")
    await alone.hold("second", says="DIRTY")


async def test_without_autoclave_one_lost_gpu_fails_every_pod(node_with_nvidia, autoclave):
    """It reads the links of all GPUs before it prefers one (k8s-device-plugin#2038)."""
    it = node_with_nvidia
    autoclave.uninstall()
    it.vendor = it.nvidia(KUBELET_SOCKET="", **ONLY_PREFERS)
    it.vendor.start()
    await it.offered()
    lose(0)
    await it.cluster.create("one", container("-for", "50ms"))
    await it.cluster.until(Pod, "one", lambda pod: pod.status.phase == "Failed")
    [why] = await it.cluster.refused()
    assert "GetPreferredAllocation rpc failed" in why


async def test_one_lost_gpu_keeps_no_pod_off_the_others(behind, autoclave):
    behind.vendor.end()
    behind.vendor = behind.nvidia(**ONLY_PREFERS)
    async with behind.registered_again():
        behind.vendor.start()
    lose(0)
    await autoclave.quarantine("0")  # for an XID, its probation might pass before the last pod
    await behind.offered(GPUS - 1)
    rules = {"completions": 10, "parallelism": 1, "backoffLimit": 0}
    spec = mounted(behind.cluster.spec(), container("-for", "50ms", gpus=GPUS - 1), range(1, GPUS))
    await behind.cluster.create_job("many", rules | {"template": {"spec": spec}})
    await behind.cluster.until(Job, "many", lambda job: job.status.succeeded == 10)
    assert await behind.cluster.refused() == []
    assert "unable to get device link information" in behind.ours.log.read_text()
    await autoclave.reinstate("0")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ids", ["uuid", "index"])
async def test_the_next_pod_finds_no_byte_by_any_strategy(behind, strategy, ids):
    behind.vendor.end()
    behind.vendor = behind.nvidia(DEVICE_LIST_STRATEGY=strategy, DEVICE_ID_STRATEGY=ids)
    async with behind.registered_again():
        behind.vendor.start()
    await behind.hold("first")
    await behind.cluster.delete("first")
    await behind.hold("second")
    assert behind.cluster.words("second").count("CLEAN") == GPUS


async def test_only_a_pod_that_was_given_gpus_opens_them(behind, autoclave, gpu):
    await stays_shut(behind.cluster, autoclave, gpu, behind.hold)


@pytest.mark.long
async def test_no_pod_of_a_job_fails(behind):
    """A hundred pods, each with all GPUs."""
    spec = mounted(behind.cluster.spec(), container("-for", "50ms", gpus=GPUS))
    rules = {"completions": 100, "parallelism": 1, "backoffLimit": 200, "template": {"spec": spec}}
    await behind.cluster.create_job("many", rules)
    await behind.cluster.until(Job, "many", lambda job: job.status.succeeded == 100)
    assert await behind.cluster.refused() == []


async def test_a_pod_waits_for_a_force_deleted_one(behind):
    await behind.hold("first", "-stubborn")
    await behind.cluster.delete("first", grace=0)
    await behind.hold("second")


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("part", ["vendor", "ours", "kubelet"])
async def test_a_pod_keeps_its_gpus_over_a_restart(behind, node, part, number):
    await behind.hold("first")
    program = node.kubelet if part == "kubelet" else getattr(behind, part)
    async with nullcontext() if part == "vendor" else registered(behind.ours.log):
        program.end(number)
        program.start()
    await behind.cluster.said("first", "INTACT", more=4)
    await behind.cluster.delete("first")
    await behind.hold("second")
    assert behind.cluster.words("second").count("CLEAN") == GPUS


async def test_a_restart_of_nvidias_plugin_ends_no_quarantine(behind, autoclave):
    [device, *_] = await autoclave.devices(lambda _: True)
    await autoclave.quarantine(device.device)
    await behind.offered(GPUS - 1)
    behind.vendor.end(SIGKILL)
    async with behind.registered_again():
        behind.vendor.start()
    await behind.offered(GPUS - 1)
    await autoclave.reinstate(device.device)
    await behind.offered()
    await behind.hold("pod")


def ready(log):
    [address] = re.findall('"address": "(.*?)"', log.read_text())
    return fetch(address, "/readyz") == (200, "ready\n")


async def test_two_updates_in_a_row_stop_at_no_node(behind):
    """A DaemonSet stops the old pod when the new one is ready. NVIDIA's plugin has registered with the old one only."""
    await behind.hold("first")
    for name, last in (("second", "first"), ("third", "second")):
        following = await stand_by(behind.ours)
        until_ready(following, partial(ready, following.log))
        behind.ours.end()
        behind.ours = following
        await files.until(following.log, lambda: FOLLOWED in behind.ours.log.read_text())
        await behind.offered()
        await behind.cluster.said(last, "INTACT", more=4)
        await behind.cluster.delete(last)
        await behind.hold(name)
        assert behind.cluster.words(name).count("CLEAN") == GPUS


def all_healthy(log):
    return '"healthy": 4' in [line for line in log.read_text().splitlines() if '"event": "list"' in line][-1]


async def test_the_gate_comes_and_goes_while_a_pod_runs(node_with_nvidia, autoclave):
    """As the page has it: under ``mode: observe`` first, because the first pod is given no GPU by us."""
    autoclave.rule(mode="observe")
    await autoclave.devices(lambda device: device.fence == "watch")
    it = node_with_nvidia
    it.vendor = it.nvidia(KUBELET_SOCKET="")
    it.vendor.start()
    await it.offered()
    await it.hold("first")
    it.vendor.end()
    it.vendor = it.nvidia()
    async with registered(it.ours.log):
        await it.start()
    await it.offered()
    await it.cluster.said("first", "INTACT", more=4)
    await it.cluster.delete("first")
    await it.cluster.gone("first")
    autoclave.rule()
    await autoclave.ready()
    await files.until(it.ours.log, partial(all_healthy, it.ours.log))  # the scheduler may have an older list
    await it.hold("second")
    assert it.cluster.words("second").count("CLEAN") == GPUS
    it.end()
    it.vendor = it.nvidia(KUBELET_SOCKET="")
    it.vendor.start()
    await it.cluster.said("second", "INTACT", more=4)
    await it.offered()
    assert it.cluster.faults() == []
