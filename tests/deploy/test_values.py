"""Values that the chart refuses when it is rendered, and names that stay what they are."""

import json
import re
from typing import Any

import helm_python
import pytest

from deploy import generate
from tests.deploy import manifests


def mounted(*paths: str) -> dict[str, Any]:
    """A volume of somebody's, at these places."""
    return {
        "extraVolumes": [{"name": "a", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "a", "mountPath": it} for it in paths],
    }


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a key that there is not": ({"privileged": True}, "additional properties 'privileged' not allowed"),
    "a key that there is not, deeper": ({"scrubber": {"privilegd": True}}, "/scrubber.*'privilegd' not allowed"),
    "a word that is none": ({"backend": "amd"}, "/backend.*must be one of"),
    "a number that is text": ({"scrubber": {"metricsPort": "9475"}}, "/scrubber/metricsPort.*want integer"),
    "a path that is none": ({"directories": {"run": "run/autoclave"}}, "/directories/run.*does not match"),
    "a way out of a directory": ({"directories": {"run": "/run/../etc"}}, "/directories/run.*not"),
    "no digest": ({"image": {"digest": "sha256:abc"}}, "/image/digest.*does not match"),
    "no unavailable node": ({"updateStrategy": {"maxUnavailable": 0}}, "/updateStrategy/maxUnavailable"),
    "a surge": ({"updateStrategy": {"maxSurge": 1}}, "'maxSurge' not allowed"),
    "a finding that there is not": ({"doctor": {"plugin": ["rival"]}}, "/doctor/plugin/0.*must be one of"),
    "both monitors": ({"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}, "switch one off"),
    "two policies": ({"policy": {"inline": "a", "existingConfigMap": "b"}}, "leave one of them empty"),
    "a policy and a shipped one": ({"policy": {"inline": "a", "shipped": "fast"}}, "another policy replaces it"),
    "a taint without reports": ({"clusterReports": {"taint": True}}, "set clusterReports.enabled too"),
    "a taint that no node has": (
        {"clusterReports": {"enabled": True, "taint": True}, "tolerations": [{"key": "a", "operator": "Exists"}]},
        "a tainted node never comes back",
    ),
    "a class without a name": ({"runtimeClass": {"create": True, "name": ""}}, "set runtimeClass.name"),
    "a flag twice": ({"plugin": {"extraArgs": ["--run-dir=/x"]}}, "plugin.extraArgs: --run-dir is set by a value"),
    "a flag that there is not": ({"scrubber": {"extraArgs": ["--evidenc-rows=9"]}}, "/scrubber/extraArgs/0.*not match"),
    "shared GPUs": ({"sharing": {"timeSlicing": {}}}, "sharing: a GPU belongs to one container at a time"),
    "shared GPUs of the plugin": ({"plugin": {"sharing": {"mps": {}}}}, "sharing: a GPU belongs to one container"),
    "policies that no label chooses": ({"policy": {"byNodeLabel": {"a": {"shipped": "fast"}}}}, "set policy.nodeLabel"),
    "a label beside an affinity": (
        {"policy": {"nodeLabel": "pool"}, "affinity": {"podAffinity": {}}},
        "policy.nodeLabel: the chart needs the affinity",
    ),
    "two policies of a label": (
        {"policy": {"nodeLabel": "pool", "byNodeLabel": {"a": {"shipped": "fast", "inline": "name: a"}}}},
        "/policy/byNodeLabel/a.*maxProperties",
    ),
    "a policy of a label that is no YAML": (
        {"policy": {"nodeLabel": "pool", "byNodeLabel": {"a": {"inline": "name: [a"}}}},
        "policy.byNodeLabel.a.inline: it is no YAML",
    ),
    "an alert that there is not": ({"prometheusRule": {"disabled": ["Nope"]}}, "there is no alert Nope"),
    "a policy that is no YAML": ({"policy": {"inline": "name: [a"}}, "policy.inline: it is no YAML"),
    "a namespace that is none": ({"policy": {"operatorNamespaces": ["gpu.x"]}}, "operatorNamespaces/0.*not match"),
    "a policy that is a list": ({"policy": {"inline": "- name: a"}}, "policy.inline: it is no YAML"),
    "a policy without a name": ({"policy": {"inline": "description: a"}}, "policy.inline: a policy has a name"),
    "a word that no policy has": ({"policy": {"inline": "name: a\nrule: []"}}, "policy.inline: a policy has no rule;"),
    "two directories that are one": (
        {"directories": {"state": "/run/autoclave"}},
        "directories.[a-z]+: it is, or is inside",
    ),
    "a directory in another": (
        {"directories": {"run": "/var/lib/autoclave/run"}},
        "directories.run: it is, or is inside, directories.state",
    ),
    "one in another by another name": (
        {"directories": {"run": "/run/a", "state": "/var/run/a/b"}},
        "directories.state: it is, or is inside, directories.run",
    ),
    "a directory of the container's": (
        {"directories": {"state": "/host/state"}},
        "directories.state: /host/state is taken",
    ),
    "a directory that is kept in memory": ({"directories": {"run": "/tmp"}}, "directories.run: /tmp is taken"),
    "a Service that begins with a digit": (
        {"serviceMonitor": {"enabled": True}, "fullnameOverride": "1a"},
        "set fullnameOverride",
    ),
    "a label of no node": ({"nodeSelector": {"pool": "a b"}}, "/nodeSelector/pool.*does not match"),
    "a field that no toleration has": ({"tolerations": [{"keey": "a"}]}, "/tolerations/0.*'keey' not allowed"),
    "a word that no toleration has": ({"tolerations": [{"key": "a", "operator": "Is"}]}, "/tolerations/0/operator"),
    "an affinity to nothing": ({"affinity": {"node": {}}}, "invalid propertyName 'node'"),
    "a secret with more than a name": (
        {"imagePullSecrets": [{"name": "a", "namespace": "b"}]},
        "'namespace' not allowed",
    ),
    "a peer that is none": (
        {"networkPolicy": {"from": [{"namespace": {}}]}},
        "/networkPolicy/from/0.*'namespace' not allowed",
    ),
    "an alert's severity": (
        {"prometheusRule": {"alertLabels": {"severity": "page"}}},
        "invalid propertyName 'severity'",
    ),
    "runbooks without a URL": ({"runbookUrl": "docs/runbooks"}, "/runbookUrl.*does not match"),
    "a label that is ours": (
        {"podMonitor": {"labels": {"app.kubernetes.io/name": "a"}}},
        "invalid propertyName 'app.kubernetes.io/name'",
    ),
}
WRONG |= {
    f"{what} of the {side}": ({side: values}, message if message.startswith("invalid") else f"/{side}/{message}")
    for side in ("scrubber", "plugin")
    for what, values, message in (
        ("a label that selects", {"podLabels": {"app.kubernetes.io/component": "a"}}, "invalid propertyName 'app"),
        ("a label that is none", {"podLabels": {"team": "a b"}}, "podLabels/team.*does not match"),
        (
            "an annotation that is set",
            {"podAnnotations": {"kubectl.kubernetes.io/default-container": "a"}},
            "invalid propertyName 'kubectl",
        ),
        (
            "a variable that is set",
            {"extraEnv": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
            "extraEnv/0/name",
        ),
        ("a flag as a variable", {"extraEnv": [{"name": "AUTOCLAVE_RUN_DIR", "value": "/x"}]}, "extraEnv/0/name"),
        ("a variable that is a number", {"extraEnv": [{"name": "A", "value": 1}]}, "extraEnv/0/value.*want string"),
        ("a field that no variable has", {"extraEnv": [{"name": "A", "val": "1"}]}, "extraEnv/0.*'val' not allowed"),
        ("a volume that is there", {"extraVolumes": [{"name": "run", "emptyDir": {}}]}, "extraVolumes/0/name"),
        (
            "a mount that goes up",
            {"extraVolumeMounts": [{"name": "a", "mountPath": "more"}]},
            "extraVolumeMounts/0/mountPath",
        ),
        (
            "a field that no mount has",
            {"extraVolumeMounts": [{"name": "a", "mountPath": "/a", "ro": True}]},
            "extraVolumeMounts/0.*'ro' not allowed",
        ),
    )
} | {
    f"{what} of the {side}": ({side: values}, f"{side}.{message}")
    for side in ("scrubber", "plugin")
    for what, values, message in (
        ("two variables of one name", {"extraEnv": [{"name": "A", "value": "1"}] * 2}, "extraEnv: two have one name"),
        (
            "two volumes of one name",
            {"extraVolumes": [{"name": "a", "emptyDir": {}}] * 2},
            "extraVolumes: two have one name",
        ),
        (
            "a mount of nothing",
            {"extraVolumeMounts": [{"name": "a", "mountPath": "/a"}]},
            "extraVolumeMounts: there is no a in",
        ),
        ("a mount over ours", mounted("/run/autoclave/doors"), "extraVolumeMounts: /run/autoclave/doors is taken"),
        ("two mounts of one path", mounted("/a", "/a"), "extraVolumeMounts: two have one path"),
    )
}
DRA = {"enabled": True}
IN_FRONT = {**DRA, "inFrontOf": {"registrarDirectory": "/a"}}
WRONG |= {
    "a driver and reports": (
        {"dra": DRA, "clusterReports": {"enabled": True}},
        "clusterReports.enabled: dra.enabled repl",
    ),
    "a driver and another way": (
        {"dra": DRA, "plugin": {"strategy": ["envvar"]}},
        "plugin.strategy: claims get devices by",
    ),
    "a driver and a resource": (
        {"dra": DRA, "plugin": {"resourcePrefix": "a.b"}},
        "plugin.resourcePrefix: the DRA driver has",
    ),
    "a driver and device nodes": (
        {"dra": DRA, "plugin": {"passDeviceSpecs": True}},
        "plugin.passDeviceSpecs: the DRA driver",
    ),
    "a flag of the driver twice": (
        {"dra": DRA, "plugin": {"extraArgs": ["--driver-name=a"]}},
        "plugin.extraArgs: --driver-name is set by a value",
    ),
    "a driver with capitals": ({"dra": {"driverName": "GPU.example"}}, "/dra/driverName.*does not match"),
    "a driver with a long name": ({"dra": {**DRA, "driverName": "a" * 56}}, "dra.driverName: with kubelet.registryDir"),
    "a driver in deep directories": (
        {"dra": DRA, "kubelet": {"pluginsDir": "/" + "a" * 71}},
        "dra.driverName: with kubelet.pluginsDir",
    ),
    "a status of claims without a driver": ({"dra": {"claimStatus": True}}, "set dra.enabled too"),
    "a driver that no plugin stands in front of": (
        {"dra": {"inFrontOf": {"registrarDirectory": "/a"}}},
        "dra.inFrontOf: the device plugin stands in front of no DRA driver; set dra.enabled too",
    ),
    "another driver that registers nowhere": (
        {"dra": {**DRA, "inFrontOf": {"driverName": "gpu.site.example"}}},
        "set dra.inFrontOf.registrarDirectory too",
    ),
    "a name for another driver in the wrong place": (
        {"dra": {**IN_FRONT, "driverName": "gpu.site.example"}},
        "set dra.inFrontOf.driverName instead",
    ),
    "a class of another driver": (
        {"dra": {**IN_FRONT, "deviceClass": {"extendedResourceName": "a.b/c"}}},
        "the DeviceClass is the other vendor's",
    ),
    "another driver where the kubelet would find it": (
        {"dra": {**DRA, "inFrontOf": {"registrarDirectory": "/var/lib/kubelet/plugins_registry/vendor"}}},
        "dra.inFrontOf.registrarDirectory: it is, or is inside, kubelet.registryDir",
    ),
    "another driver, and a long directory": (
        {"dra": IN_FRONT, "kubelet": {"pluginsDir": "/" + "a" * 28}},
        "kubelet.pluginsDir: with dra.inFrontOf it is too long",
    ),
    "another plugin and a driver": (
        {"dra": DRA, "plugin": {"inFrontOf": {"directory": "/var/lib/kubelet/device-plugins/vendor"}}},
        "plugin.inFrontOf: dra.enabled replaces the device plugin",
    ),
    "another plugin and a choice of its own": (
        {"plugin": {"inFrontOf": {"directory": "/var/lib/kubelet/device-plugins/vendor"}, "migStrategy": "single"}},
        "plugin.migStrategy: with plugin.inFrontOf the other plugin decides it",
    ),
    "another plugin that does not see the directory": (
        {"plugin": {"inFrontOf": {"directory": "/run/vendor"}}},
        "plugin.inFrontOf.directory: the other plugin sees only kubelet.devicePluginsDir",
    ),
    "a resource of no class": (
        {"dra": {**DRA, "deviceClass": {"create": False, "extendedResourceName": "a.b/c"}}},
        "set dra.deviceClass.create too",
    ),
    "a resource that is none": (
        {"dra": {"deviceClass": {"extendedResourceName": "gpu"}}},
        "/dra/deviceClass/extendedResourceName.*does not match",
    ),
    "plugins and their registry": (
        {"kubelet": {"pluginsDir": "/var/lib/kubelet/plugins_registry"}},
        "kubelet.[a-zA-Z]+: it is, or is inside",
    ),
    "a specification of simulated GPUs": (
        {"cdi": {"generate": True}, "backend": "simulated"},
        "cdi.generate: simulated GPUs have a CDI specification of their own; leave it off",
    ),
    "a specification beside that of another driver": (
        {"cdi": {"generate": True}, "dra": IN_FRONT},
        "cdi.generate: the plugin or driver behind ours writes the CDI specification itself; leave it off",
    ),
    "a specification beside that of another plugin": (
        {
            "cdi": {"generate": True},
            "plugin": {"inFrontOf": {"directory": "/var/lib/kubelet/device-plugins/vendor"}},
        },
        "cdi.generate: the plugin or driver behind ours writes",
    ),
    "a specification that nothing reads": (
        {"cdi": {"generate": True}, "plugin": {"strategy": ["envvar"]}},
        "cdi.generate: plugin.strategy uses no CDI; leave it off, or add cdi-cri",
    ),
    "deny and warn": ({"admissionPolicy": {"kubeletDirectories": ["Deny", "Warn"]}}, "exclude each other"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_are_reported_and_not_rendered(case):
    values, message = WRONG[case]
    with pytest.raises(helm_python.HelmError) as raised:
        generate.render(values)
    assert re.search(message, str(raised.value), re.DOTALL), str(raised.value)


def test_a_policy_has_the_words_that_the_chart_knows():
    (known,) = re.findall(r"has \$key \(list ([^)]*)\)", (generate.CHART / "templates/_checks.tpl").read_text())
    schema = json.loads((generate.ROOT / "policies/schema.json").read_text())
    assert set(re.findall(r'"(\w+)"', known)) == set(schema["properties"])
    assert schema["required"] == ["name"]


STRANGE: dict[str, Any] = {
    "runtimeClass": {"name": "1e3", "create": True, "handler": "123"},
    "priorityClassName": "123",
    "policy": {"existingConfigMap": "0"},
    "plugin": {"seLinuxType": "true"},
    "clusterReports": {"enabled": True},
    "podMonitor": {"enabled": True, "interval": "1h"},
}


@pytest.mark.parametrize("release", ["123", "1e3", "on", "a.b", "x" * 53])
def test_a_name_that_looks_like_something_else_stays_a_name(release):
    """YAML takes 123 for a number and on for a truth; a dot is in no Service's name."""
    values = STRANGE | (
        {} if release.isdigit() or release == "1e3" else {"podMonitor": {}, "serviceMonitor": {"enabled": True}}
    )
    for text in generate.chart().render(values, name=release, namespace="456").values():
        for doc in manifests.documents(text) if "kind:" in text else ():
            if doc["apiVersion"] in manifests.GROUPS:
                assert manifests.check(doc) == []
            assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", doc["metadata"]["name"])
            assert doc["metadata"].get("namespace", "456") in {"456", "default"}
            assert all(isinstance(it, str) for it in doc["metadata"]["labels"].values())
