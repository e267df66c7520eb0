"""Values that the chart refuses when it is rendered, and names that stay what they are."""

import json
import re
from typing import Any

import helm_python
import pytest
import yaml

from deploy import generate
from tests.deploy import manifests

MOUNTED = "extraVolumes: [{name: a, emptyDir: {}}], extraVolumeMounts: [%s]"
IN_FRONT = "plugin: {inFrontOf: {directory: /var/lib/kubelet/device-plugins/vendor}%s}"
GATE = "dra: {enabled: true, inFrontOf: {registrarDirectory: /a}%s}"
NODES_DRIVER = "scrubber: {privileged: true, driverRoot: /%s}"
WRONG = [
    (
        "image: {repository: ''}",
        r"image.repository: no image of Autoclave is published; .* set image.repository [(]docs",
    ),
    (
        "image: {repository: 'registry.example:5000/gpu/autoclave:0.1.0'}",
        r"names a tag.*set image.repository=registry.example:5000/gpu/autoclave and image.tag=0.1.0",
    ),
    ("commonLabels: {a: b}, podMonitor: {labels: {a: c}}", "commonLabels: podMonitor.labels also sets the label a"),
    ("commonLabels: {app.kubernetes.io/name: a}", "invalid propertyName 'app.kubernetes.io/name'"),
    ("commonAnnotations: {helm.sh/hook: test}", "invalid propertyName 'helm.sh/hook'"),
    ("plugin: {serviceAccount: Big}", "/plugin/serviceAccount.*does not match"),
    ("plugin: {serviceAccount: default}", "plugin.serviceAccount: default is also the account of other pods"),
    ("plugin: {serviceAccount: a}, scrubber: {serviceAccount: a}", "plugin.serviceAccount: a is also the account"),
    ("privileged: true", "additional properties 'privileged' not allowed"),
    ("backend: amd", "/backend.*must be one of"),
    ("scrubber: {simulated: {gpus: '2'}}", "/scrubber/simulated/gpus.*want integer"),
    ("directories: {run: run/autoclave}", "/directories/run.*does not match"),
    ("directories: {run: /run/../etc}", "/directories/run.*not"),
    ("image: {digest: 'sha256:abc'}", "/image/digest.*does not match"),
    ("updateStrategy: {maxUnavailable: 0}", "/updateStrategy/maxUnavailable"),
    ("doctor: {plugin: [rival]}", "/doctor/plugin/0.*must be one of"),
    ("podMonitor: {enabled: true}, serviceMonitor: {enabled: true}", "switch one off"),
    ("policy: {inline: a, existingConfigMap: b}", "leave one of them empty"),
    ("policy: {inline: a, shipped: fast}", "another policy replaces it"),
    ("runtimeClass: {create: true, name: ''}", "set runtimeClass.name"),
    ("plugin: {extraArgs: [--run-dir=/x]}", "plugin.extraArgs: --run-dir is set by a value"),
    ("scrubber: {extraArgs: [--evidenc-rows=9]}", "/scrubber/extraArgs/0.*not match"),
    ("sharing: {timeSlicing: {}}", "sharing: a GPU belongs to one container at a time"),
    ("plugin: {sharing: {mps: {}}}", "sharing: a GPU belongs to one container"),
    ("policy: {byNodeLabel: {a: {shipped: fast}}}", "set policy.nodeLabel"),
    ("policy: {nodeLabel: pool}, affinity: {podAffinity: {}}", "policy.nodeLabel: the chart needs the affinity"),
    (
        "policy: {nodeLabel: pool, byNodeLabel: {a: {shipped: fast, inline: 'name: a'}}}",
        "/policy/byNodeLabel/a.*maxProperties",
    ),
    ("policy: {nodeLabel: pool, byNodeLabel: {a: {inline: 'name: [a'}}}", "byNodeLabel.a.inline: it is not YAML"),
    ("prometheusRule: {disabled: [Nope]}", "there is no alert Nope"),
    ("policy: {inline: 'name: [a'}", "policy.inline: it is not YAML"),
    ("policy: {operatorNamespaces: [gpu.x]}", "operatorNamespaces/0.*not match"),
    ("policy: {fence: maybe}", "/policy/fence.*must be one of"),
    ("policy: {exempt: ['*.service']}", "/policy/exempt/0.*not match"),
    ("policy: {inline: '- name: a'}", "policy.inline: it is not YAML"),
    ("policy: {inline: 'description: a'}", "policy.inline: a policy has a name"),
    (r'policy: {inline: "name: a\nrule: []"}', "policy.inline: a policy has no rule;"),
    ("directories: {state: /run/autoclave}", "directories.[a-z]+: it is, or is inside"),
    ("directories: {run: /var/lib/autoclave/run}", "directories.run: it is, or is inside, directories.state"),
    ("directories: {run: /run/a, state: /var/run/a/b}", "directories.state: it is, or is inside, directories.run"),
    ("directories: {state: /host/state}", "directories.state: /host/state is taken"),
    ("directories: {run: /tmp}", "directories.run: /tmp is taken"),
    ("serviceMonitor: {enabled: true}, fullnameOverride: 1a", "set fullnameOverride"),
    ("policy: {nodeLabel: pool}", "policy.nodeLabel: no node with this label would get a scrubber; set policy.byNode"),
    ("doctor: {resources: {limits: {memory: lots}}}", "/doctor/resources/limits/memory.*does not match"),
    ("nodeSelector: {pool: a b}", "/nodeSelector/pool.*does not match"),
    ("tolerations: [{key: a, operator: Is}]", "/tolerations/0/operator"),
    ("prometheusRule: {alertLabels: {severity: page}}", "invalid propertyName 'severity'"),
    ("runbookUrl: docs/runbooks", "/runbookUrl.*does not match"),
    ("podMonitor: {labels: {app.kubernetes.io/name: a}}", "invalid propertyName 'app.kubernetes.io/name'"),
    ("dra: {enabled: true}, clusterReports: {enabled: true}", "clusterReports.enabled: dra.enabled repl"),
    ("dra: {enabled: true}, plugin: {strategy: [envvar]}", "plugin.strategy: claims get devices by"),
    ("dra: {enabled: true}, plugin: {resourcePrefix: a.b}", "plugin.resourcePrefix: the DRA driver has"),
    ("dra: {enabled: true}, plugin: {passDeviceSpecs: true}", "plugin.passDeviceSpecs: the DRA driver"),
    ("dra: {enabled: true}, plugin: {extraArgs: [--driver-name=a]}", "plugin.extraArgs: --driver-name is set by a"),
    ("dra: {driverName: GPU.example}", "/dra/driverName.*does not match"),
    ("dra: {enabled: true, driverName: " + "a" * 56 + "}", "dra.driverName: with kubelet.registryDir"),
    ("dra: {enabled: true}, kubelet: {pluginsDir: /" + "a" * 71 + "}", "dra.driverName: with kubelet.pluginsDir"),
    ("dra: {inFrontOf: {registrarDirectory: /a}}", "dra.inFrontOf: the device plugin stands in front of no DRA"),
    ("dra: {enabled: true, inFrontOf: {driverName: gpu.site.example}}", "set dra.inFrontOf.registrarDirectory too"),
    (GATE % ", driverName: gpu.site.example", "set dra.inFrontOf.driverName instead"),
    (GATE % ", deviceClass: {extendedResourceName: a.b/c}", "the DeviceClass is the other vendor's"),
    (
        "dra: {enabled: true, inFrontOf: {registrarDirectory: /var/lib/kubelet/plugins_registry/vendor}}",
        "dra.inFrontOf.registrarDirectory: it is, or is inside, kubelet.registryDir",
    ),
    (
        "dra: {enabled: true, inFrontOf: {registrarDirectory: /var/lib/kubelet/plugins}}",
        "it is, or is inside",
    ),
    (
        "dra: {enabled: true, inFrontOf: {registrarDirectory: /var/lib/kubelet/plugins/gpu.nvidia.com/registry}}",
        "dra.inFrontOf.registrarDirectory: sockets for claims are in .* such as /var/lib/kubelet/plugins/gated",
    ),
    (
        "dra: {enabled: true, inFrontOf: {registrarDirectory: /a}}, kubelet: {pluginsDir: /" + "a" * 28 + "}",
        "kubelet.pluginsDir: with dra.inFrontOf it is too long",
    ),
    ("dra: {enabled: true}, " + IN_FRONT % "", "plugin.inFrontOf: dra.enabled replaces the device plugin"),
    (IN_FRONT % ", migStrategy: single", "plugin.migStrategy: with plugin.inFrontOf the other plugin decides it"),
    ("plugin: {inFrontOf: {directory: /run/vendor}}", "plugin.inFrontOf.directory: the other plugin sees only"),
    ("dra: {enabled: true, deviceClass: {create: false, extendedResourceName: a.b/c}}", "set dra.deviceClass.create"),
    ("dra: {deviceClass: {extendedResourceName: gpu}}", "/dra/deviceClass/extendedResourceName.*does not match"),
    ("kubelet: {pluginsDir: /var/lib/kubelet/plugins_registry}", "kubelet.[a-zA-Z]+: it is, or is inside"),
    ("cdi: {generate: true}, backend: simulated", "cdi.generate: simulated GPUs have a CDI specification of their"),
    ("cdi: {generate: true}, dra: {enabled: true, inFrontOf: {registrarDirectory: /a}}", "cdi.generate: the plugin or"),
    ("cdi: {generate: true}, " + IN_FRONT % "", "cdi.generate: the plugin or driver behind ours writes"),
    ("cdi: {generate: true}, plugin: {strategy: [envvar]}", "cdi.generate: plugin.strategy uses no CDI; leave it off,"),
    ("scrubber: {driverRoot: /}", "only a privileged container can open GPUs; set scrubber.privileged too"),
    ("backend: simulated, " + NODES_DRIVER % "", "scrubber.driverRoot: simulated GPUs have no driver"),
    ("cdi: {generate: true}, " + NODES_DRIVER % "", "cdi.generate: it needs NVIDIA's container toolkit"),
    ("runtimeClass: {create: true}, " + NODES_DRIVER % "", "runtimeClass.create: it needs NVIDIA's container toolkit"),
    (NODES_DRIVER % ", extraEnv: [{name: PATH, value: /a}]", "scrubber.extraEnv: PATH is set because of"),
    ("scrubber: {driverRoot: /a/../b}", "/scrubber/driverRoot.*does not match"),
    ("admissionPolicy: {kubeletDirectories: [Deny, Warn]}", "exclude each other"),
]
FOR_EACH_SIDE = [
    ("resources: {limits: {memory: lots}}", "resources/limits/memory.*does not match"),
    ("resources: {requests: {cpu: -1}}", "resources/requests/cpu.*minimum"),
    ("resources: {limits: {mem: 1Gi}}", "invalid propertyName 'mem'"),
    ("podLabels: {app.kubernetes.io/component: a}", "invalid propertyName 'app"),
    ("podLabels: {team: a b}", "podLabels/team.*does not match"),
    ("podAnnotations: {kubectl.kubernetes.io/default-container: a}", "invalid propertyName 'kubectl"),
    ("extraEnv: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]", "extraEnv/0/name"),
    ("extraEnv: [{name: AUTOCLAVE_RUN_DIR, value: /x}]", "extraEnv/0/name"),
    ("extraEnv: [{name: A, value: 1}]", "extraEnv/0/value.*want string"),
    ("extraVolumes: [{name: run, emptyDir: {}}]", "extraVolumes/0/name"),
    ("extraVolumeMounts: [{name: a, mountPath: more}]", "extraVolumeMounts/0/mountPath"),
    ("extraEnv: [&id001 {name: A, value: '1'}, *id001]", "extraEnv: two have one name"),
    ("extraVolumes: [&id001 {name: a, emptyDir: {}}, *id001]", "extraVolumes: two have one name"),
    ("extraVolumeMounts: [{name: a, mountPath: /a}]", "extraVolumeMounts: there is no a in"),
    (MOUNTED % "{name: a, mountPath: /run/autoclave/doors}", "extraVolumeMounts: /run/autoclave/doors is taken"),
    (MOUNTED % ", ".join(["{name: a, mountPath: /a}"] * 2), "extraVolumeMounts: two have one path"),
]
WRONG += [(f"{side}: {{{values}}}", said) for side in ("scrubber", "plugin") for values, said in FOR_EACH_SIDE]


@pytest.mark.parametrize(("values", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_values_are_reported_and_not_rendered(values, message):
    with pytest.raises(helm_python.HelmError) as raised:
        generate.render(manifests.given(yaml.safe_load(f"{{{values}}}")))
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
    for text in generate.chart().render(manifests.given(values), name=release, namespace="456").values():
        for doc in manifests.documents(text) if "kind:" in text else ():
            if doc["apiVersion"] in manifests.GROUPS:
                assert manifests.check(doc) == []
            assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", doc["metadata"]["name"])
            assert doc["metadata"].get("namespace", "456") in {"456", "default"}
            assert all(isinstance(it, str) for it in doc["metadata"]["labels"].values())
