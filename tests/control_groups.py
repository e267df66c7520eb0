"""A control group of a test's own, with a fence that guards nobody else, and programs that run in groups below it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from scrubber.core.model import DeviceNumber, NodeKind
from scrubber.fence import fence
from scrubber.fence.fence import Fence, FenceError

FULL = DeviceNumber(NodeKind.CHARACTER, 1, 7)  # /dev/full: a harmless device


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of version 2, below which groups can be made; nothing of it is left."""
    try:
        made = fence.root() / f"autoclave-test-{uuid.uuid4().hex[:8]}"
        made.mkdir()
    except (FenceError, OSError) as error:
        pytest.skip(f"takes root, and cgroup v2: {error}")
    try:
        yield made
    finally:
        with suppress(FenceError):
            fence.take_down(made)
        for directory, _, _ in os.walk(made, topdown=False):
            Path(directory).rmdir()


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
