"""The whole service on NVIDIA GPUs: the real pynvml, real processes and a real tool, over libraries of our own.

It runs in a pid namespace, as this machine may hide processes from it that are none of its business.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoclave.cli import service_call
from scrub_api import admin_client
from scrubber.words import nvidia_advice
from tests.cli import on_machine
from tests.cli.on_machine import POLICY, OnMachine, children, needs_namespace, shown, staged, without_cupy
from tests.devices.nvidia.health.events_seen import until
from tests.fakes.cuda.fixtures import libraries
from tests.fakes.cuda.machine import equip
from tests.fakes.nvml.machine import Slice
from tests.patience import WITHIN

pytestmark = needs_namespace
library = on_machine.library  # a fixture

STAY = "import signal, sys; held = open(sys.argv[1]); print(flush=True); signal.pause()"


@pytest.fixture(scope="module")
def service(library) -> Iterator[OnMachine]:
    """Four GPUs: two whole ones, one cut into slices, which CUDA does not show, and one that is too old."""
    with tempfile.TemporaryDirectory(prefix="ac-", dir="/tmp") as directory:
        root = Path(directory)
        stage = staged(root, library, 4)
        stage.machine.gpu(2).cut([Slice("3g.71gb"), Slice("1g.18gb")])
        stage.machine.gpu(3).set({"compute.major": 7, "compute.minor": 0})
        cuda = equip(root / "cuda", stage.machine.gpus[:2], libraries())
        running = OnMachine(root, stage, POLICY, cuda.environment(library.parent))
        for name, state in (("0", "clean"), ("1", "clean"), ("2:0", "quarantined"), ("2:1", "quarantined")):
            running.settled(name, state)
        yield running
        running.stop()


@pytest.mark.usefixtures("service")
def test_backend_auto_takes_the_kind_of_gpus_on_the_node(autoclave):
    status = json.loads(autoclave("status", "-o", "json").stdout)
    assert [(item["index"], item["slice"], item["model"]) for item in status["items"]] == [
        (0, None, "NVIDIA H200"), (1, None, "NVIDIA H200"),
        (2, 0, "NVIDIA H200 MIG 3g.71gb"), (2, 1, "NVIDIA H200 MIG 1g.18gb"),
        (3, None, "NVIDIA H200"),
    ]  # fmt: skip
    wide = autoclave("status", "2:1", "-o", "wide").stdout.splitlines()
    assert wide[1].startswith("2:1 ")
    assert "nvidia 580.95.05" in wide[1]


@pytest.mark.usefixtures("service")
def test_the_index_of_a_sliced_gpu_selects_its_slices(autoclave):
    said = autoclave("explain", "2")
    assert said.exit_code == 2
    assert re.search(r"it could be any of 2:0 \(MIG-[-0-9a-f]+\), 2:1 \(MIG-[-0-9a-f]+\); give its UUID$", said.stderr)


OLD = "cannot clear its memory: no kernels for compute capability 7.0: Turing (7.5) or newer is needed"


def test_a_gpu_too_old_for_the_kernels_is_not_offered(service, autoclave):
    """Nothing is gained by a reset after which the memory cannot be overwritten."""
    (item,) = json.loads(autoclave("status", "3", "-o", "json").stdout)["items"]
    assert (item["state"], item["healthy"], item["setback"]) == ("unknown", False, OLD)
    refused = autoclave("scrub", "3")
    assert (refused.exit_code, f"cannot scrub GPU 3: {OLD}" in refused.stderr) == (1, True)
    autoclave("quarantine", "3", "--reason", "old")
    refused = autoclave("reinstate", "3")
    assert (refused.exit_code, f"cannot reinstate GPU 3: {OLD}" in refused.stderr) == (1, True)
    history = service_call.ask(service.run_dir, lambda admin: admin.history("3"))
    assert not [entry.text for entry in history if entry.kind in ("scrub-started", "probation-started")]


NO_CUPY = f"CuPy is not installed: {nvidia_advice.INSTALL}"
CANNOT = "no memory of a real GPU can be cleared"
BROKEN = "CuPy is installed but cannot be loaded: ImportError: libcudart.so.99: no such file"


async def idle(admin: admin_client.AdminClient) -> None:
    """What was begun before the zygote has told is over."""
    status = await admin.status(["0"])
    while status.devices[0].job is not None:
        status = await admin.status(["0"], newer_than=status.service.ledger_rows, wait=10)


@pytest.mark.parametrize(
    ("code", "lacks"), [(None, NO_CUPY), ("raise ImportError('libcudart.so.99: no such file')", BROKEN)]
)
def test_a_broken_cupy_is_reported_and_no_gpu_is_touched(autoclave, library, short_tmp, code, lacks):
    environment = without_cupy(short_tmp / "site")
    if code is not None:
        (short_tmp / "site/sitecustomize.py").rename(short_tmp / "site/cupy_backends.py").write_text(code)
    bare = OnMachine(short_tmp, staged(short_tmp, library, 1), POLICY, environment)
    variables = {"AUTOCLAVE_RUN_DIR": str(bare.run_dir)}
    try:
        if not any(CANNOT in line for line in bare.log_lines):
            bare.hear(CANNOT)
        service_call.ask(bare.run_dir, idle)
        refused = autoclave("scrub", "0", "--path", "slow", **variables)
        why = f"cannot scrub GPU 0: cannot clear its memory: {lacks}"
        assert (refused.exit_code, why in refused.stderr) == (1, True)
        steps = ("evict", "reset", "clear")
        assert [text for text in bare.texts("0") if text.startswith(steps) and " passed" in text] == []
        assert not any(call == "nvmlShutdown" for pid, call, _ in bare.stage.machine.calls() if pid == 1)
        places = ("--host-root", bare.stage.root.path, "--kubelet-dir", short_tmp)
        found = json.loads(autoclave("doctor", "-o", "json", *places, **variables).stdout)["findings"]
        (finding,) = (it for it in found if it["name"] == "cupy")
        assert (finding["level"], finding["text"].endswith(f"it hands out no GPU: {lacks}")) == ("broken", True)
    finally:
        bare.stop()


@pytest.mark.usefixtures("service")
def test_the_doctor_tells_which_cupy_the_service_has(service, autoclave):
    run = autoclave("doctor", "-o", "json", "--host-root", service.stage.root.path, "--kubelet-dir", service.root)
    findings = {it["name"]: it for it in json.loads(run.stdout)["findings"]}
    assert findings["cupy"]["text"].startswith("CuPy 14")
    assert "compute capability 7.0" in findings["scrub-on-free"]["text"]


def test_a_reset_by_the_tool_finds_the_driver_closed(service, autoclave):
    assert autoclave("scrub", "1", "--path", "reset").exit_code == 0
    assert any(text.startswith("reset passed") and text.endswith(" (by nvidia-smi)") for text in service.texts(1))
    assert any(call[:2] == (1, "nvmlShutdown") for call in service.stage.machine.calls())  # 1: the service


def reset_by_others(machine: OnMachine, enter: list[str]) -> subprocess.CompletedProcess[str]:
    command = [*enter, "nvidia-smi", "--gpu-reset", "-i", machine.stage.machine.gpu(0).uuid]
    env = os.environ | machine.stage.environment(os.environ["PATH"])
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_stop_for_a_reset_by_others_ends_proofs(library, short_tmp):
    """As NVSentinel's GPUReset does it: with NVIDIA's tool, after the programs that use the GPU were stopped."""
    stage = staged(short_tmp, library, 1)
    environment = equip(short_tmp / "cuda", stage.machine.gpus, libraries()).environment(library.parent)
    bare = OnMachine(short_tmp, stage, POLICY, environment)
    try:
        before = bare.settled(0, "clean").receipt
        refused = reset_by_others(bare, ["nsenter", "--target", str(bare.inner), "--pid"])
        assert (refused.returncode, "In use by another client" in refused.stdout) == (255, True)
        assert bare.settled(0, "clean").receipt == before
        bare.stop()
        assert reset_by_others(bare, []).returncode == 0
        bare.start()
        after = bare.settled(0, "clean").receipt
        assert before is not None
        assert after is not None
        assert after.previous == before.digest
        assert not any(text.startswith("reset passed") for text in bare.texts(0))
    finally:
        bare.stop()


def verb(autoclave, device: str) -> str:
    """What brings a device back by hand, wherever another test has left it."""
    (item,) = json.loads(autoclave("status", device, "-o", "json").stdout)["items"]
    return "reinstate" if item["state"] == "quarantined" else "scrub"


@pytest.fixture
def at_rest(service):
    """The GPU that tests hold, while no earlier job is on it: a request for a scrub would join that job."""
    service.settled("0", "clean", "quarantined")


def try_again(autoclave):
    return autoclave(verb(autoclave, "0"), "0")


@pytest.mark.usefixtures("at_rest")
def test_a_holder_is_ended_where_the_policy_allows_it(service, autoclave):
    with service.hold(0) as holder:
        done = try_again(autoclave)
        assert done.exit_code == 0, done.output
        assert holder.wait(WITHIN) == -signal.SIGTERM
    assert any("(evict) passed" in text and "ended" in text for text in service.texts(0))


@pytest.fixture
def tool(service) -> Iterator[Path]:
    """One that goes on for as long as a file is there, after it has taken the slices away."""
    with service.stage.machine.hanging("nvidia-smi") as file:
        yield file


def slices(service) -> set[str]:
    state = service.stage.machine.read()
    return {value for key, value in state.items() if key.startswith("gpu.2.mig.") and key.endswith(".uuid")}


def worker_of(pid: int) -> int:
    """The process below that one which has started the tool."""
    below = children(pid)
    if any("--gpu-reset" in shown(child, "cmdline") for child in below):
        return pid
    return next((found for child in below if (found := worker_of(child))), 0)


def in_the_middle_of_a_reset(service, autoclave) -> subprocess.Popen[str]:
    """A scrub of the second slice; its tool has just taken the slices away.

    A slice that has just come back is not known to be free before the next round.
    """
    path = ("--path", "reset") if (how := verb(autoclave, "2:1")) == "scrub" else ()
    scrub: subprocess.Popen[str] = service.popen(how, "2:1", *path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until(lambda: not slices(service) or scrub.poll() is not None)
    if scrub.poll() is None:
        return scrub
    assert "it cannot be proven that no process uses it" in scrub.communicate()[0]
    return in_the_middle_of_a_reset(service, autoclave)


def test_a_reset_of_slices_works_while_their_files_are_gone(service, autoclave, tool):
    """Without their files the holders are unknown; the slices must come back all the same."""
    before, seen_before = slices(service), len(service.texts("2:0"))
    with in_the_middle_of_a_reset(service, autoclave) as scrub:
        time.sleep(1.0)  # several looks for intruders
        tool.unlink()
        assert scrub.wait(WITHIN) == 1  # no CUDA shows it
    assert [text for text in service.texts("2:1") if text.startswith("reset")][-1].startswith("reset passed")
    assert slices(service) == before
    assert not [text for text in service.texts("2:0")[seen_before:] if "lost" in text]


def test_a_new_service_restores_slices_that_a_killed_one_left(service, autoclave, tool):
    """No job can: a GPU without its slices is no device of anybody's."""
    before = slices(service)
    with in_the_middle_of_a_reset(service, autoclave):
        service.kill()
    tool.unlink()
    service.start(until="pending restore complete")  # which may come before it serves
    assert slices(service) == before
    assert not list((service.root / "state/settings").glob("*resetting*"))


