"""``autoclave access`` as a person types it: its files, its exit codes, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import click
import pytest
import yaml
from lightkube.resources.core_v1 import Namespace, Pod, ResourceQuota
from lightkube.resources.resource_v1 import ResourceClaimTemplate as Template

from access import manifest_files
from access.hearing import LIVES
from tests.access.stand_ins import NODES, Node
from tests.cli.on_machine import needs_namespace

ROOT = Path(__file__).parents[2]
ON_PODMAN = ("--on", "podman", "--image", "ours:1", "--gpu", "/dev/gpu0", "--nodes", NODES)
ON_DOCKER = ("--on", "docker", "--image", "ours:1")
ON_KUBERNETES = ("--image", "ours:1", "--node", "node-1", "--nodes", NODES)


@pytest.fixture
def node(tmp_path):
    (tmp_path / "node").mkdir()
    for _ in (made := Node(tmp_path / "node")).serve():
        yield made


def started(node, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "autoclave", "access", "run", "--to", str(node.root / "out"), *flags]
    variables = os.environ | {"PATH": f"{node.root / 'programs'}:{os.environ['PATH']}"}
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ran(node, *flags: str) -> subprocess.CompletedProcess[str]:
    with started(node, *flags) as run:
        out, said = run.communicate()
    assert node.leftovers == []
    return subprocess.CompletedProcess(run.args, run.returncode, out, said)


@needs_namespace
@pytest.mark.parametrize(("leaks", "code"), [((), 0), (("privileged",), 1)])
def test_a_run_writes_a_page_json_and_junit(node, leaks, code):
    node.leaks = set(leaks)
    run = ran(node, *ON_PODMAN, "--way", "privileged", "--way", "host-dev")
    assert run.returncode == code, run.stderr
    assert f"privileged: {'fail: it opened /dev/gpu0' if code else 'pass: it saw no node'}" in run.stderr
    result = json.loads((node.root / "out" / "result.json").read_text())
    verdicts = {way["way"]: way["verdict"] for way in result["ways"] if way["chosen"]}
    assert (verdicts["privileged"], verdicts["host-dev"]) == ("fail" if code else "pass", "pass")
    assert (result["format"], result["exit_code"], result["owner"]["opened"]) == (
        "autoclave-access/1", code, ["/dev/gpu0 c:1:7"],
    )  # fmt: skip
    assert [case["verdict"] for case in result["conformance"]] == ["pass", "pass", "not applicable"]
    assert result["sha256"] == manifest_files.digests()
    suite = ET.fromstring((node.root / "out" / "junit.xml").read_text())  # noqa: S314 - our own file
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("17", str(code), "0")
    page = (node.root / "out" / "report.md").read_text()
    words = " ".join(page.split())
    assert (
        "`autoclave access run --on podman --way privileged --way host-dev --image IMAGE --gpu /dev/gpu0 --nodes '"
        in words
    )
    assert "Contexts and secrets are unknown: there is no library of the driver." in words
    assert ("It was tried in 3 of 16 ways." in words) is (code == 0)
    assert "| a second container of a pod, without the claim, finds no GPU | not applicable |" in page
    assert "ours:1" not in page + json.dumps(result)


@needs_namespace
def test_without_a_gpu_there_is_no_answer(node):
    node.gpus = []
    run = ran(node, *ON_PODMAN)
    assert (run.returncode, "the owner did not get its GPU: it opened no node" in run.stderr) == (2, True)
    assert "There is no answer: no owner had a GPU" in run.stdout
    suite = ET.fromstring((node.root / "out" / "junit.xml").read_text())  # noqa: S314 - our own file
    assert int(suite.get("errors", "")) > 1


@needs_namespace
@pytest.mark.parametrize(("number", "leaks", "code"), [(signal.SIGINT, (), 130), (signal.SIGTERM, ("variable",), 1)])
def test_an_interruption_keeps_what_was_found(node, number, leaks, code):
    node.leaks = set(leaks)
    with started(node, *ON_KUBERNETES) as run:
        assert run.stderr is not None
        assert any(line.startswith("runtime-class: It") for line in run.stderr)  # until this line
        run.send_signal(number)
        run.communicate()
    assert (run.returncode, node.leftovers) == (code, [])
    result = json.loads((node.root / "out" / "result.json").read_text())
    assert result["ended_early"] == "it was interrupted"
    assert result["ways"][0]["verdict"] == "pass"


@needs_namespace
def test_what_could_not_be_removed_is_said(node):
    node.stays = True
    run = ran(node, *ON_KUBERNETES, "--way", "variable")
    node.namespaces.clear()
    assert (run.returncode, "autoclave: something may be left: `kubectl delete namespace" in run.stderr) == (2, True)


REFUSED = "The connection to the server localhost:8080 was refused - did you specify the right host or port?"
SAID = f"`kubectl auth can-i create namespaces` ended with status 1: {REFUSED}"
KUBECONFIG = "set KUBECONFIG, or choose another context with `kubectl config use-context`"


NO_DAEMON = "Cannot connect to the Docker daemon at unix:///run/docker.sock. Is the docker daemon running?"
START_IT = "start its daemon, or run the command as a user whom it serves"


@pytest.mark.parametrize(
    ("flags", "program", "says", "why"),
    [
        (ON_KUBERNETES, "kubectl", "",
         "cannot start containers: kubectl is not in PATH; install it, or add its directory to PATH"),
        (ON_KUBERNETES, "kubectl", REFUSED, f"cannot start pods: no cluster answers: {SAID}; {KUBECONFIG}"),
        (ON_DOCKER, "docker", NO_DAEMON, f"cannot start containers: docker does not answer: {NO_DAEMON}; {START_IT}"),
    ],
    ids=["no kubectl", "no cluster", "no daemon"],
)  # fmt: skip
def test_without_a_place_one_sentence_says_what_to_do(tmp_path, flags, program, says, why):
    if says:
        (tmp_path / program).write_text(f"#!/bin/sh\necho '{says}' >&2; exit 1\n")
        (tmp_path / program).chmod(0o755)
    command = [sys.executable, "-m", "autoclave", "access", "run", "--to", str(tmp_path / "out"), *flags]
    variables = os.environ | {"PATH": str(tmp_path)}
    run = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (2, "", f"autoclave: {why}\n")
    assert not (tmp_path / "out").exists()


def printed(*flags: str) -> str:
    command = [sys.executable, "-m", "autoclave", "access", "run", "--dry-run", "--image", "ours:1", "--node", "n"]
    return subprocess.run([*command, *flags], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("flags", [(), ("--device-class", "gpu.nvidia.com"), ("--pod-security", "baseline")])
def test_a_dry_run_prints_each_manifest_and_needs_no_cluster(flags):
    things = [thing for thing in yaml.safe_load_all(printed(*flags)) if thing]
    namespace, quota, *rest = things
    assert (namespace["kind"], quota["kind"]) == ("Namespace", "ResourceQuota")
    assert quota["spec"]["hard"]["pods"] == "4"
    pods = [thing for thing in rest if thing["kind"] == "Pod"]
    assert len(pods) == len(list(manifest_files.HERE.glob("*.yaml"))) - 3
    for pod in pods:
        spec = pod["spec"]
        assert pod["metadata"]["namespace"] == namespace["metadata"]["name"]
        assert (spec["activeDeadlineSeconds"], spec["restartPolicy"]) == (LIVES, "Never")
        assert not spec["automountServiceAccountToken"]
        [term] = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert term["matchFields"][0]["values"] == ["n"]
    asks = [each.get("resources") for pod in pods for each in pod["spec"]["containers"] if each.get("resources")]
    assert (
        asks == [{"claims": [{"name": "gpu"}]} if "--device-class" in flags else {"limits": {"nvidia.com/gpu": 1}}] * 3
    )
    kinds: dict[str, Any] = {
        "Namespace": Namespace,
        "ResourceQuota": ResourceQuota,
        "Pod": Pod,
        "ResourceClaimTemplate": Template,
    }
    for thing in things:  # a field that Kubernetes does not know would be lost
        assert kinds[thing["kind"]].from_dict(thing).to_dict() == _without_nulls(thing), thing["metadata"]["name"]
    if "--pod-security" in flags:
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"


@pytest.mark.parametrize("right", ["hostPath", "hostPID", "hostNetwork", "privileged", "MKNOD", "SYS_PTRACE"])
def test_only_the_ways_that_say_so_have_a_right(right):
    named = {"hostPath": {"host-dev"}, "hostPID": {"host-pid"}, "MKNOD": {"own-node"}, "SYS_PTRACE": {"host-pid"}}
    named["hostNetwork"] = {"sharing-owner", "handed-on"}
    named["privileged"] = {"privileged", "privileged-own-node"}
    having = {path.stem for path in manifest_files.HERE.glob("*.yaml") if f"{right}: " in path.read_text()}
    having |= {path.stem for path in manifest_files.HERE.glob("*.yaml") if f"add: [{right}]" in path.read_text()}
    assert having == named[right]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--on", "kubernetes", "--node", "n"), "--on kubernetes needs --image"),
        (("--image", "a"), "--on kubernetes needs --node"),
        (("--on", "docker", "--image", "a", "--node", "n"), "--node has no effect with --on docker"),
        (("--on", "slurm", "--node", "n", "--dry-run"), "--dry-run has no effect with --on slurm"),
        (("--image", 'a"\nb', "--node", "n"), "--image is not a valid name"),
        (("--image", "a", "--node", "n", "--nodes", "nvidia*"), "--nodes is not a pattern of device nodes"),
        (("--image", "a", "--node", "n", "--way", "image-variable"), "--way image-variable needs --variable-image"),
        (("--image", "a", "--node", "n", "--resource", "a", "--device-class", "b"), "a pod has one of them"),
        (("--image", "a", "--node", "n", "--way", "variable", "--without", "variable"), "both chosen and left out"),
    ],
)
def test_a_flag_that_says_nothing_is_refused(tmp_path, flags, why):
    command = [sys.executable, "-m", "autoclave", "access", "run", "--to", str(tmp_path / "out"), *flags]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, why in run.stderr, (tmp_path / "out").exists()) == (2, True, False), run.stderr


def test_the_verb_loads_neither_grpc_nor_service_nor_driver():
    program = "import sys, autoclave.cli.verbs.access\nprint(*sorted(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    loaded = set(out.split())
    assert not loaded & {"grpc", "google", "pynvml", "pydantic", "sqlite3", "scrub_api", "scrubber.core", "policies"}


def test_click_is_all_that_it_needs_installed(tmp_path):
    """As the page installs it: no gRPC, no NVML, no CUDA."""
    (tmp_path / "click").symlink_to(Path(click.__file__).parent)
    command = [sys.executable, "-I", "-S", "-c", ALONE.format(paths=[str(tmp_path), str(ROOT)])]
    run = subprocess.run(
        [*command, "access", "run", *ON_KUBERNETES, "--dry-run"], capture_output=True, text=True, check=False
    )
    assert (run.returncode, "kind: Pod" in run.stdout) == (0, True), run.stderr


ALONE = "import sys; sys.path[:0] = {paths}; from autoclave.cli import main; main()"
