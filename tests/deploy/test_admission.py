"""The admission policies, evaluated: what other pods may mount, and what the plugin may write to nodes."""

import json
from typing import Any

import pytest

from plugin.cluster import node_report
from tests.deploy import manifests
from tests.deploy.admission import refusals, value


def pod(*paths):
    volumes = [{"name": str(number), "hostPath": {"path": path}} for number, path in enumerate(paths)]
    return {"object": {"spec": {"volumes": [{"name": "data", "emptyDir": {}}, *volumes]}}}


def guard(which, case="default"):
    return manifests.of(case, "ValidatingAdmissionPolicy", f"-{which}-directories")


THROUGH_A_PROCESS = [
    "/proc/1/root/run/autoclave", "/proc/1/root", "/proc//1/./root/", "/proc/self/cwd", "/proc/1/fd/3",
    "/proc/1/task/1/root/var/lib/kubelet", "/proc/thread-self/root",
]  # fmt: skip
REFUSED = {
    ("own", "default"): [
        "/run/autoclave", "/run/autoclave/doors", "/var/lib/autoclave/", "//var//lib/autoclave", "/./run/autoclave/.",
        "/var/run/autoclave/doors/scrubber.sock", *THROUGH_A_PROCESS,
    ],
    ("own", "places that are links"): ["/run/autoclave", "/var/run/autoclave", "/var/run/autoclave/doors"],
    ("kubelet", "default"): [
        "/", "//", "/var", "/var/lib/kubelet", "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/plugins/a", "/etc",
        "/var/lib/kubelet/device-plugins/kubelet.sock", "/var/lib/kubelet/plugins_registry/", "/etc/cdi",
        "/var/run/cdi", "/run", *THROUGH_A_PROCESS,
    ],
    ("kubelet", "places that are links"): ["/run/cdi", "/var/run/cdi", "/var/cdi", "/var/cdi/static/a"],
}  # fmt: skip
HARMLESS = ["/proc", "/proc/1/net", "/proc/driver/nvidia", "/proc/1/fdinfo", "/srv/proc/1/root"]
ALLOWED = {
    "own": [
        "/", "/var", "/var/lib/autoclave2", "/run/autoclaved", "/run", "/srv/run/autoclave", *HARMLESS,
    ],
    "kubelet": ["/var/lib/kubelet/pods", "/var/lib/kubelet2", "/etc/ssl", "/dev", "/var/log/pods", *HARMLESS],
}  # fmt: skip


@pytest.mark.parametrize(
    ("which", "case", "path"), [(*policy, path) for policy, paths in REFUSED.items() for path in paths]
)
def test_no_other_pod_mounts_a_guarded_directory(which, case, path):
    assert len(refusals(guard(which, case), **pod("/srv", path))) == 1


@pytest.mark.parametrize(("which", "path"), [(which, path) for which, paths in ALLOWED.items() for path in paths])
def test_other_directories_of_the_node_may_be_mounted(which, path):
    assert refusals(guard(which), **pod(path)) == []


def test_a_pod_without_volumes_is_let_in():
    for which in ("own", "kubelet"):
        assert refusals(guard(which), object={"spec": {}}) == []
        assert refusals(guard(which), **pod()) == []


def test_our_directories_are_denied_except_to_our_namespace():
    for which, actions in (("own", ["Deny"]), ("kubelet", ["Warn", "Audit"])):
        binding = manifests.of("default", "ValidatingAdmissionPolicyBinding", f"-{which}-directories")
        assert binding["spec"] == {"policyName": guard(which)["metadata"]["name"], "validationActions": actions}
        (through,) = guard(which)["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
        assert (through["operator"], through["values"]) == ("NotIn", ["autoclave", "kube-system"])
        assert guard(which)["spec"]["failurePolicy"] == "Fail"


def test_none_of_our_own_directories_is_left_out():
    for which in ("own", "kubelet"):
        (guarded,) = (it["expression"] for it in guard(which)["spec"]["variables"] if it["name"] == "guarded")
        assert {"/var/lib/autoclave", "/run/autoclave"} <= set(json.loads(guarded))


GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}
HASTY = {"terminationGracePeriodSeconds": 0}
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
SELECTOR = "/var/run/nvidia-container-devices"


def limits(resource):
    return {"resources": {"limits": {resource: "1"}}}


def variable(**more):
    return {"env": [{"name": "A", "value": "all"}, {"name": VISIBLE, **more}]}


