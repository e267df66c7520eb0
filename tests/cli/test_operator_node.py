"""A node of NVIDIA's GPU operator: its usual programs keep all GPUs open, and the default policy applies.

The programs are real processes in pods of their own, under the paths that the operator's images give them. The pod logs
of the kubelet say in which namespace a pod is.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from scrub_api import client, views
from tests.cli import on_machine
from tests.cli.on_machine import OnMachine, needs_namespace, staged
from tests.fakes.cuda.fixtures import libraries
from tests.fakes.cuda.machine import equip
from tests.fakes.nvml.build import compiler
from tests.patience import WITHIN
from tests.pod_groups import roots

pytestmark = needs_namespace
library = on_machine.library  # a fixture

# The default policy, but for the size of the stand-in's memory and the time of its tests.
POLICY = """\
name: default
rules: [{name: small, match: {}, policy: {clear: {min_coverage: 0.7}, selftest: {time: 1s}}}]
"""
GPUS = 2
EXPORTER = "dcgm-exporter"
DRA_DRIVER = "gpu-kubelet-plugin"
PROGRAMS = [  # the namespace and the program
    *(
        ("gpu-operator", name)
        for name in (
            EXPORTER, "nv-hostengine", "nvidia-device-plugin", "gpu-feature-discovery", "nvidia-mig-manager",
            "nvidia-validator",
        )
    ),
    ("nvidia-gpu-operator", EXPORTER),
    ("gpu-operator-resources", EXPORTER),
    ("nvidia-dra-driver-gpu", DRA_DRIVER),
    ("nvidia", DRA_DRIVER),
    ("dra-driver-nvidia-gpu", DRA_DRIVER),
    ("dra-driver-nvidia-gpu", "compute-domain-kubelet-plugin"),
]  # fmt: skip
HOLDER = """
#include <fcntl.h>
#include <unistd.h>
int main(int count, char **names) {
    for (int i = 1; i < count; i++) if (open(names[i], O_RDONLY) < 0) return 1;
    if (write(1, "\\n", 1) != 1) return 1;
    char byte;
    return (int)read(0, &byte, 1);  /* until the test closes its side */
}
"""
# In mounts of its own the program is in /usr/bin, as in the image that it comes with.
START = 'for group in $POD_GROUPS; do echo $$ > "$group/cgroup.procs"; done; exec nsenter --target "$INNER" --pid "$@"'
INSIDE = 'mount --bind "$0" /usr/bin && exec "$@"'


@contextmanager
def pod(node: OnMachine, namespace: str, program: str, images: Path) -> Iterator[int]:
    """A running pod with that program, which has all GPUs open; yields its pid as the node sees it."""
    uid = str(uuid.uuid4())
    groups = [root / f"kubepods/pod{uid}" for root in roots().values()]
    try:
        for group in groups:
            group.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"takes root, to make a control group: {error.strerror}")
    logs = node.stage.root.path / f"var/log/pods/{namespace}_{program}_{uid}"
    logs.mkdir(parents=True)
    files = [str(node.stage.root.node(gpu)) for gpu in node.stage.machine.gpus]
    run = ["unshare", "--mount", "sh", "-c", INSIDE, str(images), f"/usr/bin/{program}", *files]
    environment = {**os.environ, "POD_GROUPS": " ".join(map(str, groups)), "INNER": str(node.inner)}
    with subprocess.Popen(
        ["sh", "-c", START, "sh", *run], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"\n"
        yield process.pid
        process.stdin.close()
        process.wait(WITHIN)
    for group in groups:
        group.rmdir()
    shutil.rmtree(logs)


@pytest.fixture
def images(tmp_path) -> Path:
    """The folder /usr/bin of all images."""
    folder: Path = tmp_path / "images"
    folder.mkdir()
    source = tmp_path / "holder.c"
    source.write_text(HOLDER)
    built = tmp_path / "holder"
    subprocess.run([compiler() or "cc", "-static", "-o", built, source], check=True)
    for _, program in PROGRAMS:
        shutil.copy(built, folder / program)
    return folder


@pytest.fixture
def node(library) -> Iterator[OnMachine]:
    """A service that is stopped: the test starts it when the programs run."""
    with tempfile.TemporaryDirectory(prefix="ac-", dir="/tmp") as directory:
        root = Path(directory)
        stage = staged(root, library, GPUS)
        cuda = equip(root / "cuda", stage.machine.gpus, libraries())
        running = OnMachine(root, stage, POLICY, cuda.environment(library.parent))
        yield running
        running.stop()


def steps(device: views.DeviceStatus) -> list[str]:
    assert device.receipt is not None
    return [step.step for step in device.receipt.steps]


def test_programs_of_the_gpu_operator_prevent_only_a_reset(node, images, autoclave):
    variables = {"AUTOCLAVE_RUN_DIR": str(node.run_dir)}
    with ExitStack() as pods:
        for namespace, program in PROGRAMS:
            pods.enter_context(pod(node, namespace, program, images))
        for gpu in range(GPUS):
            done = autoclave("scrub", str(gpu), "--path", "slow", **variables)
            assert done.exit_code == 0, done.output
            assert "reset" not in steps(node.settled(gpu, "clean"))

        run = autoclave(
            "doctor", "-o", "json", "--host-root", node.stage.root.path, "--kubelet-dir", node.root, **variables
        )
        (finding,) = (it for it in json.loads(run.stdout)["findings"] if it["name"] == "reset")
        assert finding["text"].startswith("no reset of GPU 0, 1 is possible: it is open in ")
        assert f"nvidia.com/gpu.deploy.{EXPORTER}=false" in finding["remedy"]

        node.stage.machine.gpu(0).set({"memory.used": 300 * 2**20})  # leaked: only a reset frees it
        refused = autoclave("scrub", "0", **variables)
        assert refused.exit_code == 1
        assert f'"{EXPORTER}" (pid ' in refused.stderr
        assert f"nvidia.com/gpu.deploy.{EXPORTER}=false" in refused.stderr
        assert node.settled(0, "dirty", "scrubbing").receipt is None
    assert "reset" in steps(node.settled(0, "clean"))


@pytest.fixture
def run(node, autoclave):
    """A verb on this node; its standard output."""

    def run(*words: str, exit_code: int = 0) -> str:
        places = {"AUTOCLAVE_RUN_DIR": str(node.run_dir), "AUTOCLAVE_HOST_ROOT": str(node.stage.root.path)}
        done = autoclave(*words, **places)
        assert done.exit_code == exit_code, done.output
        return str(done.stdout)

    return run


def test_the_printed_policy_line_admits_a_program_in_another_namespace(node, images, run):
    with pod(node, "site-gpus", DRA_DRIVER, images):
        run("scrub", "0", exit_code=1)
        report = json.loads(run("doctor", "-o", "json", "--only", "bystanders"))
        (remedy,) = {it["remedy"] for it in report["findings"]}
        assert f"/usr/bin/{DRA_DRIVER} is NVIDIA's: {remedy}" in run("explain", "0")
        line = remedy.split("`")[1]
        (node.root / "policy.yaml").write_text(f"{POLICY}{line}\n")
        os.kill(node.inner, signal.SIGHUP)
        node.hear("policy")
        run("scrub", "0")
        assert json.loads(run("doctor", "-o", "json", "--only", "bystanders"))["level"] == "ok"


def test_nvidias_dra_driver_ends_no_scrub_and_no_proof(node, images, run):
    """It opens the GPU in each Prepare. With its health checks it keeps the GPU open."""

    async def acquire() -> None:
        async with client.ScrubberClient(node.run_dir / "scrubber.sock") as scrubber:
            await scrubber.acquire([device], exclusive=True, owner="claim-1")

    device = node.settled(0, "clean").device
    run("scrub", "0", "--no-wait", "--path", "slow")
    while node.settled(0, "scrubbing", "clean").state == "scrubbing":
        with pod(node, "dra-driver-nvidia-gpu", DRA_DRIVER, images):
            pass
    with pod(node, "dra-driver-nvidia-gpu", DRA_DRIVER, images):
        run("scrub", "0")
        proof = node.settled(0, "clean").receipt
        asyncio.run(acquire())
    assert node.settled(0, "granted").receipt == proof
    assert [text for text in node.texts(0) if "used by" in text or "without a grant" in text] == []
