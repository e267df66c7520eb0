"""Stands in for NVIDIA's container runtime: it brings the driver into each container that has a GPU.

The driver is a stand-in, too: its libraries, and the files of the kernel where a container looks for them. The memory
of a GPU is the file that is a simulated one's, so that Autoclave wipes what the container has filled.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scrubber.devices.simulated import layout
from tests.cluster.autoclave import SIMULATED
from tests.cluster.isolated import STATE
from tests.fakes.built import BUILT
from tests.fakes.cuda.machine import RESERVED, CudaMachine, Libraries, equip
from tests.fakes.nvml.build import library
from tests.fakes.nvml.host import Root
from tests.fakes.nvml.machine import Machine

PROGRAM = STATE / "nvidia-container-runtime"  # of containerd's handler ``nvidia``
DRIVER = STATE / "driver"  # all that it writes
_ENVIRONMENT = DRIVER / "environment.json"
_KERNEL = ("proc/driver", "sys/bus/pci/devices", "sys/module")  # of the root directory that the driver shows
_SCRIPT = """#!/bin/sh
case " $* " in *" create "*) cd {checkout} && {python} -m tests.cluster.nvidia_runtime "$@" || exit ;; esac
exec runc "$@"
"""


def install(libraries: Libraries, simulated: Path = SIMULATED) -> CudaMachine:
    """The driver of these GPUs, and the runtime; what CUDA shows of them can be changed."""
    shutil.rmtree(DRIVER, ignore_errors=True)
    places = sorted(layout.places(simulated), key=lambda gpu: gpu.info().index)
    machine = Machine.h200(DRIVER / "state", len(places))
    for gpu, place in zip(machine.gpus, places, strict=True):
        gpu.set({"uuid": place.info().uuid})
    size = places[0].memory.stat().st_size
    cuda = equip(DRIVER / "cuda", machine.gpus, libraries, size)
    for gpu, place in zip(machine.gpus, places, strict=True):
        gpu.set({"cuda.memory": place.memory, "memory.total": size + RESERVED})
    Root.of(machine, DRIVER / "host")
    _ENVIRONMENT.write_text(json.dumps(machine.environment | cuda.environment(library().parent)))
    PROGRAM.write_text(_SCRIPT.format(checkout=Path(__file__).parents[2], python=sys.executable))
    PROGRAM.chmod(0o755)
    return cuda


def brought(spec: dict[str, Any]) -> dict[str, Any]:
    """What a container is made of, with the driver for the GPUs that it has: by the variable, or by a mount."""
    variables = dict(line.partition("=")[::2] for line in spec["process"].get("env", []))
    named = variables.get("NVIDIA_VISIBLE_DEVICES", "").split(",")
    mounted = {Path(mount["source"]) for mount in spec["mounts"] if "source" in mount}
    memories = {gpu.uuid: Path(gpu["cuda.memory"]) for gpu in Machine(DRIVER / "state").gpus}
    own = [uuid for uuid, memory in memories.items() if uuid in named or memory in mounted]
    if not own:
        return spec
    more = json.loads(_ENVIRONMENT.read_text()) | {"CUDA_VISIBLE_DEVICES": ",".join(own)}
    spec["process"]["user"] = {"uid": 0, "gid": 0}  # who else may not open the memory of a simulated GPU
    spec["process"]["env"] += [f"{name}={value}" for name, value in more.items()]
    spec["mounts"] += [_bind(DRIVER), _bind(BUILT), *map(_bind, memories.values())]
    root = Path(spec["root"]["path"])
    hide = " && ".join(f'mount --bind "{DRIVER}/host/{path}" "{root}/{path}"' for path in _KERNEL)
    hook = {"path": "/bin/sh", "args": ["sh", "-c", hide], "env": [f"PATH={os.environ['PATH']}"]}
    spec.setdefault("hooks", {}).setdefault("createContainer", []).append(hook)
    return spec


def _bind(path: Path) -> Mapping[str, Any]:
    return {"destination": str(path), "source": str(path), "type": "bind", "options": ["rbind", "rw"]}


def main(arguments: list[str]) -> None:
    """Change the bundle that runc is to make a container of."""
    bundle = Path(arguments[arguments.index("--bundle") + 1])
    file = bundle / "config.json"
    spec = json.loads(file.read_text())
    root = bundle / spec["root"]["path"]
    spec["root"]["path"] = str(root)
    file.write_text(json.dumps(brought(spec)))


if __name__ == "__main__":
    main(sys.argv[1:])
