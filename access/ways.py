"""The ways to a GPU that a container was not given: what each one tries, and what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Place(Enum):
    """Where the containers run."""

    KUBERNETES = "kubernetes"
    DOCKER = "docker"
    PODMAN = "podman"
    SLURM = "slurm"


OWNER_CASE = "a container with a claim or a request finds the GPU"
"""The case of the conformance suite that the owner shows."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way. ``not_at``: the places that have no such way, with the reason."""

    name: str
    tries: str
    needs: str = "nothing"
    conformance: str = ""  # the case of the conformance suite that it is
    not_at: Mapping[Place, str] = field(default_factory=dict)
    must_have: str = ""  # what must be in the variable of the container: otherwise the way was not tried


_DOCKERS = (Place.DOCKER, Place.PODMAN)
_NO_POD = dict.fromkeys((*_DOCKERS, Place.SLURM), "there are no pods")
_NO_PLUGIN = dict.fromkeys(_DOCKERS, "who starts a container chooses its GPUs: nothing hands them from one to the next")
_NO_CONTAINER = {Place.SLURM: "a job is no container"}
_AS_REQUEST = dict.fromkeys(_DOCKERS, "who may use its command line chooses the devices, so this is a request")
_NO_CHOICE = {Place.PODMAN: "its runtime is an option of the whole command"}
_VARIABLE, _HOST_NETWORK = "an image with NVIDIA_VISIBLE_DEVICES=all in its ENV (--variable-image)", "hostNetwork"

WAYS = (
    Way("no-request", "A container that asks for no GPU looks for device nodes and opens each one.",
        conformance="a container without a claim or a request finds no GPU"),
    Way("variable", "It sets NVIDIA_VISIBLE_DEVICES=all in its environment.", must_have="all"),
    Way("image-variable", "The same variable comes from the ENV of its image, as in many images for CUDA.",
        _VARIABLE, not_at=_NO_CONTAINER, must_have="all"),
    Way("cdi-annotation", "An annotation of its pod names the CDI device nvidia.com/gpu=all.",
        not_at=_AS_REQUEST | _NO_CONTAINER),
    Way("runtime-class", "It asks for the runtime of NVIDIA's toolkit, and sets the variable.",
        "a RuntimeClass or runtime with the name nvidia", not_at=_NO_CHOICE | _NO_CONTAINER, must_have="all"),
    Way("host-dev", "It mounts the directory /dev of the host, and opens the nodes there.",
        "hostPath volumes", not_at=_NO_CONTAINER),
    Way("own-node", "It makes a node with the number of the owner's GPU, and opens it.",
        "root in the container, CAP_MKNOD"),
    Way("privileged", "A privileged container opens the nodes in its /dev.",
        "privileged containers", not_at=_NO_CONTAINER),
    Way("privileged-own-node", "A privileged container makes a node with the number of the owner's GPU, and opens it.",
        "privileged containers", not_at=_NO_CONTAINER),
    Way("host-pid", "It sees the processes of the host, and opens nodes through /proc/PID/root.",
        "root in the container, hostPID, CAP_SYS_PTRACE", not_at=_NO_CONTAINER),
    Way("second-container", "A second container of the owner's pod, which asks for no GPU, looks for nodes.",
        conformance="a second container of a pod, without the claim, finds no GPU", not_at=_NO_POD),
    Way("ephemeral-container", "An ephemeral container is added to the owner's pod, as by `kubectl debug`.",
        "the right to patch pods/ephemeralcontainers", not_at=_NO_POD),
    Way("init-container", "An init container without a GPU starts after the one that has it and goes on running.",
        not_at=_NO_POD),
    Way("leftover", "The owner is removed while its process may go on, and the next container gets the GPU.",
        "the right to delete pods", not_at=_NO_PLUGIN),
    Way("handed-on", "An owner takes part: it sends its open node through a socket to a container without a GPU.",
        _HOST_NETWORK),
    Way("kept-open", "That container keeps the node open after the owner's end, and the next container gets the GPU.",
        _HOST_NETWORK, not_at=_NO_PLUGIN),
)  # fmt: skip
BY_NAME = {way.name: way for way in WAYS}
PLAIN = WAYS[0]
"""Always tried: where a container without rights runs, the refusal of another one says something about its way."""
