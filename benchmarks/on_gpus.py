"""Print the page of what trials have measured on GPUs, side by side, from their records.

python -m benchmarks.on_gpus > docs/measurements/gpus.md
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.nvml_questions import wrapped
from benchmarks.trial import computed
from benchmarks.trial.parts import PARTS
from benchmarks.trial.records import Records

RECORDS = Path(__file__).parent / "records"
CARDS = {"H100 80 GB": "nvidia-h100-80gb-hbm3", "H200": "nvidia-h200"}
NOT_MEASURED = "not measured"
COMMITS = {"8b97f2190547c6203a7e7cf2327c641f2da81435": "1806d10e"}  # of the trees that records name

SOON, LATE = "a pod right after a pod that filled the memory", "a pod that gets a clean GPU"
FORK, WORKER = "a fork of a process that has loaded CuPy", "warm zygote"
BACK = "memory that another process had written and given back, immediately"
SHORT_USES = "short uses of a clean GPU that were noticed"
FOUND = "bytes that are not zero in the memory that a pod finds"


@dataclass(frozen=True)
class Row:
    """One line of a table: the words for it, and which figure of which part it is."""

    words: str
    part: str
    what: str
    per: float = 1  # how many of the figure's unit are one of the shown unit
    unit: str = ""  # that is shown; none: the figure's own
    arm: str = ""  # of which other trial of the same GPU it is

    def cell(self, records: Records) -> str:
        """The median, and for several samples their number and range."""
        samples, unit = self._samples(records)
        if len(samples) < 2:  # noqa: PLR2004 - one sample has no range
            return self.median(records)
        low, high = min(samples), max(samples)
        extent = f"{_plain(low)} to {_plain(high)}, " if low != high else ""
        return f"{_plain(statistics.median(samples))} ({extent}n = {len(samples)}) {unit}".strip()

    def median(self, records: Records) -> str:
        """The median alone."""
        samples, unit = self._samples(records)
        return f"{_plain(statistics.median(samples))} {unit}".strip() if samples else NOT_MEASURED

    def _samples(self, records: Records) -> tuple[list[float], str]:
        if self.arm:
            records = Records(records.path.with_name(f"{records.path.stem}-{self.arm}.jsonl"))
        for part in records.parts():
            for figure in part.figures if part.name == self.part else ():
                if figure.what == self.what and figure.samples:
                    return [sample / self.per for sample in figure.samples], self.unit or figure.unit
        return [], ""


MIB = 2**20
_STARTED = "CUDA is started, without a context: memory of the"
WAITING = {
    "started_node": Row("", "ahead", f"{_STARTED} node that the process shares with no other", MIB, "MiB"),
    "started_gpu": Row("", "ahead", f"{_STARTED} GPU that it takes", MIB, "MiB"),
    "with_context": Row("", "clear", "random+zero: not covered: the context of the scrub itself", MIB, "MiB"),
}
"""What a worker that is kept ready takes."""
LEFT = {
    "memory of a process that ended: bytes that the next one finds": ("exit", "memory"),
    "memory of a process that was killed: the same": ("kill", "memory"),
    "shared memory of it: words of the first process": ("kill", "shared-memory"),
    "registers of it: the same": ("kill", "registers"),
}
"""The endings and media of `autoclave remnant` whose results are shown."""
TABLES = {
    "hand-over": (
        Row("`Allocate` of a clean GPU", "pods", f"{LATE}: Allocate"),
        Row("`PreStartContainer` of it", "pods", f"{LATE}: PreStartContainer"),
        Row(
            "from the end of a container to the start of the next pod's, which was waiting",
            "pods",
            f"{SOON}: from the end of the last container to the start of this one",
        ),
        Row("of it, `Allocate`", "pods", f"{SOON}: Allocate"),
        Row(FOUND, "pods", FOUND),
        Row(
            "`autoclave scrub`, from the command to its end", "service", "autoclave scrub, from the command to its end"
        ),
    ),
    "steps": (
        Row("until there is a worker, a fork of the zygote", "one worker", f"{WORKER}: until there is a worker"),
        Row("`cuInit`", "timeline", f"{FORK}: the driver"),
        Row("the context", "timeline", f"{FORK}: context"),
        Row(
            "all memory allocated, right after another process gave it back", "timeline", f"{BACK}: all of it allocated"
        ),
        Row("a keyed pattern written", "passes", "write keyed: time"),
        Row("the same read back and compared", "passes", "check keyed: time"),
        Row("zeros written", "passes", "write zero: time"),
        Row("zeros read back and compared", "passes", "check zero: time"),
        Row("these four passes", "passes", "the four passes of a fast scrub: time"),
        Row("registers and shared memory", "scratch", "scratch, shared memory and registers"),
        Row("until the worker is gone", "one worker", f"{WORKER}: until the worker is gone"),
        Row("the self-test of the slow path, all tests", "self-test", "self-test, in a box of 10 s"),
    ),
    "ahead": (
        *(
            Row(words, "ahead", f"{way}: from the end of the last process to the end of four passes")
            for words, way in (
                ("nothing is ready: a worker is forked then", "nothing is ready"),
                ("a worker has called `cuInit` before", "CUDA is started, without a context"),
                ("a worker has made its context before", "the context is made"),
            )
        ),
        Row(
            "of the last one, until all memory is allocated",
            "ahead",
            "the context is made: from the end of the last process to all memory allocated",
        ),
    ),
    "reach": (
        Row("memory, by NVML", "clear", "NVML, before: total", MIB, "MiB"),
        Row("reserved by the driver, not allocatable", "clear", "NVML, before: reserved", MIB, "MiB"),
        Row("covered, of what is allocatable", "clear", "random+zero: covered, of what is allocatable"),
        Row(
            "not covered: the context of the scrub itself",
            "clear",
            "random+zero: not covered: the context of the scrub itself",
            MIB,
            "MiB",
        ),
        Row(
            "shared memory that the driver lets no program write, of all units",
            "scratch",
            "shared memory that the driver lets no program write",
            1024,
            "KiB",
        ),
    ),
    "left": (
        Row(
            "from SIGKILL of a process with all memory until it is free",
            "faults",
            "a process that is killed: NVML's used, from its end until at the baseline",
        ),
    ),
    "fence": (
        Row(
            "an open and close of the GPU's node without a fence",
            "fence",
            "an open and close of the node without a fence",
        ),
        Row("more for its owner, behind a fence", "fence", "more for its owner, for each open and close"),
        Row("more for another process, which is counted", "fence", "more for others that are counted"),
        Row(
            "short uses by others that were counted: the node opened, NVML, a context",
            "fence",
            "short uses by others that were counted",
        ),
        Row("CUDA's status for a refused process", "fence", "CUDA's status for a refused program"),
        Row("the same, with the node open by inheritance", "fence", "the same, with the node open by inheritance"),
        Row(
            "NVML's status for a refused process: it lists no GPU",
            "fence",
            "NVML's first status that is not 0, refused",
        ),
        Row(
            "CUDA's status for a process that had a context before it was shut out",
            "fence",
            "a program with a context, shut out later: its next allocation and kernel",
        ),
        Row("short uses of a clean GPU that the service noticed", "service", SHORT_USES),
        Row(
            "scrubs of a clean GPU after SIGKILL of the service and a new start",
            "service",
            "scrubs of a clean GPU after SIGKILL and a new start",
        ),
        Row("the same, if a process used it meanwhile", "service", "the same, if somebody used it meanwhile"),
    ),
    "choices": (
        Row(
            "three passes: zeros are not read back",
            "variants",
            "key written and read, zeros written: as a part of four passes",
        ),
        Row("two passes: the key alone", "variants", "key written and read: as a part of four passes"),
        Row(
            "the two in the middle as one pass that reads and writes",
            "variants",
            "the two in the middle in one pass: as a part of four passes",
        ),
        Row("`Allocate` of a pod that waits, under `random+zero`", "pods", f"{SOON}: Allocate"),
        Row("the same under `random`, right after it on the same machine", "pods", f"{SOON}: Allocate", arm="random"),
        Row("bytes that are not zero in the memory that a pod finds, under `random`", "pods", FOUND, arm="random"),
    ),
}

TEXT = """# On GPUs

