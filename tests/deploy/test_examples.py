"""The examples: pods of the trial on simulated GPUs get what the overlay gives, and what is for others is valid."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autoclave.cli import service_call
from deploy import generate
from plugin.cluster import node_report
from plugin.cluster.nvsentinel import health_event
from scrubber.devices.simulated import layout
from scrubber.receipts import key
from tests import older_states
from tests.deploy import admission, jobs, manifests, podsecurity
from tests.live import Service
from tests.plugin.cluster.devices import out
from tests.receipts.vectors import OTHER

EXAMPLES = generate.ROOT / "deploy/examples"
NAMES = ("reader", "writer")
NVSENTINEL = ("nvsentinel-preflight", "nvsentinel-remediate")
DETECTOR = EXAMPLES / "node-problem-detector.sh"


@pytest.fixture
def state_of_before(tmp_path):
    older_states.unpack(older_states.ALL[0], tmp_path / "state")
    return tmp_path / "state"


def pod(name):  # or what else the file is
    [doc] = manifests.documents((EXAMPLES / f"{name}.yaml").read_text())
    return doc


def test_no_example_is_left_out():
    # tests/cluster runs the descheduler
    names = {
        "check-update",
        "descheduler",
        "node-problem-detector",
        "node-readiness-rule",
        "openshift-scc",
        *NVSENTINEL,
        *NAMES,
    }
    assert {path.stem for path in EXAMPLES.iterdir()} == names


@pytest.mark.parametrize("name", [*NAMES, "check-update"])
def test_an_example_is_a_pod_of_the_api(name):
    assert pod(name)["kind"] == "Pod"
    assert manifests.check(pod(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_example_gets_every_gpu_of_the_overlay(name):
    """Else the reader might get another GPU than the writer had, and would prove nothing."""
    overlay = manifests.composed(generate.KUSTOMIZE / "overlays/simulated")
    flags = {component: manifests.flags(each) for component, _, each in manifests.containers(tuple(overlay))}
    resource = f"{flags['plugin']['--resource-prefix']}/gpu"
    gpus = int(flags["scrubber"]["--simulated-gpus"])
    [container] = pod(name)["spec"]["containers"]
    assert container["resources"] == {"limits": {resource: gpus}}


def test_the_writer_holds_each_of_its_gpus():
    """An open file makes its process a holder."""
    [container] = pod("writer")["spec"]["containers"]
    [limit] = container["resources"]["limits"].values()
    assert all(f"<{layout.CDI_SEEN_AS.format(index=index)}" in container["command"][-1] for index in range(limit))


def test_the_check_before_an_update_only_reads_and_runs(state_of_before, tmp_path):
    """Its words are a command of this version, and each place that they name is mounted read-only."""
    [container] = pod("check-update")["spec"]["containers"]
    mounts = {it["mountPath"]: it for it in container["volumeMounts"]}
    assert all(it["readOnly"] for it in mounts.values())
    assert container["imagePullPolicy"] == "Always", "a node may have the older image under the same tag"
    (tmp_path / "values.yaml").write_text("null\n")
    places = {"/state": str(state_of_before), "/values": str(tmp_path)}
    assert places.keys() == mounts.keys()
    words = [re.sub("|".join(places), lambda found: places[found[0]], word, count=1) for word in container["args"]]
    assert subprocess.run([sys.executable, "-m", "autoclave", *words], check=False).returncode == 0


def test_the_readiness_rule_has_the_fields_of_its_api():
    """The fields that the CustomResourceDefinition of v1alpha1 requires, within its limits."""
    rule = pod("node-readiness-rule")
    assert (rule["apiVersion"], rule["kind"]) == ("readiness.node.x-k8s.io/v1alpha1", "NodeReadinessRule")
    spec = rule["spec"]
    assert spec.keys() == {"nodeSelector", "conditions", "taint", "enforcementMode"}
    assert spec["enforcementMode"] in {"bootstrap-only", "continuous"}
    assert spec["nodeSelector"]["matchLabels"]
    assert spec["conditions"] == [{"type": node_report.CONDITION, "requiredStatus": "True"}]
    assert spec["taint"].keys() == {"key", "effect"}
    assert re.fullmatch(r"readiness\.k8s\.io/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", spec["taint"]["key"])


@pytest.mark.parametrize("case", ["default", "reports", "dra"])
def test_the_daemonsets_tolerate_the_taint_of_the_readiness_rule(case):
    taint = pod("node-readiness-rule")["spec"]["taint"]
    workloads = [doc for doc in manifests.objects(case) if doc["kind"] == "DaemonSet"]
    assert len(workloads) == 2
    for workload in workloads:
        assert {"key": taint["key"], "operator": "Exists"} in workload["spec"]["template"]["spec"]["tolerations"]


def test_the_constraints_of_openshift_give_what_the_pods_need():
    """And no more. Each field is one of security.openshift.io/v1."""
    given = manifests.documents((EXAMPLES / "openshift-scc.yaml").read_text())
    pods = [each for case in ("default", "policy", "reports", "dra") for each in manifests.pods(case)]
    for doc, ours in zip(given, ({"scrubber"}, {"plugin", "dra", "test", "check-policies"}), strict=True):
        of = [pod for component, pod in pods if component in ours]
        asked = [one["securityContext"] for pod in of for one in (*pod.get("initContainers", ()), *pod["containers"])]
        accounts = {pod.get("serviceAccountName", "default") for pod in of} - {"autoclave-dra"}
        assert set(doc["users"]) == {f"system:serviceaccount:{generate.NAMESPACE}:{name}" for name in accounts}
        assert set(doc["volumes"]) == {kind for pod in of for volume in pod["volumes"] for kind in volume} - {"name"}
        assert set(doc["allowedCapabilities"]) == {it for one in asked for it in one["capabilities"].get("add", ())}
        assert {(one["runAsUser"], *one["capabilities"]["drop"]) for one in asked} == {(0, "ALL")}
        assert {it["type"] for one in asked for it in [one["seccompProfile"]]} == {"RuntimeDefault"}
        uses = {"allowHostPID": "hostPID", "allowHostIPC": "hostIPC", "allowHostNetwork": "hostNetwork"}
        assert {name: doc[name] for name in uses} == {
            name: any(pod.get(field, False) for pod in of) for name, field in uses.items()
        }
        rights = ("allowPrivilegedContainer", "allowPrivilegeEscalation", "allowHostPorts", "readOnlyRootFilesystem")
        assert [doc[right] for right in rights] == [False, False, False, True]
        assert all(one["readOnlyRootFilesystem"] and not one["allowPrivilegeEscalation"] for one in asked)


def test_the_problem_detector_has_the_fields_of_its_configuration():
    """Those that the detector's loader of custom plugins reads: it ignores others, and ends if a rule does not fit."""
    config = json.loads((EXAMPLES / "node-problem-detector.json").read_text())
    assert config.keys() == {"plugin", "source", "pluginConfig", "conditions", "rules"}
    assert (config["plugin"], config["source"]) == ("custom", "autoclave")
    settings = config["pluginConfig"]
    durations = {name: float(settings.pop(name).removesuffix("s")) for name in ("invoke_interval", "timeout")}
    assert durations["invoke_interval"] > durations["timeout"] > 8, "the script waits up to 8 seconds"
    assert settings == {"max_output_length": 256, "enable_message_change_based_condition_update": True}
    [condition], [rule] = config["conditions"], config["rules"]
    assert condition.keys() == {"type", "reason", "message"}
    assert all(condition.values())
    assert condition["type"] != node_report.CONDITION, "the plugin writes that one"
    assert rule.keys() == {"type", "condition", "reason", "path", "args"}
    assert (rule["type"], rule["condition"]) == ("permanent", condition["type"])
    assert re.fullmatch(r"[A-Z][A-Za-z]*", rule["reason"])
    assert Path(rule["path"]).name == DETECTOR.name
    assert rule["args"] == ["--host"]


