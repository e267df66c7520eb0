"""A control group of a test's own, with a fence that guards nobody else, and programs that run in groups below it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import groups
from scrubber.core.model import DeviceNumber, NodeKind
from scrubber.fence.kernel.fence import Fence

FULL = DeviceNumber(NodeKind.CHARACTER, 1, 7)  # /dev/full: a harmless device


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of version 2, below which groups can be made; nothing of it is left."""
    made = groups.make()
    if made is None:
        pytest.skip("takes root, and cgroup v2")
    try:
        yield made
    finally:
        groups.remove(made)
        assert not made.exists()


@pytest.fixture
def owner(group: Path) -> Path:
    """The control group of an owner."""
    return made_group(group / "owner")


@pytest.fixture
def foreign(group: Path) -> Path:
    """The control group of somebody else."""
    return made_group(group / "foreign")


@pytest.fixture
def standing(group: Path) -> Iterator[Fence]:
    """A fence of which the test may let go."""
    standing = Fence(group)
    standing.refuse_for(600)
    yield standing
    standing.close()


def made_group(place: Path) -> Path:
    """A new control group."""
    place.mkdir()
    return place


def identity(place: Path) -> int:
    """The id of a control group."""
    return place.stat().st_ino


def run(group: Path, code: str, *arguments: str) -> str:
    """What a program in this control group prints."""
    enter = f"import os, sys; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    ran = subprocess.run(
        [sys.executable, "-S", "-c", enter + code, *arguments], capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


OPENS = """
try:
    os.close(os.open('/dev/full', os.O_RDWR))
    print('opened')
except PermissionError:
    print('refused')
"""
