"""Run code with the capabilities that the chart gives the scrubber, and no others. Giving up the others takes root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

NEEDED = frozenset({"DAC_READ_SEARCH", "SYS_PTRACE", "SYS_ADMIN"})  # to see a user of a device at all
GIVEN = NEEDED | {"KILL"}

takes_setpriv = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="takes root, setpriv")


def prefix(kept: frozenset[str]) -> list[str]:
    """A command prefix that limits the following command to these capabilities."""
    words = ",".join(["-all", *(f"+{name.lower()}" for name in sorted(kept))])
    return ["setpriv", "--bounding-set", words, "--inh-caps", words, "--no-new-privs"]


def reduced(container: Mapping[str, Any], spared: Iterable[str] = ()) -> list[str]:
    """A command in front of another that leaves it what a security context leaves, but for what is spared."""
    context = container["securityContext"]
    assert context["capabilities"]["drop"] == ["ALL"]
    assert (context["allowPrivilegeEscalation"], context["runAsUser"]) == (False, 0)
    return prefix(frozenset(context["capabilities"].get("add", ())) - frozenset(spared))


def printed(code: str, path: Path, more: frozenset[str] = frozenset()) -> str:
    """The last line that this code prints about a path."""
    command = [*prefix(GIVEN | more), sys.executable, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
