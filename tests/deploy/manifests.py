"""What tests of the chart share: values that reach every branch, its objects, its pods, and the API's own types."""

from __future__ import annotations

import copy
import ctypes
import importlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import msgspec
import yaml

from deploy import generate, image

POLICY = "name: mine\n"
PROGRAMS = (("kustomize", "build"), ("kubectl", "kustomize"))  # the same; neither is needed to build this
KUSTOMIZE = next((program for program in PROGRAMS if shutil.which(program[0])), ())

MATRIX: dict[str, dict[str, Any]] = yaml.safe_load(
    """
default: {}
simulated: {backend: simulated}
observe: {policy: {shipped: observe}}
privileged: {scrubber: {privileged: true}}
reports: {clusterReports: {enabled: true}}
checkpoints: {clusterReports: {enabled: true, checkpoint: true}}
any node: {clusterReports: {enabled: true, ownNodeOnly: false}}
nvsentinel: {nvsentinel: {socket: /var/run/nvsentinel/nvsentinel.sock}}
nvsentinel for claims:
  nvsentinel: {socket: /var/run/nvsentinel/nvsentinel.sock, action: remediate}
  dra: {enabled: true}
pod monitor: {podMonitor: {enabled: true, labels: {release: prometheus}, interval: 15s}}
service monitor: {serviceMonitor: {enabled: true}}
rules:
  prometheusRule: {enabled: true, disabled: [AutoclaveAbsent]}
  runbookUrl: https://wiki.example/gpus
dashboards:
  dashboards: {enabled: true, annotations: {folder: GPUs}}
  runbookUrl: https://wiki.example/gpus
policy: {policy: {inline: "name: mine\\n", operatorNamespaces: [site-gpus], fence: refuse, exempt: [a.service]}}
policy of others: {policy: {existingConfigMap: theirs, key: site.yaml}}
runtime class: {runtimeClass: {create: true}}
no runtime class:
  {runtimeClass: {name: ''}, gpuNodesOnly: false, tolerations: [{operator: Exists}], priorityClassName: ''}
mig: {plugin: {migStrategy: mixed, passDeviceSpecs: true, driverRoot: /run/nvidia/driver}}
envvar: {plugin: {strategy: [envvar]}}
two strategies: {plugin: {strategy: [cdi-cri, volume-mounts]}}
bare:
  doctor: {enabled: false}
  networkPolicy: {enabled: false}
  admissionPolicy: {enabled: false}
  fullnameOverride: ac
places:
  image: {digest: 'sha256:0000000000000000000000000000000000000000000000000000000000000000'}
  imagePullSecrets: [{name: registry}]
  nodeSelector: {pool: gpu}
  affinity: {nodeAffinity: {}}
  updateStrategy: {maxUnavailable: 10%}
  networkPolicy: {from: [{namespaceSelector: {}}]}
  admissionPolicy: {kubeletDirectories: [Deny]}
more:
  scrubber: &extra
    extraArgs: [--config=/etc/scrubber.yaml]
    extraEnv: [{name: A, value: b}]
    extraVolumes: [{name: more, emptyDir: {}}]
    extraVolumeMounts: [{name: more, mountPath: /more}]
    podAnnotations: {a: b}
    podLabels: {team: gpu}
  plugin: {<<: *extra, extraArgs: [--config=/etc/plugin.yaml]}
places that are links: {directories: {run: /var/run/autoclave, cdi: /var/cdi/static}}
cdi: {cdi: {generate: true}}
cdi of a driver container:
  cdi: {generate: true}
  plugin: {driverRoot: /run/nvidia/driver, cdiKind: site.example/gpu, migStrategy: mixed}
  dra: {enabled: true}
  doctor: {enabled: false}
selinux: {plugin: {seLinuxType: spc_t}}
dra: {dra: {enabled: true}, podMonitor: {enabled: true}}
dra with everything:
  backend: simulated
  dra:
    enabled: true
    driverName: gpu.site.example
    deviceClass: {extendedResourceName: site.example/gpu}
  admissionPolicy: {gpuPods: [Deny]}
  plugin: {<<: *extra, extraArgs: [--clean-within=20], seLinuxType: spc_t}
  kubelet: {pluginsDir: /var/lib/k/plugins, registryDir: /var/lib/k/plugins_registry}
dra in front:
  dra: {enabled: true, inFrontOf: {registrarDirectory: /var/lib/kubelet/plugins_gated}}
  policy: {shipped: observe, operatorNamespaces: [gpu-operator]}
gpu cluster:
  scrubber: {privileged: true, driverRoot: /run/nvidia/driver}
  dra: {enabled: true, inFrontOf: {registrarDirectory: /var/lib/kubelet/plugins/gated}}
  policy: {shipped: observe}
plugin in front:
  plugin: {inFrontOf: {directory: /var/lib/kubelet/device-plugins/vendor}}
  policy: {shipped: observe}
dra without extras: {dra: {enabled: true, ownNodeOnly: false, deviceClass: {create: false}}, doctor: {enabled: false}}
"""
)
DRA = [case for case, values in MATRIX.items() if "dra" in values]

