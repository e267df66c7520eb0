"""The tests for real hardware: what the kernels compute, what a clear finds and leaves, what NVML says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import util
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured, NotDone, Unproven, one, remark

ROOT = Path(__file__).parents[2]
FILES = ("tests/gpu/test_nvml.py", "tests/gpu/test_scrub.py")
_SUMMARY = re.compile(r"(\d+) (passed|failed|skipped|error)")
_SEEN = re.compile(r"^=+ seen on this GPU =+\n(.*?)^=", re.MULTILINE | re.DOTALL)


def measure(where: Where) -> list[Measured]:
    """Run the tests; Unproven if one of them fails."""
    if missing := [name for name in ("pytest", "pytest_asyncio", "pytest_timeout") if util.find_spec(name) is None]:
        raise NotDone(f"{', '.join(missing)} is not installed")
    limit = {} if where.limit is None else {"GPU_MEMORY_LIMIT": str(where.limit)}
    with TemporaryDirectory() as place:  # so that the end of this run removes no files of other runs
        options = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "--no-header", "--basetemp", f"{place}/tests"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *FILES],
            cwd=ROOT,
            env={**os.environ, "GPU_HOST_ROOT": where.root, **limit},
            capture_output=True,
            text=True,
            check=False,
        )
    counts = {word: int(number) for number, word in _SUMMARY.findall(done.stdout.strip().rpartition("\n")[2])}
    if not counts:
        raise RuntimeError(f"pytest said nothing of its tests: {(done.stdout + done.stderr).strip()[-300:]}")
    figures = [one(f"tests that {_verb(word)}", counts.get(word, 0), "") for word in ("passed", "failed", "skipped")]
    figures += [remark("seen by a test", line) for line in _seen(done.stdout)]
    lines = done.stdout.splitlines()
    if bad := [line for line in lines if line.startswith(("FAILED", "ERROR"))]:
        raise Unproven("; ".join(bad), tuple(figures))
    if not counts.get("passed"):
        raise Unproven("; ".join(line for line in lines if line.startswith("SKIPPED")), tuple(figures))
    return figures


def _verb(word: str) -> str:
    return "were skipped" if word == "skipped" else word


def _seen(text: str) -> list[str]:
    found = _SEEN.search(text)
    return found[1].strip().splitlines() if found else []
