"""The tests for real hardware: what the kernels compute, what a clear finds and leaves, what NVML says."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory

from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured, Unproven, one, remark
from benchmarks.trial.programs import last_line, output_of

FILES = ("tests/gpu/test_nvml.py", "tests/gpu/test_scrub.py")
PLUGINS = ("-p", "asyncio", "-p", "timeout", "-p", "no:cacheprovider")
OPTIONS = ("-c", "pyproject.toml", "-v", "--no-header", "-m", "gpu", *PLUGINS)
_SUMMARY = re.compile(r"(\d+) (passed|failed|skipped|error)")
_SEEN = re.compile(r"^=+ seen on this GPU =+\n(.*?)^=", re.MULTILINE | re.DOTALL)


def measure(where: Where) -> Iterator[Measured]:
    """Run the tests; Unproven if one of them fails. Only the plugins that they need: others may be installed here."""
    limit = {} if where.limit is None else {"GPU_MEMORY_LIMIT": str(where.limit)}
    gpu = {"GPU_HOST_ROOT": where.root, "GPU_UUID": where.uuid, "GPU_BESIDE": os.pathsep.join(where.beside)}
    gpu["GPU_HOLDER"] = str(where.holder)
    with TemporaryDirectory() as place:  # so that the end of this run removes no files of other runs
        _, said = output_of(
            [sys.executable, "-m", "pytest", *OPTIONS, "--basetemp", f"{place}/tests", *FILES],
            environment={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **gpu, **limit},
        )
    counts = {word: int(number) for number, word in _SUMMARY.findall(last_line(said))}
    if not counts:
        raise RuntimeError(f"pytest said nothing of its tests: {said.strip()[-300:]}")
    for word in ("passed", "failed", "skipped"):
        yield one(f"tests that {_verb(word)}", counts.get(word, 0), "")
    yield from (remark("seen by a test", line) for line in _seen(said))
    lines = said.splitlines()
    if bad := [line for line in lines if line.startswith(("FAILED", "ERROR"))]:
        raise Unproven("; ".join(bad))
    if not counts.get("passed"):
        raise Unproven("; ".join(line for line in lines if line.startswith("SKIPPED")))


def _verb(word: str) -> str:
    return "were skipped" if word == "skipped" else word


def _seen(text: str) -> list[str]:
    found = _SEEN.search(text)
    return found[1].strip().splitlines() if found else []
