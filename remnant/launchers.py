"""The command lines that start and end both containers in each place: here, Docker, Kubernetes, Slurm.

A container reads its order from stdin and answers on stdout, so that a command that passes both on is all it takes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from containers import places
from containers.places import STARTS_WITHIN
from remnant.round_result import Ending

PROGRAM = ("-P", "-m", "remnant.tenant")
_CHECKOUT = str(Path(__file__).parents[1])  # where this package lies, also if it was not installed
IN_IMAGE = "/opt/autoclave/bin/python"
LOADS_WITHIN = 120  # seconds, of the program alone
LIVES_AT_MOST = STARTS_WITHIN + 300  # seconds; after that, Kubernetes ends a pod that nobody has removed
RIGHTS = (  # in the namespace of the pods, to make them, hear them and remove them
    *(f"{verb} pods" for verb in ("create", "get", "list", "watch", "delete")),
    "create pods/attach",
    "get pods/attach",
    "get pods/log",
)
_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"  # what NVIDIA's container toolkit brings in
_NEEDED = "compute,utility"


class Place(Enum):
    """Where the two containers run."""

    LOCAL = "local"  # they are processes of this machine
    DOCKER = "docker"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"


@dataclass(frozen=True, slots=True)
class Launcher:
    """Commands that start, delete and remove a container, by its name, and say what it waits for."""

    start: Callable[[str], list[str]]
    waits: Callable[[str], list[str]] | None = None  # None: it starts at once
    delete: Callable[[str], list[str]] | None = None  # None: containers are not deleted here
    force_delete: Callable[[str], list[str]] | None = None
    remove: Callable[[str], list[str]] | None = None  # in whatever state it is; None: nothing is left of it
    starts_within: float = STARTS_WITHIN
    together: bool = True  # the next container can be started before the first one has given up the GPU
    rights: Mapping[str, list[str]] = field(default_factory=dict)  # what an account must be allowed, and what asks that

    @property
    def endings(self) -> tuple[Ending, ...]:
        """How a container can end here."""
        impossible = {
            Ending.DELETE: self.delete is None,
            Ending.FORCE_DELETE: self.force_delete is None,
            Ending.STAYS: not self.together,
        }
        return tuple(each for each in Ending if not impossible.get(each))


@dataclass(frozen=True, slots=True)
class Pod:
    """What a pod of the test is like."""

    image: str
    count: int  # of GPUs
    resource: str
    claim_template: str  # instead of the resource
    namespace: str
    node: str
    runtime_class: str


def local() -> Launcher:
    """Two processes of this machine."""
    found_in = os.pathsep.join([_CHECKOUT, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = ["env", f"PYTHONPATH={found_in}", sys.executable, *PROGRAM]
    return Launcher(lambda _name: command, starts_within=LOADS_WITHIN)


def docker(image: str, uuid: str) -> Launcher:
    """Two containers of docker, or of what is installed under this name."""

    def start(name: str) -> list[str]:
        flags = ["--interactive", "--name", name, "--gpus", f"device={uuid}"]
        return [
            "docker",
            "run",
            "--rm",
            *flags,
            "-e",
            f"{_CAPABILITIES}={_NEEDED}",
            "--entrypoint",
            IN_IMAGE,
            image,
            *PROGRAM,
        ]

    return Launcher(start, remove=places.removed_by_docker)


def kubernetes(pod: Pod) -> Launcher:
    """Two pods, one after the other: a plugin gives a GPU to one of them."""
    place = pod.namespace

    def start(name: str) -> list[str]:
        flags = ["--quiet", "--stdin", "--rm", "--restart=Never", f"--pod-running-timeout={STARTS_WITHIN}s"]
        return [
            *places.kubectl(place),
            "run",
            name,
            f"--image={pod.image}",
            *flags,
            f"--overrides={json.dumps(_manifest(name, pod))}",
        ]

    return Launcher(
        start,
        waits=partial(places.waits_for, place),
        delete=partial(places.delete, place),
        force_delete=partial(places.force_delete, place),
        remove=partial(places.delete, place),
        together=False,
        rights=places.can_i(place, RIGHTS),
    )


def _manifest(name: str, pod: Pod) -> dict[str, object]:
    container = {
        "name": name,
        "image": pod.image,
        "command": [IN_IMAGE, *PROGRAM],
        "stdin": True,
        "stdinOnce": True,
        "env": [{"name": _CAPABILITIES, "value": _NEEDED}],
        "resources": {"limits": {pod.resource: str(pod.count)}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    claims: dict[str, object] = {}
    if pod.claim_template:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        claims = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": pod.claim_template}]}
    spec: dict[str, object] = {
        "containers": [container],
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIVES_AT_MOST,
        # What namespaces with the level "restricted" demand; the user is the image's.
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,  # the first process of a container does not hear TERM
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        **claims,
    }
    if pod.node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": pod.node}
    if pod.runtime_class:
        spec["runtimeClassName"] = pod.runtime_class
    return {"apiVersion": "v1", "metadata": {"labels": {"app.kubernetes.io/name": "autoclave-remnant"}}, "spec": spec}


def slurm(node: str, count: int) -> Launcher:
    """Two jobs, one after the other, with so many GPUs each. This program is installed on the node as it is here."""

    def start(name: str) -> list[str]:
        flags = ["--quiet", "--ntasks=1", f"--gres=gpu:{count}", f"--job-name={name}"]
        return ["srun", *flags, *([f"--nodelist={node}"] if node else []), sys.executable, *PROGRAM]

    return Launcher(
        start,
        waits=lambda name: ["squeue", "--noheader", f"--name={name}", "--format=%r"],
        remove=lambda name: ["scancel", f"--name={name}"],
        together=False,
    )