@pytest.fixture
def node():
    root = Path(f"/tmp/ac-examples-{os.getpid()}")
    root.mkdir()
    service = Service(root, 2)
    yield service
    service.stop()
    shutil.rmtree(root)


@pytest.mark.parametrize("place", ["host", "pod"])
def test_the_problem_detector_names_each_quarantined_gpu(node, tmp_path, place):
    """Its caller, nsenter and crictl are stand-ins; the service is real."""

    def program(name: str, line: str) -> None:
        jobs.program(tmp_path / name, line)

    def check() -> tuple[int, str]:
        words = {"PYTHONPATH": str(generate.ROOT)}
        run = subprocess.run([script, "--host"], env=words, stdout=subprocess.PIPE, text=True, check=False, cwd="/")
        return run.returncode, run.stdout.strip()

    script = jobs.installed(DETECTOR, tmp_path / "detector", tmp_path)
    autoclave = f'exec {sys.executable} -P -m autoclave "$@"'
    enters = '[ "$1 $2 $3 $4" = "--target 1 --mount --" ] && shift 4 && exec "$@"'
    program("nsenter", enters)
    if place == "host":
        program("autoclave", f"export AUTOCLAVE_RUN_DIR={node.run_dir}\n{autoclave}")
    else:
        found = '[ "$*" = "ps --quiet --label io.kubernetes.container.name=scrubber" ] && echo 4b1d && exit'
        inside = f'[ "$1 $2 $3" = "exec 4b1d autoclave" ] && shift 3 && export AUTOCLAVE_RUN_DIR={node.run_dir}'
        program("crictl", f"{found}\n{inside} || exit 9\n{autoclave}")
    assert check() == (0, "")
    service_call.ask(node.run_dir, lambda admin: admin.quarantine("1", "smells of , | burnt", "somebody"))
    assert check() == (1, "GPU 1 quarantined: run autoclave explain")
    service_call.ask(node.run_dir, lambda admin: admin.quarantine("0", "smells", "somebody"))
    assert check() == (1, "GPU 0, GPU 1 quarantined: run autoclave explain")
    program("nsenter", "exit 1")
    assert check() == (2, "")
    program("nsenter", enters)
    node.kill()
    assert check() == (2, "the scrub service does not answer")
    node.start()


