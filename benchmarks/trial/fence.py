"""The fence on this GPU: what a refused program sees, what goes on beside it, and whether each use is counted.

It stands below a control group of the trial's own, so nobody else is asked.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.trial import groups
from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured, NotDone, Question, Unproven, one, remark, rounds
from benchmarks.trial.forks import Fork, in_a_fork, say
from scrubber.core.model import DeviceNumber
from scrubber.fence import numbers
from scrubber.fence.kernel.fence import Fence, FenceError

OPENS, ROUNDS = 50, 60  # of the node in each round, and rounds of each way at most
USES = 100
LEASE = 600.0  # seconds
SEEN_WITHIN = 20.0  # seconds for one program

# Each prints a JSON object: what was asked, the status, the words of the driver.
CUDA = """
import ctypes, json
cuda, said, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_char_p(), []
def ask(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    cuda.cuGetErrorString(status, ctypes.byref(said))
    found.append([name, status, (said.value or b"").decode()])
    return status == 0
number, context = ctypes.c_int(), ctypes.c_void_p()
if ask("cuInit", 0) and ask("cuDeviceGetCount", ctypes.byref(number)) and ask("cuDeviceGet", ctypes.byref(number), 0):
    ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
print(json.dumps(found))
"""
NVML = """
import json, pynvml
found = []
def ask(name, *arguments):
    try:
        value = getattr(pynvml, name)(*arguments)
    except pynvml.NVMLError as error:
        found.append([name, error.value, str(error)])
        return None
    found.append([name, 0, str(value)[:60]])
    return value
ask("nvmlInit")
count = ask("nvmlDeviceGetCount")
gpu = ask("nvmlDeviceGetHandleByIndex", 0) if count else None
if gpu is not None:
    ask("nvmlDeviceGetName", gpu), ask("nvmlDeviceGetMemoryInfo", gpu), ask("nvmlDeviceGetTemperature", gpu, 0)
print(json.dumps(found))
"""
TORCH = "import torch; print(torch.cuda.is_available()); torch.zeros(1).cuda()"
OPEN = "import os, sys; os.close(os.open(sys.argv[1], os.O_RDWR))"

_ASKED = "CUDA opens the node of the GPU, and the driver wants it open"
REFUSED_CUDA = Question("CUDA's status for a refused program", 100, 999, "", f"100 or 999: {_ASKED}")
REFUSED_HANDED = Question("the same, with the node open by inheritance", 100, 999, "", "CUDA opens the node itself")
GOES_ON = Question("questions of NVML that an owner asks meanwhile and that fail", 0, 0, "", "the owner may open it")
REFUSED_NVML = Question("NVML's first status that is not 0, refused", 3, 999, "", "no permission (4), or unknown (999)")
HAS_CONTEXT = Question(
    "a program with a context, shut out later: its next allocation and kernel", 0, 0, "", "its node is open already"
)
SEEN = Question("short uses by others that were counted", 100, 100, "%", "each opens the node")
COST = Question(
    "more for its owner, for each open and close", 0, 0.3, "us", "0.1 us where the node is a file of memory"
)
COST_OTHERS = Question("more for others that are counted", 0, 2, "us", "a message to the service, once or twice")


def measure(where: Where) -> Iterator[Measured]:
    """Nothing where no fence can stand; Unproven if a use was missed or a refused program got a context."""
    number = numbers.number_of(node := Path(where.root) / f"dev/nvidia{where.minor}")
    assert number is not None  # noqa: S101 - for mypy
    try:
        with groups.made() as made:
            below, owner, other = made.below, made.owner, made.other
            yield remark("nodes of this kind", ", ".join(sorted(_nodes(where))))
            yield from _cost(Fence(below), number, node, (made.beside, owner, other), where)
            yield from _refused(Fence(below), number, node, (owner, other), where)
            yield from _uses(Fence(below), number, node, other, where)
    except (FenceError, OSError) as error:
        raise NotDone(f"no fence stands here: {error}") from error


def _nodes(where: Where) -> Iterator[str]:
    for pattern in ("nvidia*", "nvidia-caps/*", "dri/*"):
        yield from (str(it.relative_to(where.root)) for it in (Path(where.root) / "dev").glob(pattern))


def _cost(
    standing: Fence, number: DeviceNumber, node: Path, places: tuple[Path, Path, Path], where: Where
) -> Iterator[Measured]:
    """The fastest round of each: whatever else the machine does can only make a round slower."""
    standing.set(number, {places[1].stat().st_ino}, refuse=False)

    def times() -> list[float]:
        best = [float("inf")] * len(places)
        for _ in rounds(ROUNDS, where.share(1 / 3)):
            for place, group in enumerate(places):
                (group / "cgroup.procs").write_text(str(os.getpid()))
                best[place] = min(best[place], _round(str(node)))
        return best

    without, owners, others = in_a_fork(times)
    standing.close()
    yield one("an open and close of the node without a fence", 1e6 * without, "us", "the fastest round of 50")
    yield COST.answered(1e6 * (owners - without))
    yield COST_OTHERS.answered(1e6 * (others - without))


def _round(node: str) -> float:
    began = time.perf_counter()
    for _ in range(OPENS):
        os.close(os.open(node, os.O_RDWR))
    return (time.perf_counter() - began) / OPENS


def _refused(
    standing: Fence, number: DeviceNumber, node: Path, places: tuple[Path, Path], where: Where
) -> Iterator[Measured]:
    owner, other = places
    shut = Fork(lambda line: _shut_out(line, other, where))
    shut.hear()
    members = {owner.stat().st_ino}
    standing.set(number, members, refuse=True)
    standing.refuse_for(LEASE)
    shut.tell()
    status, words = shut.hear()
    shut.end()
    yield HAS_CONTEXT.answered(status, note=words)
    name, refused, words = _statuses(_in(other, sys.executable, "-c", CUDA))[-1]
    yield REFUSED_CUDA.answered(refused, note=f"{name}: {words}")
    with node.open("r+b", buffering=0) as handed:
        handed_on = _statuses(_in(other, sys.executable, "-c", CUDA, keep=(handed.fileno(),)))[-1]
    yield REFUSED_HANDED.answered(handed_on[1], note=f"{handed_on[0]}: {handed_on[2]}")
    owners = _statuses(_in(owner, sys.executable, "-c", CUDA))
    yield remark("CUDA of the owner meanwhile", json.dumps(owners[-1]))
    answers = _statuses(_in(owner, sys.executable, "-c", NVML))
    yield GOES_ON.answered(sum(it[1] != 0 for it in answers), note=json.dumps([it[:2] for it in answers]))
    answers = _statuses(_in(other, sys.executable, "-c", NVML))
    failed = next((it for it in answers if it[1]), ("none", 0, ""))
    yield REFUSED_NVML.answered(failed[1], note=f"{failed[0]}: {failed[2]}; all: {json.dumps(answers)}")
    for program in (("nvidia-smi",), ("nvidia-smi", "-L"), (sys.executable, "-c", TORCH), ("ls", "-l", str(node))):
        with suppress(FileNotFoundError):
            status, text = _in(other, *program)
            yield remark(f"refused: {program[0]} {program[-1]}"[:60], f"status {status}: {text[-300:]}")
    counts = standing.counts(number)
    yield one("questions that were refused in all", counts.refused if counts is not None else None, "")
    standing.close()
    if refused == 0 or handed_on[1] == 0:
        raise Unproven("a refused program got a context")


def _shut_out(line: Connection, other: Path, where: Where) -> None:
    """Have a context, and use it after the fence is shut: the status of the first call that fails, and its name."""
    (other / "cgroup.procs").write_text(str(os.getpid()))
    cuda, number, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    os.environ["CUDA_VISIBLE_DEVICES"] = where.uuid
    cuda.cuInit(0)
    cuda.cuDeviceGet(ctypes.byref(number), 0)
    cuda.cuCtxCreate_v2(ctypes.byref(context), 0, number)
    say(line)
    line.recv()
    calls: tuple[tuple[str, Callable[[], int]], ...] = (
        ("cuMemAlloc", lambda: int(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2**28)))),
        ("cuMemsetD8", lambda: int(cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(0), ctypes.c_size_t(2**28)))),
        ("cuCtxSynchronize", lambda: int(cuda.cuCtxSynchronize())),
    )
    for name, call in calls:
        if (status := call()) != 0:
            say(line, (status, name))
            return
    second = cuda.cuCtxCreate_v2(ctypes.byref(context), 0, number)
    say(line, (0, f"a second context in the same program: status {second}"))


def _uses(standing: Fence, number: DeviceNumber, node: Path, other: Path, where: Where) -> Iterator[Measured]:
    """Each of four ways in turn: open the node, ask NVML, nvidia-smi, a context."""
    standing.set(number, (), refuse=False)
    ways = [(sys.executable, "-c", OPEN, str(node)), (sys.executable, "-c", NVML), (sys.executable, "-c", CUDA)]
    counted, done, missed, questions = 0, 0, set[int](), list[int]()
    for use in rounds(USES, where.ends):
        before, way = standing.counts(number), use % len(ways)
        _in(other, *ways[way])
        after = standing.counts(number)
        assert before is not None  # noqa: S101 - for mypy
        assert after is not None  # noqa: S101 - for mypy
        done += 1
        counted += after.asked > before.asked
        questions.append(after.asked - before.asked)
        if after.asked == before.asked:
            missed.add(way)
    named = {it.command for it in standing.attempts.new()}
    standing.close()
    yield SEEN.answered(100 * counted / done, note=f"{counted} of {done}: opened only, NVML, a context, in turns")
    for way, what in enumerate(("an open", "NVML opened and asked", "a context")):
        yield Measured(f"questions for the node: {what}", tuple(map(float, questions[way :: len(ways)])), "")
    yield remark("commands that were named", ", ".join(sorted(named)))
    if counted != done:
        raise Unproven(f"{done - counted} of {done} uses were not counted, of the ways {sorted(missed)}")


def _in(group: Path, *command: str, keep: tuple[int, ...] = ()) -> tuple[int, str]:
    """The status and the output of a command that runs in this control group."""
    enter = groups.entered(group, *command)
    ran = subprocess.run(
        enter, pass_fds=keep, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SEEN_WITHIN, check=False
    )
    return ran.returncode, ran.stdout.decode(errors="replace").strip()


def _statuses(ran: tuple[int, str]) -> list[tuple[str, int, str]]:
    status, text = ran
    try:
        return [(name, value, words) for name, value, words in json.loads(text.rpartition("\n")[2])]
    except ValueError:
        raise Unproven(f"a program that should say its statuses ended with {status}: {text[-200:]}") from None
