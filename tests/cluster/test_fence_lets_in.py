"""Whom a fence that refuses lets in on the real node, at the first opening: owners of every kind, and who is exempt."""

import json
import os
from pathlib import Path
from signal import SIGKILL

import pytest
from lightkube.resources.core_v1 import Pod

from ground import paths
from scrubber.core.model import Holder
from scrubber.devices.simulated import layout
from scrubber.node import proc
from scrubber.node.bystanders import Bystander, Bystanders
from scrubber.node.pods import PodNames
from scrubber.node.sandboxes import Sandboxes
from tests.cluster.autoclave import SIMULATED
from tests.cluster.cluster import container
from tests.cluster.programs import MANIFESTS, NODE

EXEMPT = "kube-system"
ROUNDS = 3
QUALITIES = {
    "best effort": {},
    "burstable": {"requests": {"memory": "16Mi"}},
    "guaranteed": {"limits": {"cpu": "500m", "memory": "64Mi"}},
}


pytestmark = pytest.mark.usefixtures("refusing")


def _has_ended(pod) -> bool:
    return pod.status.phase in {"Succeeded", "Failed"}


def gpu_container(quality: str, *flags: str, **more):
    made = container(*flags, **more)
    for kind, amounts in QUALITIES[quality].items():
        made["resources"].setdefault(kind, {}).update(amounts)
    return made


@pytest.mark.parametrize("quality", QUALITIES)
async def test_pods_of_each_quality_open_their_gpus(cluster, quality) -> None:
    for number in range(ROUNDS):
        name = f"pod-{number}"
        await cluster.create(name, gpu_container(quality, "-for", "50ms", gpus=4))
        assert (await cluster.ended(name)).status.phase == "Succeeded", await cluster.refused()
        assert cluster.words(name).count("CLEAN") == 4


async def test_init_containers_and_restarts_open_their_gpus(cluster) -> None:
    inits = [container("-for", "50ms", name=f"init-{number}", gpus=2) for number in range(2)]
    main = container("-for", "100ms", "-exit", "1", gpus=2)
    beside = container("-for", "100ms", "-exit", "1", gpus=2, name="beside")
    await cluster.create("first", main, beside, initContainers=inits, restartPolicy="OnFailure")
    await cluster.said("first", "HOLDING", more=3)
    await cluster.said("first", "HOLDING", "beside", more=2)
    await cluster.delete("first")
    await cluster.hold("second", gpus=4)


async def test_a_static_pod_opens_its_gpus(cluster) -> None:
    metadata = {"name": "static", "namespace": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": cluster.spec(container(gpus=3))}
    file = MANIFESTS / "static.json"
    file.write_text(json.dumps(pod))
    try:
        await cluster.said(f"static-{NODE}", "HOLDING")
    finally:
        file.unlink()
    await cluster.gone(f"static-{NODE}")


async def test_pods_of_an_exempt_namespace_are_let_in_and_counted(cluster, autoclave) -> None:
    place = layout.places(SIMULATED)[0]
    number = place.memory.stat().st_rdev
    for round_ in range(ROUNDS):
        before = (await autoclave.clean())[0].receipt
        name = f"exempt-{round_}"
        opens = container("-open", "/gpu", "-number", str(number), "-for", "50ms", gpus=0)
        opens |= {"securityContext": {"privileged": True}}
        pod = {"metadata": {"name": name, "namespace": EXEMPT}, "spec": cluster.spec(opens)}
        await cluster.client.create(Pod.from_dict(pod), namespace=EXEMPT)
        await cluster.until(Pod, name, _has_ended, EXEMPT)
        await cluster.client.delete(Pod, name, grace_period=0, namespace=EXEMPT)
        assert "OPENED" in cluster.words(name), round_
        await autoclave.devices(lambda device, before=before: device.state == "clean" and device.receipt != before, 0)


async def test_an_exempt_pod_that_stays_keeps_no_tenancy(cluster, autoclave) -> None:
    """The tenant has ended: its GPUs must not look free to the scheduler while another pod has one of them open."""
    await cluster.hold("tenant", gpus=4)
    number = layout.places(SIMULATED)[0].memory.stat().st_rdev
    opens = container("-open", "/gpu", "-number", str(number), "-for", "1h", gpus=0)
    opens |= {"securityContext": {"privileged": True}}
    pod = {"metadata": {"name": "monitor", "namespace": EXEMPT}, "spec": cluster.spec(opens)}
    await cluster.client.create(Pod.from_dict(pod), namespace=EXEMPT)
    await cluster.said("monitor", "OPENED")
    await cluster.delete("tenant")
    await autoclave.devices(lambda device: device.state == "dirty" and not device.healthy, 0)
    await cluster.client.delete(Pod, "monitor", grace_period=0, namespace=EXEMPT)
    await autoclave.clean()


@pytest.mark.parametrize("quality", QUALITIES)
async def test_a_listed_program_in_a_pod_is_a_bystander(cluster, quality) -> None:
    """The runtime's own files name its pod. In a namespace of processes as here, no service can look up who asks."""
    await cluster.create("monitor", gpu_container(quality, "-for", "1h", gpus=0))
    pod = await cluster.until(Pod, "monitor", lambda pod: pod is not None and pod.status.phase == "Running")
    pid = _process(uid := str(pod.metadata.uid), "/gpuapp")
    holder = Holder(pid, proc.status(f"/proc/{pid}").started, "gpuapp", uid)
    names = PodNames(Sandboxes(Path("/")), Path(paths.POD_LOGS_DIR))
    known = {
        it: Bystanders([Bystander("/gpuapp", it)], Path("/proc"), names).knows(holder) for it in ("default", "other")
    }
    assert known == {"default": True, "other": False}


async def test_a_pod_whose_sandbox_is_made_again_opens_its_gpus(cluster) -> None:
    await cluster.create("holder", container(gpus=2), restartPolicy="Always")
    await cluster.said("holder", "HOLDING")
    uid = str((await cluster.client.get(Pod, "holder")).metadata.uid)
    os.kill(_process(uid, "/pause"), SIGKILL)
    await cluster.said("holder", "HOLDING", more=1)


def _process(uid: str, program: str) -> int:
    commands = Path("/proc").glob("[0-9]*/cmdline")
    names = {uid, uid.replace("-", "_")}  # of the control group: by the driver cgroupfs, and systemd
    [process] = [
        it
        for it in commands
        if _text(it).startswith(program) and any(name in _text(it.with_name("cgroup")) for name in names)
    ]
    return int(process.parent.name)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
