"""The whole service on the GPU: from the start to the first receipt, then scrubs on request.

It resets nothing and changes no setting: the policy says so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pynvml

from benchmarks.nvml_questions import reads_only
from benchmarks.trial import groups
from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured, NotDone, Question, one, remark, rounds
from benchmarks.trial.groups import Groups
from benchmarks.trial.imports import pidfd_refused
from benchmarks.trial.programs import last_line, output_of
from policies.hardware import Setting
from policies.policy_model import Policy
from scrubber.devices.nvidia.nvml import Library

SCRUBS = 5  # on request, after the first look
CLEAN_WITHIN = 120.0  # seconds for the first look, at most
SAVED_WITHIN = 4.0  # seconds for each of the files that are kept of the service
STARTS_WITHIN = STOPS_WITHIN = 20.0
PAUSE = 0.02  # seconds between two checks for the socket

_PARTS = "a worker with context 0.3 to 0.8 s, four passes 0.12 s, memory given back up to 1 s, observations"
FIRST = Question("from the service's first answer to the first receipt", 600, 8000, "ms", f"zygote and CuPy; {_PARTS}")
SCRUB = Question("autoclave scrub, from the command to its end", 600, 4000, "ms", f"start of Python 0.2 s; {_PARTS}")
AGAIN = Question("scrubs of a clean GPU after SIGKILL and a new start", 0, 0, "", "the kernel has counted: nobody")
USED_MEANWHILE = Question("the same, if somebody used it meanwhile", 1, 1, "", "the kernel has counted: somebody")
JOBS, SHORT_USES = 3, 5
NOTICED_WITHIN = 3.0  # seconds: a round of the service is two
# Of a process that opens the GPU as a worker does: it fills all memory, or none.
USE = """
import json, sys
from benchmarks.trial.card import Where, fresh, opened, unheard
from scrubber.cuda import memory
card = opened(Where(**json.load(sys.stdin)))
if sys.argv[1] == "all":
    memory.take(card).write(fresh("a job"), unheard)
"""
NEXT_JOB = Question("acquire at once after the release of a full GPU", 400, 4000, "ms", f"start of Python; {_PARTS}")
RESIDUE = Question(
    "bytes that a job had left, as the receipt says", 0, 2**26, "bytes", "the driver clears freed memory"
)
NOTICED = Question("short uses of a clean GPU that were noticed", 100, 100, "%", "the kernel counts each open")


def measure(where: Where) -> Iterator[Measured]:
    """Start the service, let it scrub, and read the receipts."""
    if where.limit is not None:
        raise NotDone("the service takes all memory, which --limit forbids")
    if (refused := pidfd_refused()) is not None:
        raise NotDone(f"{refused}, so the service can hold no worker: no scrub by the service is proved here")
    others = others_held(where)
    with others, groups.made_if_possible() as made, TemporaryDirectory(prefix="ac-", dir="/tmp") as place:
        directory = Path(place)
        with _service(directory, where, made, by_force=True) as ask:
            yield from _asked_for(ask, where, made)
        yield from _started_again(directory, where, made)


def _asked_for(ask: Callable[..., str], where: Where, made: Groups | None) -> Iterator[Measured]:
    began = time.perf_counter()
    first = _scrubbed(ask, where)
    until_clean = time.perf_counter() - began
    yield FIRST.answered(1000 * until_clean, note=first)
    walls = [_timed(lambda: _scrubbed(ask, where)) for _ in rounds(min(SCRUBS, where.rounds), where.ends)]
    yield SCRUB.answered(*(1000 * it for it in walls))
    receipts = _receipts(ask, where.uuid)
    yield from _steps(receipts[-len(walls) :])
    yield from _of_receipt(receipts[-1])
    yield from _jobs(ask, where)
    yield from _short_uses(ask, where, made)
    ask("wait", where.uuid, "--timeout", "20s")


def _started_again(directory: Path, where: Where, made: Groups | None) -> Iterator[Measured]:
    """The GPU was clean when the service was killed: it is scrubbed again only if somebody has used it meanwhile."""
    with _service(directory, where, made, by_force=True) as ask:
        before = len(_receipts(ask, where.uuid))
        took = _timed(partial(ask, "wait", where.uuid, "--timeout", "60s"))
        scrubs = len(_receipts(ask, where.uuid)) - before
    yield AGAIN.answered(scrubs, note=f"clean {took:.2g} s after the first answer")
    _use_briefly(where, made)
    with _service(directory, where, made) as ask:
        ask("wait", where.uuid, "--timeout", "60s")
        time.sleep(NOTICED_WITHIN)
        ask("wait", where.uuid, "--timeout", "60s")
        yield USED_MEANWHILE.answered(len(_receipts(ask, where.uuid)) - before - scrubs)


def _jobs(ask: Callable[..., str], where: Where) -> Iterator[Measured]:
    """A job takes the GPU, fills its memory and ends; the next job waits for the scrub."""
    ask("acquire", where.uuid, "--owner", "job-0")
    took: list[float] = []
    for number in rounds(JOBS, where.share(1 / 2)):
        output_of([sys.executable, "-c", USE, "all"], where=where)
        ask("release", where.uuid)
        took.append(_timed(partial(ask, "acquire", where.uuid, "--owner", f"job-{number + 1}")))
    yield NEXT_JOB.answered(*(1000 * it for it in took))
    last = _receipts(ask, where.uuid)[-1]
    yield RESIDUE.answered(last["residue_bytes"])
    ask("release", where.uuid)
    _scrubbed(ask, where)


def _use_briefly(where: Where, made: Groups | None) -> None:
    """A process opens the GPU and ends, in a control group that is not the service's."""
    output_of(groups.entered(made.other if made is not None else None, sys.executable, "-c", USE, "none"), where=where)


