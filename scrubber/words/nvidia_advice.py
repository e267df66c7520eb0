"""What a person does about NVIDIA's driver, and about the programs that keep the GPUs of a node open.

For advice only: a process chooses its own name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scrubber.core.model import Holder

SINCE = {"cuda12": 525, "cuda13": 580}  # our extras, with the release of the driver from which their CuPy works
INSTALL = "install autoclave[cuda12] for a driver from 525 on, or autoclave[cuda13] for one from 580 on, not both"
# The open kernel modules of the driver define the option (nv-reg.h); R580 is the first release with it.
MANAGE_MEMORY = "load a driver of 580 or newer with NVreg_CoherentGPUMemoryMode=driver, and reboot the node"
_COMM = 15  # characters of a program's name that the kernel shows
_LABELS = {  # of NVIDIA's GPU operator: the end of the node label that deploys the program
    "dcgm-exporter": "dcgm-exporter",
    "nv-hostengine": "dcgm",
    "nvidia-device-plugin": "device-plugin",
    "gpu-feature-discovery": "gpu-feature-discovery",
    "nvidia-mig-manager": "mig-manager",
    "nvidia-validator": "operator-validator",
    "gpu-kubelet-plugin": "dra-driver",
}
_UNITS = {"nv-hostengine": "nvidia-dcgm", "nvidia-persistenced": "nvidia-persistenced"}  # of systemd, on the host


def extras(driver: str) -> tuple[str, ...]:
    """Those of our extras whose CuPy works with this version of the driver; all if the version is not a number."""
    release = driver.partition(".")[0]
    return tuple(extra for extra, since in SINCE.items() if not release.isdecimal() or int(release) >= since)


def how_to_stop(holders: Iterable[Holder]) -> str:
    """The commands that stop these processes, as a sentence. Start the programs again afterwards."""
    commands = [command for holder in holders if (command := _command(holder)) is not None]
    return f"stop that first ({'; '.join(dict.fromkeys(commands))})" if commands else "stop that first"


def admit(namespaces: Collection[str], namespace: str) -> str:
    """What adds a namespace to those of the policy in which NVIDIA's programs are bystanders."""
    line = f"defaults: {{evict: {{operator_namespaces: [{', '.join((*namespaces, namespace))}]}}}}"
    return f"if no tenant can create pods in the namespace {namespace}, write into the policy: `{line}`"


def _command(holder: Holder) -> str | None:
    names = _UNITS if holder.container is None else _LABELS
    word = next((word for name, word in names.items() if name[:_COMM] == holder.command), None)
    if word is None:
        return None
    if holder.container is None:
        return f"`systemctl stop {word}`"
    return f"with NVIDIA's GPU operator `kubectl label node NODE --overwrite nvidia.com/gpu.deploy.{word}=false`"
