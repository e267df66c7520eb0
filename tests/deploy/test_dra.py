"""The chart with the DRA driver: it takes the place of the plugin, and has the rights that docs/dra.md lists."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deploy import generate
from plugin import config as plugin_config
from plugin.devices import Device
from plugin.dra import config, dra_driver, resource_slices
from plugin.dra.config import DraConfig
from plugin.dra.resource_slices import Pool
from plugin.dra.vendor import taint_rules
from tests.deploy import kubernetes_versions, manifests
from tests.deploy.admission import refusals, value

PAGE = (generate.ROOT / "docs/dra.md").read_text()
INSTANCE = "0a1b2c3d"  # of one process
NODE_NAME = "authentication.kubernetes.io/node-name"
SLICE = resource_slices.resource_slice(Pool(config.DRIVER, "a", "uid"), (), taints=True)


IN_FRONT = "dra in front"
WITH_RULES = "1.37"


@pytest.mark.parametrize("case", manifests.MATRIX)
def test_either_the_plugin_or_the_driver_is_installed(case):
    sets = {doc["metadata"]["labels"]["app.kubernetes.io/component"] for doc in manifests.objects(case)
            if doc["kind"] == "DaemonSet"}  # fmt: skip
    assert sets == {"scrubber", "dra" if case in manifests.DRA else "plugin"}


@pytest.mark.parametrize("case", ["default", "dra with everything", "dra in front"])
def test_each_version_of_the_page_gets_the_same_objects(case):
    """In front of another driver, those that have no DeviceTaintRule get the same objects."""
    versions = [it for it in kubernetes_versions.VERSIONS if case != IN_FRONT or it != WITH_RULES]
    first, *others = [manifests.render_for(it, manifests.MATRIX[case]) for it in versions]
    assert others == [first] * len(others)


def test_a_cluster_without_resourceclaims_gets_the_plugin_only():
    """In the version before the first one of the page."""
    major, minor = kubernetes_versions.FIRST.split(".")
    before = f"{major}.{int(minor) - 1}"
    assert manifests.render_for(before, {})
    for case in manifests.DRA:
        with pytest.raises(ValueError, match=r"dra.enabled: the DRA driver needs Kubernetes 1.34 .* has v1.33.0;"):
            manifests.render_for(before, manifests.MATRIX[case])


def test_the_driver_runs_where_the_plugin_runs():
    values: dict[str, Any] = {key: manifests.MATRIX["places"][key] for key in ("nodeSelector", "affinity", "image")}
    [plugin] = [pod for side, pod in manifests.pods(manifests.loaded(values)) if side == "plugin"]
    [ours] = [
        pod for side, pod in manifests.pods(manifests.loaded(values | {"dra": {"enabled": True}})) if side == "dra"
    ]
    for field in ("nodeSelector", "affinity", "tolerations", "priorityClassName", "automountServiceAccountToken"):
        assert ours[field] == plugin[field]
    for field in ("image", "securityContext", "resources"):
        assert ours["containers"][0][field] == plugin["containers"][0][field]


VENDOR = "/var/lib/kubelet/plugins_gated"
BOTH: dict[str, tuple[str | None, bool]] = {
    "/var/lib/kubelet/plugins_registry": (None, False),
    "/run/autoclave": (None, True),
}
FRONT: dict[str, tuple[str | None, bool]] = BOTH | {
    "/var/lib/kubelet/plugins/autoclave": (None, False),
    "/var/lib/kubelet/plugins/gpu.nvidia.com": (None, True),
    "/etc/cdi": ("/host/etc/cdi", True),
    "/var/run/cdi": ("/host/run/cdi", True),
}
MOUNTED = {  # where in the container, if it is another place; and whether it is read-only
    "dra": BOTH | {"/var/lib/kubelet/plugins/gpu.autoclave.internal": (None, False)},
    IN_FRONT: FRONT | {VENDOR: (None, True)},
    "gpu cluster": FRONT | {"/var/lib/kubelet/plugins/gated": (None, True)},
}


@pytest.mark.parametrize("case", MOUNTED)
def test_the_driver_mounts_only_what_it_needs(case):
    """Of the kubelet's plugins only its own directory: the sockets of storage drivers are beside it.

    In front of another driver it changes nothing of that one: neither sockets nor CDI specifications.
    """
    pod = dict(manifests.pods(case))["dra"]
    places = {it["name"]: it["hostPath"]["path"] for it in pod["volumes"] if "hostPath" in it}
    mounts = [it for it in pod["containers"][0]["volumeMounts"] if it["name"] in places]
    found = {places[it["name"]]: (it["mountPath"], it.get("readOnly", False)) for it in mounts}
    assert found == {path: (at or path, fixed) for path, (at, fixed) in MOUNTED[case].items()}
    assert len(found) == len(mounts)


def test_the_gate_and_its_doctor_look_where_the_driver_is():
    """The other driver writes a CDI specification for each claim, so the doctor asks for none of whole GPUs."""
    args = manifests.container(IN_FRONT, "dra")["args"]
    assert {"--driver-name=gpu.nvidia.com", f"--vendor-registry-dir={VENDOR}"} <= set(args)
    assert [arg for arg in args if "--cdi-dir" in arg] == ["--cdi-dir=/host/etc/cdi", "--cdi-dir=/host/run/cdi"]
    assert "--only=cdi" in manifests.container("dra", "doctor (dra)")["args"]
    assert "--only=cdi" not in manifests.container(IN_FRONT, "doctor (dra)")["args"]


def test_the_gate_mounts_the_vendors_directory_read_only():
    """Neither slices nor a class, which belong to the other driver."""
    kinds = {(doc["kind"], doc["metadata"]["name"]) for doc in manifests.objects(IN_FRONT)}
    assert [it for it in kinds if it[0] == "DeviceClass" or "own-slice" in it[1]] == []
    assert manifests.of(IN_FRONT, "ClusterRole", "-dra")["rules"] == [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list"]},
    ]


def test_page_and_notes_patch_the_gpu_cluster_alike():
    notes = manifests.notes(manifests.MATRIX["gpu cluster"])
    page = PAGE.replace("\\\n  ", "")
    [patch] = re.findall(r"kubectl patch gpucluster gpu-cluster --type=merge --patch '(.*)'", notes)
    assert f"kubectl patch gpucluster gpu-cluster --type=merge --patch '{patch}'\n" in page
    [variable] = json.loads(patch)["spec"]["draDriver"]["gpus"]["kubeletPlugin"]["env"]
    flag = manifests.flags(manifests.container("gpu cluster", "dra"))["--vendor-registry-dir"]
    assert variable == {"name": "KUBELET_REGISTRAR_DIRECTORY_PATH", "value": flag}


def test_no_other_pod_may_register_before_the_gate():
    policy = manifests.of(IN_FRONT, "ValidatingAdmissionPolicy", "-kubelet-directories")
    pod = {"spec": {"volumes": [{"name": "a", "hostPath": {"path": VENDOR}}]}}
    assert len(refusals(policy, object=pod)) == 1
    assert refusals(manifests.of("dra", "ValidatingAdmissionPolicy", "-kubelet-directories"), object=pod) == []


def chosen(flags):
    """What the driver makes of its flags."""
    return DraConfig(
        driver=flags["--driver-name"],
        plugins_dir=Path(flags["--plugins-dir"]),
        registry_dir=Path(flags["--registry-dir"]),
        instance=INSTANCE,
    )


@pytest.mark.parametrize("case", ["dra", "dra with everything"])
def test_two_drivers_serve_beside_each_other_during_an_update(case):
    spec = manifests.of(case, "DaemonSet", "-dra")["spec"]
    assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "5%"}}
    one = manifests.container(case, "dra")
    assert {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in one["env"]
    its = chosen(manifests.flags(one))
    assert one["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}  # the kubelet knows the driver
    assert str(its.service_socket.parent) in {mount["mountPath"] for mount in one["volumeMounts"]}


def test_a_stop_may_take_as_long_as_a_call():
    pod = dict(manifests.pods("dra"))["dra"]
    assert pod["terminationGracePeriodSeconds"] > dra_driver.CALL_WITHIN


def test_the_longest_driver_name_fits_into_socket_paths():
    values = {
        "dra": {"enabled": True, "driverName": "a" * 63},
        "kubelet": {"pluginsDir": "/" + "p" * 24, "registryDir": "/" + "r" * 24},
    }
    its = chosen(manifests.flags(manifests.container(manifests.loaded(values), "dra")))
    for path in (its.service_socket, its.registry_socket):
        plugin_config.check_length(path, "--plugins-dir")
        assert len(str(path)) == 107


def test_the_rights_are_those_of_the_page():
    [listed] = [doc for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
                    for doc in manifests.documents(text) if doc["kind"] == "ClusterRole"]  # fmt: skip
    assert manifests.of("dra", "ClusterRole", "-dra")["rules"] == listed["rules"]
    [subject] = manifests.of("dra", "ClusterRoleBinding", "-dra")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "autoclave-dra", "namespace": "autoclave"}


def test_the_device_class_is_the_documented_one():
    [listed] = [doc for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) for doc in manifests.documents(text)
                if doc["kind"] == "DeviceClass"]  # fmt: skip
    made = manifests.of("dra", "DeviceClass")
    assert (made["metadata"]["name"], made["spec"]) == (listed["metadata"]["name"], listed["spec"])
    assert made["metadata"]["name"] == config.DRIVER
    other = manifests.of("dra with everything", "DeviceClass")
    assert other["metadata"]["name"] == "gpu.site.example"
    assert other["spec"] == {
        "selectors": [{"cel": {"expression": 'device.driver == "gpu.site.example"'}}],
        "extendedResourceName": "site.example/gpu",
    }
    assert [doc for doc in manifests.objects("dra without extras") if doc["kind"] == "DeviceClass"] == []


def test_the_driver_uses_the_api_and_shows_metrics():
    spec = manifests.of("dra", "NetworkPolicy", "-dra")["spec"]
    assert spec["ingress"] == [{"ports": [{"port": "metrics", "protocol": "TCP"}]}]
    assert [port["port"] for rule in spec["egress"] for port in rule["ports"]] == [443, 6443]
    one = manifests.container("dra", "dra")
    assert manifests.flags(one)["--metrics-address"] == "$(POD_IP):9476"
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in one["env"]
    assert one["ports"] == [{"name": "metrics", "containerPort": 9476, "protocol": "TCP"}]
    jobs = {it["replacement"] for doc in manifests.objects("dra") if doc["kind"] == "PodMonitor"
            for it in doc["spec"]["podMetricsEndpoints"][0]["relabelings"] if it["targetLabel"] == "job"}  # fmt: skip
    assert jobs == {"autoclave-scrubber", "autoclave-dra"}


def answer(found=SLICE, node="a", operation="UPDATE", extra=None):
    """The refusals of the policy for the slice that the driver of a node writes."""
    user = {"username": "system:serviceaccount:autoclave:autoclave-dra", "extra": {NODE_NAME: [node]}}
    if extra is not None:
        user["extra"] = extra
    request = {"userInfo": user, "operation": operation}
    policy = manifests.of("dra", "ValidatingAdmissionPolicy", "-own-slice")
    [condition] = policy["spec"]["matchConditions"]
    assert value(condition["expression"], {"request": request}) is True
    sides = {"object": None, "oldObject": found} if operation == "DELETE" else {"object": found, "oldObject": None}
    return refusals(policy, request=request, **sides)


def changed(**fields):
    return {"metadata": SLICE["metadata"], "spec": SLICE["spec"] | fields}


OWN_NODE = "autoclave's DRA driver writes slices of its own node only"
OWN_NAME = "autoclave's DRA driver names slice and pool after its node"
FOR_ALL = {key: it for key, it in SLICE["spec"].items() if key != "nodeName"} | {"allNodes": True}
REFUSED = {
    "a token without more": ({"extra": {}}, [OWN_NODE]),
    "a token of something else": ({"extra": {"other": ["a"]}}, [OWN_NODE]),
    "a token of no node": ({"extra": {NODE_NAME: []}}, [OWN_NODE]),
    "a slice of another driver": (
        {"found": changed(driver="gpu.nvidia.com")},
        [f"autoclave's DRA driver writes slices of {config.DRIVER} only"],
    ),
    "a pool of another node": ({"found": changed(pool={"name": "b"})}, [OWN_NAME]),
    "the name of another slice": ({"found": SLICE | {"metadata": {"name": "b-gpu.autoclave.internal"}}}, [OWN_NAME]),
    "a slice for all nodes": ({"found": SLICE | {"spec": FOR_ALL}}, [OWN_NODE, OWN_NAME]),
}  # fmt: skip


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
def test_a_driver_writes_the_slice_of_its_own_node_only(operation):
    assert answer(operation=operation) == []
    assert answer(node="b", operation=operation) == [OWN_NODE]


@pytest.mark.parametrize(("words", "messages"), REFUSED.values(), ids=REFUSED)
def test_a_driver_displaces_no_slice_of_another(words, messages):
    assert answer(**words) == messages


def test_the_slice_policy_concerns_the_driver_alone_and_denies():
    policy = manifests.of("dra", "ValidatingAdmissionPolicy", "-own-slice")
    [condition] = policy["spec"]["matchConditions"]
    kubelet = {"request": {"userInfo": {"username": "system:node:a"}}}
    assert value(condition["expression"], kubelet) is False
    assert policy["spec"]["failurePolicy"] == "Fail"
    binding = manifests.of("dra with everything", "ValidatingAdmissionPolicyBinding", "own-slice")
    assert binding["spec"]["validationActions"] == ["Deny"]
    names = [doc["metadata"]["name"] for doc in manifests.objects("dra without extras")]
    assert [name for name in names if "own-slice" in name] == []


def test_with_dra_the_notes_and_helm_test_expect_no_plugin():
    notes = manifests.notes({"dra": {"enabled": True}})
    assert "daemonset/x-autoclave-dra\n" in notes
    assert "ResourceClaims of the class gpu.autoclave.internal:" in notes
    assert "-plugin" not in notes
    assert "--only=plugin" not in manifests.container("dra", "doctor (test)")["args"]


def test_the_notes_say_what_the_other_driver_must_do():
    notes = manifests.notes(manifests.MATRIX[IN_FRONT])
    assert f"--reset-then-reuse-values --set kubeletPlugin.kubeletRegistrarDirectoryPath={VENDOR}\n" in notes
    assert "ResourceClaims of the class" not in notes


def tainting(**values):
    """All objects that the chart makes in front of another driver, in a cluster that has DeviceTaintRules."""
    front = manifests.MATRIX[IN_FRONT]
    dra = front["dra"] | values
    made = manifests.render_for(WITH_RULES, front | {"dra": dra})
    return {
        (it["kind"], it["metadata"]["name"]): it
        for name, text in made.items()
        if "NOTES" not in name
        for it in manifests.documents(text)
    }


def test_quarantined_devices_of_another_driver_are_tainted_by_choice():
    made = tainting()
    [policy] = [name for kind, name in made if kind == "ValidatingAdmissionPolicy" and "taint" in name]
    assert made["ValidatingAdmissionPolicyBinding", policy]["spec"]["validationActions"] == ["Deny"]
    flags = made["DaemonSet", "autoclave-dra"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--taint-rules" in flags
    rights = {(it["resources"][0], *it["verbs"]) for it in made["ClusterRole", "autoclave-dra"]["rules"]}
    assert {("devicetaintrules", "list", "create", "patch", "delete"), ("nodes", "get")} < rights
    without = tainting(inFrontOf=manifests.MATRIX[IN_FRONT]["dra"]["inFrontOf"] | {"taintRules": False})
    assert "taint" not in json.dumps(list(without.values()))


DEVICE = Device("gpu-0", healthy=False, clean=False, numa_node=None, resource="", reason="ecc")
RULE = taint_rules.taint_rule(
    Pool(config.VENDOR_DRIVER, "a", "uid"), "gpu-0", resource_slices.taint(config.DRIVER, DEVICE)
)
ELSEWHERE = "autoclave's DRA driver taints devices of its own node only"
BROAD = "autoclave's DRA driver taints single devices of gpu.nvidia.com only"
EVICTS = "autoclave's DRA driver ends no pod by a taint"


def ruled(selector=None, **taint):
    """The rule with another selector, or another taint."""
    spec = {"deviceSelector": RULE["spec"]["deviceSelector"] | (selector or {}), "taint": RULE["spec"]["taint"] | taint}
    return RULE | {"spec": spec}


@pytest.mark.parametrize(("before", "after", "messages"), [
    (None, RULE, []),
    (RULE, RULE, []),
    (RULE, None, []),
    (None, ruled({"pool": "b"}), [ELSEWHERE]),
    (ruled({"pool": "b"}), RULE, [ELSEWHERE]),
    (ruled({"pool": "b"}), None, [ELSEWHERE]),
    (None, ruled({"driver": "gpu.site.example"}), [BROAD]),
    (None, RULE | {"spec": {"deviceSelector": {}, "taint": RULE["spec"]["taint"]}}, [ELSEWHERE, BROAD]),
    (None, RULE | {"spec": {"taint": RULE["spec"]["taint"]}}, [ELSEWHERE, BROAD]),
    (None, ruled(effect="NoExecute"), [EVICTS]),
    (RULE, ruled(key="other"), [EVICTS]),
])  # fmt: skip
def test_a_driver_taints_devices_of_its_own_node_only(before, after, messages):
    [policy] = [
        it for (kind, name), it in tainting().items() if kind == "ValidatingAdmissionPolicy" and "taint" in name
    ]
    user = {"username": "system:serviceaccount:autoclave:autoclave-dra", "extra": {NODE_NAME: ["a"]}}
    request = {"userInfo": user}
    assert value(policy["spec"]["matchConditions"][0]["expression"], {"request": request}) is True
    assert refusals(policy, request=request, object=after, oldObject=before) == messages
    user["extra"] = {}
    assert ELSEWHERE in refusals(policy, request=request, object=after, oldObject=before)