def _short_uses(ask: Callable[..., str], where: Where, made: Groups | None) -> Iterator[Measured]:
    """A process opens the clean GPU and ends; the service must look just then, where nothing counts such uses."""
    seen, took = 0, []
    for _ in rounds(SHORT_USES, where.share(2 / 3)):
        before = len(_receipts(ask, where.uuid))
        took.append(_timed(partial(_use_briefly, where, made)))
        time.sleep(NOTICED_WITHIN)
        ask("wait", where.uuid, "--timeout", "20s")
        seen += len(_receipts(ask, where.uuid)) > before
    yield Measured("short use of a clean GPU: the whole process", tuple(1000 * it for it in took), "ms")
    yield NOTICED.answered(100 * seen / len(took), note=f"{seen} of {len(took)}", counted=(seen, len(took)))


def _scrubbed(ask: Callable[..., str], where: Where) -> str:
    left = max(1.0, min(CLEAN_WITHIN, where.ends - time.monotonic()))
    return last_line(ask("scrub", where.uuid, "--timeout", f"{left:.0f}s"))


def others_held(where: Where) -> ExitStack:
    """The nodes of all other GPUs, open: the service scrubs no GPU that a process has open."""
    held, library = ExitStack(), Library()
    with reads_only(), library.session() as nvml:
        handles = [nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, it) for it in range(nvml.ask(pynvml.nvmlDeviceGetCount))]
        minors = {nvml.ask(pynvml.nvmlDeviceGetMinorNumber, gpu) for gpu in handles}
    library.close()
    for minor in minors - {where.minor}:
        held.enter_context((Path(where.root) / f"dev/nvidia{minor}").open("rb", buffering=0))
    return held


def steps_of_all(directory: Path, log: Path, where: Where) -> list[Measured]:
    """The figures of the steps of all scrubs but the first, of the service in this directory."""
    return _steps(_receipts(partial(_asked, directory / "run", log), where.uuid)[1:])


def _receipts(ask: Callable[..., str], uuid: str) -> list[Mapping[str, Any]]:
    """The receipts of the GPU, the oldest first."""
    rows = json.loads(ask("history", uuid, "--limit", "1000", "-o", "json"))["items"]
    return [row["body"]["receipt"] for row in rows if row["kind"] == "scrub-passed"]


