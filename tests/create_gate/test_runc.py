"""Containers of the real runc behind the gate, with the real service on simulated GPUs."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from demo.standins.kubelet import Kubelet
from ground import paths
from scrub_api import client
from tests.create_gate.containers import SPECIFICATION, Containers
from tests.create_gate.programs import compiled
from tests.live import Service
from tests.plugin.live_plugin import Plugin, until_files

RUNS = "it runs\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What the containers run."""
    return compiled(tmp_path_factory.mktemp("runs") / "runs", Path(__file__).with_name("runs.c"))


@pytest.fixture
def containers(short_tmp, runs):
    """Containers, where root can make them."""
    if shutil.which("runc") is None or os.geteuid() != 0:
        pytest.skip("takes root, and runc")
    it = Containers(short_tmp, runs)
    said = it.run("probe", [])
    if said != RUNS:
        pytest.skip(f"runc can create no container here: {said}")
    return it


@pytest.fixture
def service(short_tmp, program, containers):
    """The service with the gate."""
    it = Service(short_tmp, 2, "--create-gate", program, "--gate-cdi-dir", containers.cdi)
    it.hear("create gate covers")
    yield it
    it.kill()


@pytest.fixture
def gpus(service):
    """The GPUs, clean."""
    return [service.settled(number, "clean").device for number in range(2)]


def test_a_container_is_created_on_a_clean_gpu(containers, gpus, service):
    assert containers.run("c1", containers.hooks(gpus[0])) == RUNS
    status = service.settled(0, "in_use")
    assert (status.owner, status.pod) == ("a", "team/train-0/main")


async def test_a_plugin_registers_without_the_service(containers, gpus, service, short_tmp):
    assert containers.run("c1", [*containers.hooks(gpus[0]), *containers.hooks(gpus[1])]) == RUNS
    async with client.ScrubberClient(paths.scrubber_socket(service.run_dir)) as scrubber, Kubelet(short_tmp) as kubelet:
        await until_files(
            lambda: (left := scrubber.last_list()) and all(it.waits for it in left.devices), service.run_dir
        )
        service.kill()
        plugin = await Plugin(short_tmp).start()
        await kubelet.until(lambda: kubelet.devices("nvidia.com/gpu") == dict.fromkeys(gpus, "Healthy"))
        await plugin.clear_away()
    service.start()


def test_each_gpu_of_a_container_is_asked_for(containers, gpus, service):
    service.popen("quarantine", "1", "--reason", "a drill").wait()
    said = containers.run("c1", [*containers.hooks(gpus[0]), *containers.hooks(gpus[1])])
    assert f"cannot start on {gpus[1]}: it is quarantined" in said


def test_a_container_of_another_pod_is_not_created(containers, gpus):
    assert containers.run("c1", containers.hooks(gpus[0])) == RUNS
    [hook] = containers.hooks(gpus[0])
    hook["args"][-1] = "4"
    said = containers.run("c2", [hook], pod="b")
    assert f"pod team/train-0 is not created: cannot start on {gpus[0]}: it is still in use" in said
    assert containers.run("c3", containers.hooks(gpus[0])) == RUNS


def test_containers_of_a_claim_are_created_until_it_ends(containers, gpus, service):
    """It may have several pods; another claim's containers are not created."""
    [hook] = containers.hooks(gpus[0])
    hook["args"][2] += ".claim-1"
    assert "the claim of the container does not have it" in containers.run("c1", [hook])
    service.popen("acquire", "0", "--owner", "claim-1").wait()
    for pod in ("a", "b"):
        assert containers.run(f"of-{pod}", [hook], pod) == RUNS
    other = {**hook, "args": [*hook["args"][:2], f"{gpus[0]}.claim-2", *hook["args"][3:]]}
    assert "the claim of the container does not have it" in containers.run("c2", [other])
    while service.popen("release", "--owner", "claim-1").wait():  # refused while the last container may still begin
        pass
    assert "the claim of the container does not have it" in containers.run("c3", [hook])


def test_while_a_gpu_is_scrubbed_no_container_is_created(containers, gpus, service):
    [hook] = containers.hooks(gpus[0])
    hook["args"][-1] = "4"
    service.popen("simulate", "stall-clears", "0").wait()
    service.popen("scrub", "0", "--no-wait").wait()
    assert f"cannot start on {gpus[0]} in time: it is being scrubbed" in containers.run("c1", [hook])


def test_without_the_service_no_container_is_created(containers, gpus, service):
    [hook] = containers.hooks(gpus[0])
    hook["args"][-1] = "1"
    service.kill()
    assert "the scrub service does not answer" in containers.run("c1", [hook])


def test_a_container_waits_while_the_service_restarts(containers, gpus, service):
    service.kill()
    service.start()
    assert containers.run("c1", containers.hooks(gpus[0])) == RUNS


def test_without_the_program_no_container_is_created(containers, gpus):
    [hook] = containers.hooks(gpus[0])
    Path(hook["path"]).unlink()
    assert "no such file" in containers.run("c1", [hook])


def test_the_runtime_waits_no_longer_than_its_limit(containers, short_tmp, program):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(short_tmp / "silent.sock"))
        silent.listen()
        hook = {"path": str(program), "args": ["gate", str(short_tmp / "silent.sock"), "GPU-1", "60"], "timeout": 1}
        assert containers.run("c1", [hook]) != RUNS


def test_a_service_without_the_gate_opens_it(containers, gpus, service):
    service.stop()
    flag = service.command.index("--create-gate")
    del service.command[flag : flag + 2]
    service.start()
    specification = json.loads((containers.cdi / SPECIFICATION).read_bytes())
    assert [(it["name"], it["containerEdits"]) for it in specification["devices"]] == [
        (gpu, {"env": ["AUTOCLAVE_GATE=off"]}) for gpu in sorted(gpus)
    ]