Measured on {taken} by [the trial](../../benchmarks/trial/README.md), on one GPU at a time: {cards}. Both were passed
through to a virtual machine with Linux {kernel}, 16 processors, version 2 of control groups and the driver
{driver} (open modules), with persistence mode on. Each cell is the median, and in brackets the lowest and the highest
sample, and how many there are. `make docs` writes this page from the records of the trials: {records}. {trees}
`python -m benchmarks.show benchmarks/records/FILE` prints all figures of a record, with what was predicted of each.

{held}

Not tried on a GPU: MIG, several GPUs, a reset, changes of settings, other generations and other drivers, a GPU that
is sick, a real kubelet.

## From one pod to the next

Service and plugin are the real programs. Their policy is `default`, with the fast path for the first look too, without
resets, and with all settings left alone. The kubelet is the stand-in of the demo. Each container is a process in a
control group of its pod, and fills all of the memory. In newer records it first counts what it finds there. `Allocate`
and `PreStartContainer` of a clean GPU make no pass over the memory.

{hand-over}

A few samples of one session do not show how sessions differ. Two earlier ones on this H100, whose records are in the
history of this repository (`9eea3f43` and `9b640046`), gave 514 to 620 ms for the `Allocate` of a pod that waits.

## Where the time goes

{steps}