def _steps(asked: list[Mapping[str, Any]]) -> list[Measured]:
    """The figures of each step that all scrubs on request have."""
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
def _service(
    directory: Path, where: Where, made: Groups | None, *, by_force: bool = False
) -> Iterator[Callable[..., str]]:
    """The service while it runs; yields a function that runs a verb and returns what it prints.

    ``by_force``: it ends by SIGKILL.
    """
    policy_file, run = directory / "policy.yaml", directory / "run"
    policy_file.write_text(policy(where))
    words = [str(word) for flag in flags(where, directory, run, policy_file, made).items() for word in flag]
    evidence = Path(where.evidence)
    evidence.mkdir(parents=True, exist_ok=True)
    log = evidence / "service.log"
    (run / "admin.sock").unlink(missing_ok=True)  # of a service that was killed
    with log.open("a") as errors:
        service = subprocess.Popen([*_AUTOCLAVE, "scrubber", *words], stderr=errors)
    try:
        _wait_for(service, run / "admin.sock", log)
        yield lambda *verb: _asked(run, log, *verb)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a part that is late has been told so, and saves what it has
        _save(evidence / "status.json", run, "status", "-o", "json")
        _save(evidence / "ledger.jsonl", run, "ledger", "export", "--state-dir", str(directory / "state"))
        if by_force:
            service.kill()
        service.terminate()
        try:
            service.wait(STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            service.kill()
            raise


def flags(where: Where, directory: Path, run: Path, policy_file: Path, made: Groups | None) -> dict[str, object]:
    """The flags of the service, with its files in this directory."""
    return {
        "--backend": "nvidia",
        "--policy": policy_file,
        "--state-dir": directory / "state",
        "--run-dir": run,
        "--kubelet-dir": directory,
        "--host-root": where.root,
        "--sight": "namespace",
        **({"--cgroup-root": made.below} if made is not None else {}),
        "--log-format": "json",
    }


def ledger_of(directory: Path) -> bytes:
    """The ledger of the service in this directory, as far as it can be read."""
    export = (*_AUTOCLAVE, "ledger", "export", "--state-dir", str(directory / "state"))
    return subprocess.run(export, stdout=subprocess.PIPE, timeout=SAVED_WITHIN, check=False).stdout


def _save(file: Path, run: Path, *verb: str) -> None:
    """Keep what a verb prints, however the part ends."""
    environment = {**os.environ, "AUTOCLAVE_RUN_DIR": str(run)}
    with file.open("wb") as output:
        try:
            subprocess.run([*_AUTOCLAVE, *verb], env=environment, stdout=output, timeout=SAVED_WITHIN, check=True)
        except subprocess.SubprocessError as error:
            sys.stderr.write(f"{file.name} is not whole: {error}\n")


def _wait_for(service: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    ends = time.monotonic() + STARTS_WITHIN
    while not socket.exists():
        if service.poll() is not None or time.monotonic() > ends:
            raise RuntimeError(f"the service does not start: {last_line(log.read_text())}")
        time.sleep(PAUSE)


_AUTOCLAVE = (sys.executable, "-m", "autoclave")


def _asked(run: Path, log: Path, *verb: str) -> str:
    environment = {**os.environ, "AUTOCLAVE_RUN_DIR": str(run)}
    done = subprocess.run([*_AUTOCLAVE, *verb], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        last = last_line(done.stderr or log.read_text())
        raise RuntimeError(f"autoclave {' '.join(verb)} ends with status {done.returncode}: {last}")
    return done.stdout


def policy(where: Where) -> str:
    """A policy that changes nothing on the GPU but its memory."""
    return _POLICY.format(
        settings=", ".join(it.value for it in Setting),
        bystanders=json.dumps([*Policy().evict.bystanders, *where.beside]),
    )


_POLICY = """\
name: trial
defaults:
  paths: {{first_look: fast, new_tenant: fast}}
  reset: {{when: never}}
  settings: {{leave: [{settings}]}}
  evict: {{leftovers: wait, foreign: wait, bystanders: {bystanders}}}
"""