def preflight():
    [container] = pod("nvsentinel-preflight")["preflight"]["initContainers"]
    return container


def test_the_preflight_check_is_a_container_for_strict_namespaces():
    """NVSentinel makes the image of two values, and adds NODE_NAME."""
    image = preflight()["image"]
    container = preflight() | {"image": f"{image['repository']}:{image['tag']}"}
    metadata, main = {"name": "train"}, {"name": "train", "image": "train"}
    spec = {"initContainers": [container], "containers": [main]}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    assert manifests.check(made) == []
    assert list(podsecurity.broken(spec, container)) == []


def test_the_preflight_check_passes_only_with_valid_proofs(node, tmp_path):
    """Its own command, with receipts and key of a real service. Each other exit code keeps the pod from its start."""
    (tmp_path / "dev").mkdir()
    dev = str(tmp_path / "dev")
    start = f"from autoclave.cli import verified_receipts, main; verified_receipts.DEV = pathlib.Path({dev!r})"
    (tmp_path / "autoclave").write_text(
        f'#!/bin/sh\nexec {sys.executable} -P -c "import pathlib, sys; {start}; sys.exit(main())" "$@"\n'
    )
    (tmp_path / "autoclave").chmod(0o755)
    for index in range(2):
        node.settled(index, "clean")
        (tmp_path / "dev" / f"nvidia{index}").touch()
    [command] = preflight()["args"]
    show = [sys.executable, "-m", "autoclave", "receipt", "key", "-o", "vkey", "--state-dir", node.root / "state"]
    keys = [
        subprocess.run([*show, "--node-name", name], capture_output=True, text=True, check=True).stdout
        for name in ("gpu-1", "gpu-11")
    ]
    other = key.vkey(OTHER.public_key, "autoclave/gpu-1")
    receipts = tmp_path / "receipts"
    for file in (node.root / "state" / "receipts").glob("*/receipt.dsse.json"):  # without those of the next hand-overs
        shutil.copytree(file.parent, receipts / file.parent.name)

    def check(**words: str) -> int:
        given = {"NODE_NAME": "gpu-1", "KEYS": "".join(keys), "AUTOCLAVE_RECEIPTS": str(receipts)} | words
        env = {"PATH": f"{tmp_path}:{os.defpath}", "PYTHONPATH": str(generate.ROOT)} | given
        return subprocess.run([*preflight()["command"], command], env=env, capture_output=True, check=False).returncode

    assert check() == 6  # all is good, and the GPUs are simulated: of real ones it is 0
    assert check(NODE_NAME="gpu-2") == 2  # there is no key of this node
    assert check(KEYS=other) == 1
    assert check(AUTOCLAVE_RECEIPTS="") == 1
    (tmp_path / "dev" / "nvidia2").touch()  # a GPU without a directory
    assert check() == 1


def test_the_ruleset_matches_only_what_nvsentinel_may_act_on():
    [rules] = pod("nvsentinel-remediate")["fault-quarantine"]["ruleSets"]
    [condition] = rules["match"]["all"]
    found = {}
    for remediate in (True, False):
        for reason in ("xid", "heat"):
            said = health_event(out(0, reason), "gpu-1", remediate=remediate)
            assert said is not None
            data = {"agent": said.agent, "isFatal": said.isFatal}
            found[remediate, reason] = admission.value(condition["expression"], {"event": data})
    assert [key for key, matches in found.items() if matches] == [(True, "xid")]
    assert (rules["enabled"], rules["cordon"]) == (True, {"shouldCordon": True})
