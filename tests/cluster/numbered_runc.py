"""Stands in for the numbers of NVIDIA's driver: in a container, ``/dev/nvidiaN`` leads to simulated GPU N.

NVIDIA's programs give a container the node 195:N, which leads to nothing here. This program is what the runtime starts
instead of runc: it puts the number of the simulated GPU in its place, in the nodes and in the rules, and starts runc.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from scrubber.fence.numbers import number_of
from tests.cluster.nvidia import MAJOR, ROOT, gpus
from tests.cluster.programs import NUMBERED, NVIDIA
from tests.fakes.nvml.machine import Machine

_SCRIPT = """#!/bin/sh
case " $* " in *" create "*) cd {checkout} && {python} -m tests.cluster.numbered_runc "$@" || exit ;; esac
exec runc "$@"
"""
_NVIDIA_SCRIPT = """#!/bin/sh
exec env {assigned} XDG_CONFIG_HOME={folder} {program} "$@"
"""
_NVIDIA_CONFIG = """[nvidia-container-cli]
root = "{root}"
[nvidia-container-runtime]
runtimes = ["{runc}"]
[nvidia-ctk]
path = "/bin/true"
"""


def install(programs: Path) -> None:
    """This program, and NVIDIA's own container runtime above it."""
    NUMBERED.write_text(_SCRIPT.format(checkout=Path(__file__).parents[2], python=sys.executable))
    config = ROOT / "config/nvidia-container-runtime/config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(_NVIDIA_CONFIG.format(root=ROOT, runc=NUMBERED))
    assigned = " ".join(f"{key}={value}" for key, value in Machine(ROOT / "state").environment.items())
    program = programs / "nvidia-container-runtime"
    NVIDIA.write_text(_NVIDIA_SCRIPT.format(assigned=assigned, folder=config.parents[1], program=program))
    for script in (NUMBERED, NVIDIA):
        script.chmod(0o755)


def number(spec: dict[str, Any]) -> None:
    """Change the nodes of a container, and the rules that let it open them."""
    own = {index: number_of(gpu.memory) for index, gpu in enumerate(gpus())}
    linux = spec["linux"]
    for each in [*linux.get("devices", ()), *linux.get("resources", {}).get("devices", ())]:
        node = own.get(each.get("minor")) if (each.get("type"), each.get("major")) == ("c", MAJOR) else None
        if node is not None:
            each.update({"type": "b", "major": node.major, "minor": node.minor})


def main(arguments: list[str]) -> None:
    """Change the bundle that runc is to make a container of."""
    bundle = Path(arguments[arguments.index("--bundle") + 1])
    file = bundle / "config.json"
    spec = json.loads(file.read_text())
    spec["root"]["path"] = str(bundle / spec["root"]["path"])
    number(spec)
    file.write_text(json.dumps(spec))


if __name__ == "__main__":
    main(sys.argv[1:])