def gpu_pods(case="default"):
    return manifests.of(case, "ValidatingAdmissionPolicy", "-gpu-pods")


def objections(container=None, case="default", **spec):
    """What the policy says of a pod with this container beside another one, wherever it stands."""
    policy = gpu_pods(case)
    rest = {"containers": [{"name": "beside"}]}
    main = {"containers": [{"name": "main"} | (container or {})]}
    places = (main, rest | {"initContainers": main["containers"]})
    [said] = {tuple(refusals(policy, object={"spec": place | spec})) for place in places}
    return said


@pytest.mark.parametrize(
    ("case", "asks"),
    [
        ("default", limits(GPU)),
        ("default", limits(MIG)),
        ("dra with everything", limits("site.example/gpu")),
        ("dra with everything", limits("deviceclass.resource.kubernetes.io/gpu.site.example")),
        ("dra in front", limits(GPU)),
        ("dra in front", limits("deviceclass.resource.kubernetes.io/gpu.nvidia.com")),
    ],
)
def test_a_pod_with_a_gpu_needs_a_grace_period(case, asks):
    assert "terminationGracePeriodSeconds of at least 1" in objections(asks, case, **HASTY)[0]
    assert objections(asks, case) == objections(asks, case, terminationGracePeriodSeconds=1) == ()
    assert objections(limits("cpu"), case, **HASTY) == ()


def test_a_claim_is_a_request_where_claims_are_served():
    assert len(objections({}, "dra with everything", **CLAIM, **HASTY)) == 1
    assert objections({}, "default", **CLAIM, **HASTY) == ()


@pytest.mark.parametrize(
    "taking",
    [
        variable(value="all"),
        variable(value="GPU-1"),
        variable(valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
        limits(GPU) | variable(value="all"),
        {"volumeMounts": [{"name": "a", "mountPath": f"{SELECTOR}/GPU-1"}]},
        {"volumeMounts": [{"name": "a", "mountPath": f"/{SELECTOR}"}]},
    ],
)
def test_a_container_names_no_gpu_by_itself(taking):
    assert [it for it in objections(taking) if it.startswith("a container gets a GPU by nvidia.com/gpu")]


@pytest.mark.parametrize("value", ["void", "none", "", None])
def test_a_container_may_say_that_it_wants_no_gpu(value):
    assert objections(variable() if value is None else variable(value=value)) == ()


@pytest.mark.parametrize("value", ["all", "void"])
def test_a_container_that_is_added_later_is_checked(value):
    added = {"name": "debug"} | variable(value=value)
    pod = {"spec": {"containers": [{"name": "main"}], "ephemeralContainers": [added, {"name": "other"}]}}
    assert len(refusals(gpu_pods(), object=pod)) == (value == "all")
    assert gpu_pods()["spec"]["matchConstraints"]["resourceRules"][1]["resources"] == ["pods/ephemeralcontainers"]


@pytest.mark.parametrize(("path", "refused"), [
    ("/dev", True), ("//dev/", True), ("/dev/nvidia0", True), ("/dev/./nvidiactl", True), ("/dev/dri/card0", True),
    ("/dev/shm", False), ("/dev/fuse", False), ("/", False), ("/srv/dev", False),
])  # fmt: skip
def test_a_pod_mounts_no_devices_of_the_node(path, refused):
    volumes = [{"name": "a", "hostPath": {"path": path}}, {"name": "b", "emptyDir": {}}]
    assert len(objections(volumes=volumes)) == refused


def test_pods_that_take_gpus_are_reported_and_refused_by_choice():
    for case, actions in (("default", ["Warn", "Audit"]), ("dra with everything", ["Deny"])):
        binding = manifests.of(case, "ValidatingAdmissionPolicyBinding", "-gpu-pods")
        assert binding["spec"]["validationActions"] == actions
    (through,) = gpu_pods("dra in front")["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert (through["operator"], through["values"]) == ("NotIn", ["autoclave", "kube-system", "gpu-operator"])


READY = {"type": "Ready", "status": "True"}
OURS = {"type": node_report.CONDITION, "status": "False"}
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
NODE: dict[str, Any] = {
    "metadata": {"name": "a", "labels": {"x": "1"}, "resourceVersion": "1", "managedFields": []},
    "spec": {"taints": [CORDON], "podCIDRs": ["10.0.0.0/24"]},
    "status": {
        "capacity": {"cpu": "1"}, "allocatable": {"cpu": "1"}, "conditions": [READY],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    },
}  # fmt: skip
BARE: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {}, "status": {}}


def changed(part, node=NODE, **fields):
    """The node, some fields of a part of it other than they were."""
    return node | {part: node[part] | fields}


def warnings(new, node="a", old=NODE, chart="reports"):
    extra = {"authentication.kubernetes.io/node-name": [node]} if node else {"other": ["a"]}
    request = {"userInfo": {"username": "system:serviceaccount:autoclave:autoclave-plugin", "extra": extra}}
    policy = manifests.of(chart, "ValidatingAdmissionPolicy", "-own-node")
    (condition,) = policy["spec"]["matchConditions"]
    assert value(condition["expression"], {"request": request}) is True
    return refusals(policy, request=request, object=new, oldObject=old)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (NODE, NODE),
        (changed("status", conditions=[READY, OURS]), NODE),
        (changed("status", conditions=[OURS, READY]), changed("status", conditions=[READY, OURS | {"status": "True"}])),
        (NODE, changed("status", conditions=[READY, OURS])),
        (changed("metadata", resourceVersion="2", managedFields=[{}]), NODE),
        (changed("status", BARE, conditions=[OURS]), BARE),
        ({"metadata": {"name": "a"}}, BARE),
    ],
)
def test_a_plugin_changes_its_condition_on_its_own_node(new, old):
    assert warnings(new, old=old) == []