GROUPS = {  # those that the chart makes objects of, and where their types are
    "v1": "core_v1",
    "apps/v1": "apps_v1",
    "batch/v1": "batch_v1",
    "networking.k8s.io/v1": "networking_v1",
    "rbac.authorization.k8s.io/v1": "rbac_v1",
    "node.k8s.io/v1": "node_v1",
    "admissionregistration.k8s.io/v1": "admissionregistration_v1",
    "resource.k8s.io/v1": "resource_v1",
}


def documents(text: str) -> list[Any]:
    """What stands in a file, as Kubernetes reads it."""
    return [doc for doc in yaml.load_all(text, yaml.CSafeLoader) if doc is not None]


Case = str | tuple[dict[str, Any], ...]  # a line of the matrix, or objects


def given(values: dict[str, Any]) -> dict[str, Any]:
    """These values, and the image that ``make image`` builds: the chart requires one."""
    return {**values, "image": {"repository": image.REPOSITORY, **values.get("image", {})}}


def loaded(values: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """All objects that the chart makes of some values, hooks among them."""
    return tuple(doc for text in generate.render(given(values)).values() for doc in documents(text))


def notes(values: dict[str, Any], *, upgrade: bool = False) -> str:
    """What helm says after it has installed, or upgraded, the release ``x`` in the namespace ``gpus``."""
    made = generate.chart().render(
        given(values), name="x", namespace="gpus", is_install=not upgrade, is_upgrade=upgrade
    )  # fmt: skip
    return made["autoclave/templates/NOTES.txt"]


def render_for(version: str, values: dict[str, Any]) -> dict[str, str]:
    """The chart's templates for a cluster of this version, as ``helm template --kube-version``; ValueError if refused.

    The Python interface of the library has no such option, the C interface below it has.
    """
    library = ctypes.CDLL(str(helm_python.library_path))
    chart, out, error = ctypes.c_uint64(), ctypes.c_char_p(), ctypes.c_char_p()
    path = os.fsencode(generate.CHART)
    assert library.helm_chart_load(path, ctypes.byref(chart), ctypes.byref(error)) == 0, error.value
    options = {"name": generate.NAME, "namespace": generate.NAMESPACE, "kube_version": f"v{version}.0"}
    arguments = (json.dumps(given(values)).encode(), json.dumps(options).encode())
    refused = library.helm_render(chart, *arguments, ctypes.byref(out), ctypes.byref(error))
    if refused:
        raise ValueError((error.value or b"").decode())
    made: dict[str, str] = json.loads(out.value or b"")
    return made


@cache
def objects(case: str) -> tuple[dict[str, Any], ...]:
    """All objects of one line of the matrix."""
    return loaded(MATRIX[case])


def patched(doc: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """The object after a JSON patch (RFC 6902), of the operations that ours are made of."""
    made: dict[str, Any] = copy.deepcopy(doc)
    for each in patch:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:]]
        inner: Any = made
        for part in way:
            inner = inner[int(part)] if isinstance(inner, list) else inner[part]
        place = int(last) if isinstance(inner, list) else last
        assert isinstance(inner, list) or (last in inner) == (each["op"] != "add")
        if each["op"] == "remove":
            del inner[place]
        else:
            inner[place] = each["value"]
    return made


