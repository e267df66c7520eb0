"""For the scripts that give GPUs to jobs: a service with short scrubs, its GPUs as a job sees them, and stand-ins."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from autoclave.cli import service_call
from scrubber.devices.simulated import layout
from tests.live import Service

POLICY = """\
name: brisk
defaults:
  paths: {first_look: fast}
  clear: {passes: zero}
  evict: {grace: 10ms}
  budgets: {allocate: 500ms}
"""


class JobService(Service):
    """The real service, in a directory with a short name."""

    def __init__(self, name: str, gpus: int) -> None:
        root = Path(f"/tmp/ac-{name}-{os.getpid()}")
        root.mkdir()
        policy = root / "policy.yaml"
        policy.write_text(POLICY)
        super().__init__(root, gpus, "--policy", policy)

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self.root)

    def uuid(self, gpu: int) -> str:
        return service_call.ask(self.run_dir, lambda admin: admin.status([str(gpu)])).devices[0].device

    def memory(self, gpu: int) -> bytes:
        return layout.find(self.simulated_dir, self.uuid(gpu)).memory.read_bytes()


def program(path: Path, lines: str) -> None:
    """A shell script in the place of a program."""
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def installed(script: Path, place: Path, programs: Path) -> Path:
    """The script in this place, on a node with one more directory for programs."""
    before, line, after = script.read_text().partition("PATH=/")
    program(place, f"{before.removeprefix('#!/bin/sh')}PATH={programs}:/{after}" if line else before)
    return place


def lives(pid: int) -> bool:
    """Whether it runs: one that has ended and was not waited for yet is still listed, without its words."""
    words = Path(f"/proc/{pid}/cmdline")
    return words.exists() and words.read_bytes() != b""