def test_a_reset_tool_that_outlives_its_worker_is_awaited(service, autoclave, tool):
    """The step was late, so that its worker was killed; a reset cannot be called back."""
    before = slices(service)
    with in_the_middle_of_a_reset(service, autoclave) as scrub:
        os.kill(worker_of(service.inner), signal.SIGKILL)
        assert scrub.wait(WITHIN) == 1
        calls = len(service.stage.machine.calls())
        time.sleep(3.0)  # a round of the monitor, which would ask the driver
        assert len(service.stage.machine.calls()) == calls
        assert slices(service) == set()
        tool.unlink()
    service.hear("pending restore complete")
    assert slices(service) == before


@pytest.mark.usefixtures("at_rest")
def test_an_adopted_orphan_does_not_count_as_our_worker(service, autoclave):
    """The first process of a namespace inherits all orphans."""
    node = service.stage.root.node(service.stage.machine.gpu(0))
    begin = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STAY!r}, sys.argv[1]], stdout=-1)"
    seen_before = len(service.texts(0))
    enter = ["nsenter", "--target", str(service.inner), "--pid", sys.executable, "-c", f"{begin}.stdout.readline()"]
    subprocess.run([*enter, str(node)], check=True)
    assert try_again(autoclave).exit_code == 0
    assert any("(evict) passed" in text and "ended" in text for text in service.texts(0)[seen_before:])
