"""NVIDIA's programs on the real node: their NVML is our stand-in, and each of their GPUs is a simulated one.

They give a container NVIDIA's device nodes, which lead to no simulated GPU. So each pod mounts the nodes of all GPUs
itself, and asks for all of them. It is privileged: nobody but the fence keeps it off a GPU.
"""

import json
import os
import stat
from pathlib import Path

from scrubber.devices.simulated import layout
from tests.cluster.autoclave import GPUS, SIMULATED
from tests.cluster.isolated import STATE
from tests.fakes.nvml import build
from tests.fakes.nvml.machine import Machine

ROOT = STATE / "nvidia"  # of NVIDIA's libraries and device nodes
SPECS = Path("/var/run/cdi")
MAJOR = 195  # of NVIDIA's device nodes


def gpus(simulated=SIMULATED):
    """The simulated GPUs, in the order of their indices."""
    return sorted(layout.places(simulated), key=lambda gpu: gpu.info().index)


def install(simulated=SIMULATED, count=GPUS):
    """A node with NVIDIA's library and device nodes; returns its environment."""
    machine = Machine.h200(ROOT / "state", count)
    (ROOT / "dev").mkdir(exist_ok=True)
    (ROOT / "usr/bin").mkdir(parents=True, exist_ok=True)
    (ROOT / "usr/bin/nvidia-smi").touch()
    build.build(ROOT / "usr/lib64", more=[Path(__file__).with_name("nvidia_dra.c")])
    (ROOT / "usr/lib64/libcuda.so.580.95.05").touch()
    for number, gpu in enumerate(gpus(simulated)):
        (ROOT / f"dev/nvidia{number}").unlink(missing_ok=True)
        os.mknod(ROOT / f"dev/nvidia{number}", 0o666 | stat.S_IFCHR, os.makedev(MAJOR, number))
        machine.set({f"gpu.{number}.uuid": gpu.info().uuid})
        described = json.loads(gpu.device.read_text())
        place = {"nodes": [f"/dev/nvidia{number}"], "minor": number, "pci_address": machine.get(f"gpu.{number}.pci")}
        gpu.device.write_text(json.dumps(described | place))
    return machine.environment


def lose(number):
    """The GPU falls off the bus."""
    Machine(ROOT / "state").set({f"gpu.{number}.lost": True})


def mounted(spec, container, indices=range(GPUS)):
    """The specification of a pod whose container mounts the nodes of all GPUs, or of some."""
    places = [(f"memory{index}", f"/dev/simulated-gpu{index}", gpus()[index].memory) for index in indices]
    volumes = [{"name": it, "hostPath": {"path": str(memory)}} for it, _, memory in places]
    container["securityContext"] = {"privileged": True}
    container["volumeMounts"] += [{"name": it, "mountPath": path} for it, path, _ in places]
    return spec | {"containers": [container], "volumes": [*spec["volumes"], *volumes]}
