"""Commands of other programs: what they print goes to stderr at once, so that it outlives them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.trial.card import Where

ROOT = Path(__file__).parents[2]


def output_of(
    command: Sequence[str], *, where: Where | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a command in the checkout, with its GPU on stdin; its status and all that it printed."""
    lines = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL if where is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        if process.stdin is not None and where is not None:
            process.stdin.write(json.dumps(asdict(where)))
            process.stdin.close()
        for line in process.stdout or ():
            sys.stderr.write(line)
            lines.append(line)
    return process.returncode, "".join(lines)


def last_line(text: str) -> str:
    """The last line that says something."""
    return text.strip().rpartition("\n")[2]