def test_on_whichever_node_it_is():
    assert warnings(changed("metadata", name="b"), "b", changed("metadata", name="b")) == []


@pytest.mark.parametrize("node", ["b", ""])
def test_a_plugin_changes_no_other_node(node):
    assert len(warnings(NODE, node)) == 1


FORBIDDEN: list[tuple[str, dict[str, Any]]] = [
    ("metadata", {"labels": {"x": "2"}}), ("metadata", {"annotations": {"a": "b"}}),
    ("metadata", {"ownerReferences": [{"uid": "u"}]}), ("metadata", {"finalizers": ["a/b"]}),
    ("spec", {"unschedulable": True}), ("spec", {"providerID": "x"}), ("spec", {"podCIDRs": []}),
    ("spec", {"taints": []}), ("spec", {"taints": [CORDON, {"key": "a", "effect": "NoExecute"}]}),
    ("spec", {"taints": [CORDON | {"effect": "NoExecute"}]}),
    ("status", {"allocatable": {"cpu": "9"}}), ("status", {"capacity": {"cpu": "9"}}),
    ("status", {"conditions": []}), ("status", {"conditions": [READY | {"status": "False"}, OURS]}),
    ("status", {"addresses": [{"type": "InternalIP", "address": "10.6.6.6"}]}),
    ("status", {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}),
    ("status", {"whatever is to come": 1}),
]  # fmt: skip


def test_by_choice_a_plugin_annotates_its_node():
    first, following = ({"autoclave.internal/checkpoint": text} for text in ("autoclave/a 1", "autoclave/a 2"))
    steps = [(NODE, first), (changed("metadata", annotations=first), following), (BARE, first)]
    for old, annotations in steps:
        new = changed("metadata", old, annotations=annotations)
        assert warnings(new, old=old, chart="checkpoints") == []
        assert len(warnings(new, old=old)) == 1
    others = changed("metadata", annotations=first | {"a": "b"})
    assert len(warnings(others, chart="checkpoints")) == len(warnings(NODE, old=others, chart="checkpoints")) == 1


@pytest.mark.parametrize(("part", "fields"), FORBIDDEN)
def test_a_driver_may_change_no_other_object(part, fields):
    assert len(warnings(changed(part, **fields))) == 1


@pytest.mark.parametrize(("part", "fields"), [it for it in FORBIDDEN if list(it[1].values()) not in ([[]], [[READY]])])
def test_a_plugin_adds_or_removes_no_other_part(part, fields):
    more = changed(part, BARE, **fields)
    assert len(warnings(more, old=BARE)) == 1
    assert len(warnings(BARE, old=more)) == 1


def test_the_admission_policy_does_not_apply_to_other_users():
    policy = manifests.of("reports", "ValidatingAdmissionPolicy", "-own-node")
    (condition,) = policy["spec"]["matchConditions"]
    kubelet = {"request": {"userInfo": {"username": "system:node:a"}}}
    assert value(condition["expression"], kubelet) is False
