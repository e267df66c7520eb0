"""Runs the tests for real hardware on stand-ins, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from scrubber.node.processes import Processes
from tests.patience import WITHIN

ROOT = Path(__file__).parents[2]
# Where a GPU is, there is a checkout and nothing is installed of it: what an editable install adds is taken away again.
UNINSTALLED = f"""
import os, sys
if {str(ROOT)!r} not in os.environ["PYTHONPATH"].split(os.pathsep):
    sys.path[:] = [it for it in sys.path if it != {str(ROOT)!r}]
"""
KEEP = {"PYTEST_PLUGINS": "tests.gpu.stand_in_variables"}


def environment(stage, more: Mapping[str, str]) -> dict[str, str]:
    """Of a process that meets the stand-ins instead of a GPU."""
    return {
        **os.environ,
        **stage.environment(os.environ["PATH"]),
        "GPU_HOST_ROOT": str(stage.root.path),
        **KEEP,
        **more,
    }


def uninstalled(directory: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """These variables, for a process that finds only the checkout in which it runs."""
    place = directory / "uninstalled"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(UNINSTALLED)
    return {**variables, "PYTHONPATH": str(place)}


def rehearse(stage, file: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The tests of one file; what is given by name is added to what they find in their environment."""
    place = stage.root.path.with_name("rehearsal")  # without one, its end clears away what others left on the machine
    options = ["-q", "-p", "no:cacheprovider", "--basetemp", str(place)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"tests/gpu/{file}", *arguments],
        cwd=ROOT,
        env=environment(stage, more),
        capture_output=True,
        text=True,
        check=False,
    )


def failed(run: subprocess.CompletedProcess[str]) -> set[str]:
    """The names of tests that did."""
    return {line.split("::")[1].split()[0] for line in run.stdout.splitlines() if line.startswith("FAILED")}


def free(stage) -> None:
    """Wait until no process has the first GPU open."""
    look = Processes(Path("/proc"), lambda _pid: None, whole_node=False)
    ends = time.monotonic() + WITHIN
    while look.holders({"gpu": (str(stage.root.node(stage.machine.gpu(0))),)})["gpu"] != ():
        assert time.monotonic() < ends
        time.sleep(0.02)
