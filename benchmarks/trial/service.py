"""The whole service on the GPU: from the start to the first receipt, scrubs on request, and what ``explain`` says.

It resets nothing and changes no setting: the policy names the settings that the GPU has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib import util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.nvml_questions import reads_only
from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured, NotDone, one, remark
from scrubber.devices.nvidia.nvml import Library
from scrubber.devices.nvidia.settings import settings

NEEDS = ("asyncinotify", "click", "grpc", "grpc_health", "grpc_status", "rich", "ruamel.yaml", "tenacity")
SCRUBS = 5  # on request, after the first look
CLEAN_WITHIN = 120.0  # seconds for the first look
STARTS_WITHIN = STOPS_WITHIN = 20.0
PAUSE = 0.02  # seconds between two checks for the socket


def measure(where: Where) -> list[Measured]:
    """Start the service, let it scrub, and read the receipts."""
    if missing := [name for name in NEEDS if util.find_spec(name) is None]:
        raise NotDone(f"{', '.join(missing)} is not installed")
    if where.limit is not None:
        raise NotDone("the service takes all memory, which --limit forbids")
    with TemporaryDirectory(prefix="ac-", dir="/tmp") as directory, _service(Path(directory), where) as ask:
        began = time.perf_counter()
        first = _scrubbed(ask, where.uuid)
        until_clean = time.perf_counter() - began
        walls = [_timed(lambda: _scrubbed(ask, where.uuid)) for _ in range(SCRUBS)]
        receipts = _receipts(ask, where.uuid)
        explained = ask("explain", where.uuid)
    found = [
        one("from the service's first answer to the first receipt", 1000 * until_clean, "ms", first),
        Measured("autoclave scrub, from the command to its end", tuple(1000 * it for it in walls), "ms"),
        *_steps(receipts),
        *_of_receipt(receipts[-1]),
    ]
    return found + [remark("explain", line) for line in explained.splitlines() if line.strip()]


def _scrubbed(ask: Callable[..., str], uuid: str) -> str:
    return _last_line(ask("scrub", uuid, "--timeout", f"{CLEAN_WITHIN:g}s"))


def _receipts(ask: Callable[..., str], uuid: str) -> list[Mapping[str, Any]]:
    """The receipts of the GPU, the oldest first."""
    rows = json.loads(ask("history", uuid, "--limit", "1000", "-o", "json"))["items"]
    return [row["body"]["receipt"] for row in rows if row["kind"] == "scrub-passed"]


def _steps(receipts: list[Mapping[str, Any]]) -> list[Measured]:
    """The figures of each step that all scrubs on request have."""
    asked = receipts[-SCRUBS:]
    names = [name for name, _ in asked[-1]["steps"]]
    took = {name: tuple(1000 * dict(it["steps"]).get(name, 0.0) for it in asked) for name in names}
    return [Measured(f"step {name}", samples, "ms", f"{asked[-1]['path']} path") for name, samples in took.items()]


def _of_receipt(receipt: Mapping[str, Any]) -> list[Measured]:
    sizes = ("covered_bytes", "allocatable_bytes", "residue_bytes")
    return [
        *(one(f"receipt: {name.replace('_', ' ')}", receipt[name], "bytes") for name in sizes),
        *(one(f"receipt: not covered: {it['cause']}", it["bytes"], "bytes") for it in receipt["uncovered"]),
        remark("receipt: steps", ", ".join(name for name, _ in receipt["steps"])),
    ]


def _timed(deed: Callable[[], object]) -> float:
    began = time.perf_counter()
    deed()
    return time.perf_counter() - began


@contextmanager
def _service(directory: Path, where: Where) -> Iterator[Callable[..., str]]:
    """The service while it runs; yields a function that runs a verb and returns what it prints."""
    policy, run = directory / "policy.yaml", directory / "run"
    policy.write_text(json.dumps(_policy(where)))
    flags = {
        "--backend": "nvidia",
        "--policy": policy,
        "--state-dir": directory / "state",
        "--run-dir": run,
        "--kubelet-dir": directory,
        "--host-root": where.root,
        "--sight": "namespace",
        "--log-format": "json",
    }
    words = [str(word) for flag in flags.items() for word in flag]
    log = directory / "log"
    with log.open("w") as errors:
        service = subprocess.Popen([*_AUTOCLAVE, "scrubber", *words], stderr=errors)
    try:
        _wait_for(service, run / "admin.sock", log)
        yield lambda *verb: _asked(run, log, *verb)
    finally:
        service.terminate()
        try:
            service.wait(STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            service.kill()
            raise


def _wait_for(service: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    ends = time.monotonic() + STARTS_WITHIN
    while not socket.exists():
        if service.poll() is not None or time.monotonic() > ends:
            raise RuntimeError(f"the service does not start: {_last_line(log.read_text())}")
        time.sleep(PAUSE)


_AUTOCLAVE = (sys.executable, "-m", "autoclave")


def _asked(run: Path, log: Path, *verb: str) -> str:
    environment = {**os.environ, "AUTOCLAVE_RUN_DIR": str(run)}
    done = subprocess.run([*_AUTOCLAVE, *verb], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = _last_line(done.stderr or log.read_text())
        raise RuntimeError(f"autoclave {' '.join(verb)} ends with status {done.returncode}: {last}")
    return done.stdout


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _policy(where: Where) -> dict[str, Any]:
    """A policy that changes nothing on the GPU but its memory. JSON is YAML."""
    library = Library()
    with reads_only(), library.session() as nvml:
        now = asdict(settings.capture(nvml, where.uuid))
    library.close()
    kept = {name: now[name] for name in ("persistence", "ecc", "accounting", "compute_mode") if now[name] is not None}
    if now["power_limit"] is not None:
        kept["power_limit"] = now["power_limit"] // 1000
    if now["application_clocks"] is not None:
        kept["application_clocks"] = dict(zip(("memory", "graphics"), now["application_clocks"], strict=True))
    defaults: dict[str, Any] = {"paths": {"first_look": "fast", "new_tenant": "fast", "escalate": False}}
    return {"name": "trial", "defaults": defaults | {"settings": kept}}
