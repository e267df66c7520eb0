"""The manifests as files that a person can read, and the values that fill them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from string import Template

from access.hearing import LIVES, Secrets

HERE = Path(__file__).parent / "manifests"
PROBE = HERE.parent / "probe.py"
NOT_ROOT = "65532"
_FIRST = ("namespace", "claim", "owner")
_NO_POD = ("ephemeral-container",)  # what is added to the owner's pod


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is tested, and how a pod asks for a GPU there. ``device_class``: for a claim instead of the resource."""

    node: str
    image: str
    nodes: str
    variable_image: str = ""
    resource: str = "nvidia.com/gpu"
    device_class: str = ""
    count: int = 1
    runtime_class: str = ""
    pod_security: str = ""

    @property
    def flags(self) -> str:
        """The flags that say where a pod finds its GPU."""
        return f"--node, {'--device-class' if self.device_class else '--resource'} and --count"


def filled(manifest: str, cluster: Cluster, own: Secrets, **more: str) -> str:
    """The manifest of this name. ``more``: values that are not the usual ones, such as the user of a plain pod."""
    given = {"resources": f'{{limits: {{"{cluster.resource}": {cluster.count}}}}}'}
    quota = {"pods": 4, "count/configmaps": 4, f"requests.{cluster.resource}": 2 * cluster.count}
    if cluster.device_class:
        given = {"resources": "{claims: [{name: gpu}]}"}
        quota = {"pods": 4, "count/configmaps": 4, "count/resourceclaims.resource.k8s.io": 4}
    labels = {"app.kubernetes.io/name": "autoclave-access"}
    if cluster.pod_security:
        labels["pod-security.kubernetes.io/enforce"] = cluster.pod_security
    values = {
        "name": manifest, "namespace": own.namespace, "node": cluster.node, "image": cluster.image,
        "variable_image": cluster.variable_image or cluster.image, "nodes": cluster.nodes, "nonce": own.nonce,
        "secret": own.secret, "lives": str(LIVES), "port": str(own.port), "user": "0",
        "runtime": cluster.runtime_class or "null", "device_class": cluster.device_class, "count": str(cluster.count),
        "claims": "[{name: gpu, resourceClaimTemplateName: gpu}]" if cluster.device_class else "[]",
        "labels": json.dumps(labels), "quota": json.dumps({name: str(most) for name, most in quota.items()}),
        "numbers": "", "owner": "", **given, **more,
    }  # fmt: skip
    values["nonroot"] = "false" if values["user"] == "0" else "true"
    return Template((HERE / f"{manifest}.yaml").read_text()).substitute(values)


def preview(cluster: Cluster, own: Secrets) -> str:
    """All manifests of a run, in one text."""
    names = [*_FIRST, *(name for name in digests() if name not in (*_FIRST, *_NO_POD, PROBE.name))]
    return "---\n".join(filled(name, cluster, own) for name in names if name != "claim" or cluster.device_class)


def digests() -> dict[str, str]:
    """The SHA-256 of the probe and of each manifest as it is shipped, by name."""
    files = {"probe.py": PROBE, **{path.stem: path for path in sorted(HERE.glob("*.yaml"))}}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