Most of a scrub is not spent on passes. The driver takes a third of a second to start CUDA, to make a context and to end
the process. On the H100, freeing the memory before the exit did not make it shorter. A pod that
allocates all of the memory right after another pod waits for the driver without Autoclave, too: the driver clears freed
memory first. The worker leaves the processor while it waits for a pass, and makes one channel instead of eight: a
context then takes about half the time. After 19 s of rest, the clock of the H100 was still at its highest, and the
first pass took as long as the later ones.

**Nothing is prepared while a pod still has its GPU.** From the end of a process that had filled the memory until four
passes are over:

{ahead}

Whoever asks for memory that was just freed waits until the driver has cleared it, however ready it is. A worker with
CUDA started would take {started_node} of the node and {started_gpu} of each GPU for the life of the pod, one with a
context {with_context} of the tenant's memory. That is not worth the milliseconds.

## What is reached

{reach}

## What the driver itself leaves

{left}

The last four rows are of [`autoclave remnant`](../remnant.md). So on these GPUs, with this driver, no byte of an
earlier process was found even without a scrub. Autoclave adds the proof, and refuses a GPU where this does not hold.
Without the [fence](../nvidia.md#who-opens-a-gpu-the-fence), short uses are noticed by chance only: of those of about a
second, the service has noticed {short_uses} in these records
([limits](../noticed-late.md)).

A kernel that traps gave CUDA's status 719 and one XID 43, and the next process found a sound GPU. A process that was
killed inside a kernel that does not end gave no XID, and the driver reported no load afterwards. While a process held
all memory, nobody else could make a context: CUDA's status 2, out of memory.

## Behind the fence

The [fence](../nvidia.md#who-opens-a-gpu-the-fence) stood below a control group of the trial's own. What a process costs
is the fastest round of 50 opens.

{fence}

A process that is refused the node sees no GPU: `cuInit` says "no CUDA-capable device is detected", NVML lists none,
`nvidia-smi` prints "No devices were found" and ends with status 6, PyTorch says "No CUDA GPUs are available". A context
that was made before goes on. A monitor on these machines runs `nvidia-smi` every ten seconds: each run is a short use,
unless its program or its unit is named in the policy.

## Fewer passes

A fast scrub passes over the memory four times by default: a keyed pattern is written and read back, then zeros. With
`clear.passes: random` it makes [the first two](../policies.md#which-patterns-to-write). Each pass moves the whole
memory once. As a share of the four passes:

{choices}

## Computed

The floor of a pass is the whole memory at the peak of its bandwidth. The expected time is for {least:.1%} to {best:.1%}
of the peak, which a kernel with three reads and a write was reported to reach on two GPUs of this generation
(RRZE-HPC/gpu-benches at 1038c5d: GH200 96 GB, H100 PCIe). What was measured is for the memory that is covered, which is
a little less.

{computed}

Memory, clock and bus of the B200 are as reported in pytorch/ao#4002; no B200 was at hand.
"""

# By name: memory in MiB, its clock in MHz, the width of its bus in bits.
KNOWN = {"H100 80 GB": (81559, 2619, 5120), "H200": (143771, 3201, 6016), "B200": (182628, 3996, 7680)}


def main() -> None:
    """Print the page."""
    print(page(), end="")


def cards() -> dict[str, Records]:
    """The record of each card."""
    return {name: Records(RECORDS / f"{file}.jsonl") for name, file in CARDS.items()}


def page() -> str:
    """The page of the committed records."""
    found = cards()
    about = [records.machine() or {} for records in found.values()]
    tables = {name: table(("", *found), *(_cells(row, found) for row in rows)) for name, rows in TABLES.items()}
    tables["left"] += "\n" + table(*(_left(words, *it) for words, it in LEFT.items()), head=False)
    text = TEXT.format(
        **tables,
        trees=_trees(found),
        held=_held(found),
        short_uses=short_uses(),
        **{name: row.median(found["H100 80 GB"]) for name, row in WAITING.items()},
        taken=about[0]["taken"],
        cards=" and ".join(f"an {machine['model']}" for machine in about),
        kernel=about[0]["kernel"],
        driver=about[0]["driver"],
        records=" and ".join(f"[{name}](../../benchmarks/records/{file}.jsonl)" for name, file in CARDS.items()),
        least=computed.LEAST,
        best=computed.BEST,
        computed=table(
            (
                "GPU",
                "peak",
                "one pass: floor, expected",
                "four passes",
                "five, as the slow path makes",
                "four, measured",
            ),
            *map(_expected, KNOWN),
        ),
    )
    return wrapped(text)


def _trees(found: dict[str, Records]) -> str:
    """Of which program the figures are."""
    trees = {tree for records in found.values() for tree in records.trees().values()}
    known = ", ".join(f"{commit(tree)} (tree `{tree}`)" for tree in sorted(filter(None, trees)))
    return f"Their parts are of {known}." + (" Older parts do not say it." if "" in trees else "")


def commit(tree: str) -> str:
    """The commit of a tree that a record names. Empty: the record names none."""
    if not tree:
        return "an unrecorded commit"
    return f"commit `{COMMITS[tree]}`" if tree in COMMITS else "an uncommitted program"


def provenance(records: Records, part: str) -> str:
    """When a part was measured, whether behind a fence, and of which commit."""
    fence = "behind the fence" if any(it.name == "fence" for it in records.parts()) else "without a fence"
    return f"{records.begun(part)}, {fence}, of {commit(records.trees()[part])}"


def _held(found: dict[str, Records]) -> str:
    """Which parts of the trial passed on each card, which failed, and which were not done."""
    lines = []
    for name, records in found.items():
        parts = records.parts()
        failed = [part.name for part in parts if part.why]
        passed = [part.name for part in parts if not part.why and not part.not_done]
        others = [part for part in PARTS if part not in {*failed, *passed}]
        broken = f"; failed: {', '.join(failed)}" if failed else ""
        lines.append(f"* **{name}**: {len(passed)} parts of the trial passed{broken}. Not done: {', '.join(others)}.")
    return "\n".join(lines)


def short_uses() -> str:
    """How many short uses of a clean GPU were noticed: where no fence was tried, and where one was."""
    counts = {False: [0, 0], True: [0, 0]}
    for records in cards().values():
        parts = records.parts()
        fenced = any(part.name == "fence" for part in parts)
        for figure in (figure for part in parts for figure in part.figures if figure.what == SHORT_USES):
            for place, count in enumerate(figure.counted or ()):
                counts[fenced][place] += count
    without, behind = (f"{noticed} of {uses}" for noticed, uses in counts.values())
    return f"{without} uses without a fence and {behind} uses behind one"


def _left(words: str, ending: str, medium: str) -> tuple[str, ...]:
    """What `autoclave remnant` has found on each card."""
    row = [words]
    for file in CARDS.values():
        result = RECORDS / f"remnant-{file}.json"
        cells = json.loads(result.read_text())["cells"] if result.exists() else ()
        found = [it for it in cells if (it["ending"], it["medium"]) == (ending, medium)]
        counts = [
            f"{it['recognised'] if it['not_zero'] is None else it['not_zero']} bytes in {it['rounds']} rounds"
            for it in found
        ]
        row.append(counts[0] if counts else NOT_MEASURED)
    return tuple(row)


def _cells(row: Row, found: dict[str, Records]) -> tuple[str, ...]:
    return (row.words, *(row.cell(records) for records in found.values()))


def _expected(name: str) -> tuple[str, ...]:
    mib, clock, bits = KNOWN[name]
    size, peak = mib * MIB, computed.peak(clock, bits)
    least, (low, high) = computed.floor(size, peak), computed.expected(size, peak)
    cells = (f"{n * least:.0f} ms, {n * low:.0f} to {n * high:.0f} ms" for n in (1, 4, 5))
    four = next(row for row in TABLES["steps"] if row.words == "these four passes")
    measured = four.cell(cards()[name]) if name in CARDS else NOT_MEASURED
    return (name, f"{peak:,.0f} GB/s", *cells, measured)


def table(*rows: Sequence[str], head: bool = True) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]] if head else lines)


def _plain(value: float) -> str:
    if value == round(value) or abs(value) >= 1000:  # noqa: PLR2004 - four digits are enough
        return f"{value:,.0f}"
    return f"{value:.3g}"


if __name__ == "__main__":
    main()
