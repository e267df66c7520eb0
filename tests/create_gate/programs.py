"""The program of the create gate, compiled here, and what a container runtime says to it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "scrubber/create_gate/autoclave-gate.c"
UID = "6f0c3c7e-1a52-4c0c-9d0a-0f4bb8c9f0aa"
CONTAINERD = {
    "io.kubernetes.cri.sandbox-uid": UID,
    "io.kubernetes.cri.sandbox-namespace": "team",
    "io.kubernetes.cri.sandbox-name": "train-0",
    "io.kubernetes.cri.container-name": "main",
}
LABELS = {
    "io.kubernetes.pod.uid": UID,
    "io.kubernetes.pod.namespace": "team",
    "io.kubernetes.pod.name": "train-0",
    "io.kubernetes.container.name": "main",
}
CRIO = {"io.kubernetes.cri-o.Labels": json.dumps(LABELS)}


def compiled(target: Path, source: Path, *flags: str):
    """A program from this C source, static without other flags; skips where there is no compiler."""
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("there is no C compiler here")
    strict = ("-O2", "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wpedantic")
    subprocess.run([cc, *strict, *(flags or ("-static", "-s")), "-o", target, source], check=True)
    return target


def state(annotations=CONTAINERD, **more):
    """What the runtime writes to the program."""
    return json.dumps({"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": 7, "bundle": "/b",
                       "annotations": annotations, **more}).encode()  # fmt: skip