def composed(folder: Path) -> list[dict[str, Any]]:
    """What kustomize makes of an overlay, or of the base."""
    (about,) = documents((folder / "kustomization.yaml").read_text())
    parts = [folder / name for name in about["resources"]]
    docs = [doc for part in parts for doc in (composed(part) if part.is_dir() else documents(part.read_text()))]
    found = {generate.key(doc): doc for doc in docs}
    for patch in about.get("patches", ()):
        if "patch" in patch:
            (gone,) = documents(patch["patch"])
            assert gone.pop("$patch") == "delete"
            assert gone["apiVersion"] == found.pop(generate.key(gone))["apiVersion"]
            continue
        ((key, doc),) = (
            (key, doc) for key, doc in found.items() if (key[0], key[2]) == tuple(patch["target"].values())
        )
        (operations,) = documents((folder / patch["path"]).read_text())
        found[key] = patched(doc, operations)
    return list(found.values())


def of(case: str, kind: str, end: str = "") -> dict[str, Any]:
    """The one object of a kind, and of a name that ends so."""
    (found,) = (doc for doc in objects(case) if doc["kind"] == kind and doc["metadata"]["name"].endswith(end))
    return found


def pods(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each pod's component and specification."""
    for doc in objects(case) if isinstance(case, str) else case:
        if doc["kind"] in {"DaemonSet", "Job", "Pod"}:
            pod = doc["spec"] if doc["kind"] == "Pod" else doc["spec"]["template"]["spec"]
            yield doc["metadata"]["labels"]["app.kubernetes.io/component"], pod


def containers(case: Case) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each container: what it is called, its pod, itself. The standby of a plugin is called as the plugin is."""
    for component, pod in pods(case):
        for it in (*pod.get("initContainers", ()), *pod["containers"]):
            name = it["name"].removesuffix("-2")
            yield name if name == component else f"{name} ({component})", pod, it


def container(case: Case, name: str) -> dict[str, Any]:
    """One of them."""
    return next(it for called, _, it in containers(case) if called == name)


def words(one: dict[str, Any], places: Mapping[str, object]) -> list[str]:
    """What a container runs, with directories of a test in the places of the node's."""
    command_args: list[str] = one["args"]
    for there, place in places.items():
        command_args = [word.replace(f"={there}", f"={place}") for word in command_args]
    return command_args


def flags(one: dict[str, Any]) -> dict[str, str]:
    """The flags of a container's command line, those without a value as "true"."""
    pairs = (word.partition("=") for word in one["args"][1:])
    return {name: value if found else "true" for name, found, value in pairs}


def unknown(doc: Any, known: Any, place: str = "") -> Iterator[str]:  # noqa: ANN401 - any part of an object
    """The fields of an object that its type has not kept."""
    if isinstance(doc, dict):
        for name, inner in doc.items():
            if name in known:
                yield from unknown(inner, known[name], f"{place}.{name}")
            else:
                yield f"{place}.{name}"
    elif isinstance(doc, list):
        for number, inner in enumerate(doc):
            yield from unknown(inner, known[number], f"{place}[{number}]")


def check(doc: dict[str, Any]) -> list[str]:
    """Fields of an object that the API's own type does not know; a ValidationError for any other fault."""
    kind = getattr(importlib.import_module(f"lightkube.models.{GROUPS[doc['apiVersion']]}"), doc["kind"])
    return list(unknown(doc, msgspec.to_builtins(msgspec.convert(doc, kind))))
