"""Print the page of computed figures: what follows from the shipped kernels and from stated bandwidths, unmeasured.

python -m benchmarks.computed > docs/measurements/computed.md
"""

from __future__ import annotations

import re
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.trial import computed
from deploy.compile_kernels import ARCHITECTURES
from scrubber.cuda.images import FOLDER, binary
from scrubber.cuda.patterns import VECTOR
from tests.fakes.cuda.emulation import disassembler
from tests.fakes.cuda.translation import sass
from tests.fakes.cuda.translation.elf import Elf

UNROLL = 4  # vectors that a thread has under way, in ``scrub.cu``
KEYED = "0x1ce4e5b9"  # half of a factor that only the keyed pattern has
ACCESS = {"write": "STG", "check": "LDG"}
MIB = 2**20

ISSUED = 4 * 32  # instructions of single threads that a multiprocessor issues in a clock
IDLE_MHZ = 345


@dataclass(frozen=True)
class Gpu:
    """A GPU by its stated figures."""

    name: str
    mib: int
    memory_mhz: int
    bus_bits: int
    units: int

    @property
    def size(self) -> int:
        """The bytes of its memory."""
        return self.mib * MIB

    @property
    def peak(self) -> float:
        """In GB/s."""
        return computed.peak(self.memory_mhz, self.bus_bits)


GPUS = (Gpu("H100 80 GB (SXM)", 81559, 2619, 5120, 132), Gpu("H200 141 GB (SXM)", 143771, 3201, 6144, 132))

TEXT = """# Computed figures

**Nothing on this page was measured.** It is computed from the shipped kernels and from the [inputs](#inputs) below.
`make docs` writes it anew, and a test compares it with the kernels. [The trial](../../benchmarks/trial/README.md)
prints what it measures beside what is computed here.

## The passes of a scrub

A fast scrub passes over the memory four times: it writes a keyed pattern, compares it, writes zeros and compares
them. The floor is the whole memory at the peak. A scrub does not reach what the driver reserves and what its own
context takes, which is about a hundredth. The expected figures are for the shares of the peak that a kernel with three
reads and a write was reported to reach on two GPUs of this generation ({least:.1%} and {best:.1%}). Stores alone were
reported at 98%, so passes that write may be faster.

{passes}

## The clock

The keyed pattern is computed, so its passes also depend on the clock of the multiprocessors. The count is that of the
shortest way through the loop over {unroll} vectors, without differences.

{instructions}

A multiprocessor issues at most {issued} instructions of threads in a clock. So the passes over a keyed pattern keep
up with the memory only from these clocks on; at half of such a clock, a pass takes twice as long. An idle GPU was
reported at {idle} MHz, and how fast its clock rises is not known.

{clocks}

## Inputs

{inputs}"""


INPUTS = (
    (
        "instructions that a multiprocessor issues",
        "four warps of 32 threads in a clock",
        "CUDA Programming Guide: four schedulers",
    ),
    (
        "H100 80 GB: memory, memory clock, bus",
        "81,559 MiB, 2,619 MHz, 5,120 bits",
        "as commonly shown by `nvidia-smi`, not read at a named place; the datasheet says 3.35 TB/s",
    ),
    (
        "H200: memory, memory clock, bus",
        "143,771 MiB, 3,201 MHz, 6,144 bits",
        "NVIDIA/cuda-samples#311, awslabs/amazon-eks-ami#1985; by the 4.8 TB/s of the datasheet: {datasheet:.1f} ms",
    ),
    (
        "multiprocessors of both",
        "132",
        "datasheets",
    ),
    (
        "idle clock",
        "345 MHz",
        "awslabs/amazon-eks-ami#1985 (H200)",
    ),
    (
        "`triad` on GH200 96 GB; stores",
        "3,783; 3,944 of 4,023 GB/s (2,619 MHz, 6,144 bits)",
        "RRZE-HPC/gpu-benches at 1038c5d, `gpu-stream/gh200.txt`",
    ),
    (
        "`triad` on H100 PCIe",
        "1,832 of 2,039 GB/s (1,593 MHz, 5,120 bits)",
        "the same, `h100_pcie.txt`",
    ),
)


def main() -> None:
    """Print the page."""
    print(page())


def shipped() -> dict[int, Image]:
    """The images by architecture."""
    return {number: Image(number) for number in (10 * major + minor for major, minor in ARCHITECTURES)}


def page() -> str:
    """The page."""
    images, h200 = shipped(), GPUS[-1]
    return TEXT.format(
        passes=passes(),
        instructions=instructions(images),
        clocks=_clocks(images[90]),
        unroll=UNROLL,
        least=computed.LEAST,
        best=computed.BEST,
        issued=ISSUED,
        idle=IDLE_MHZ,
        inputs=_table(("input", "value", "source"), *INPUTS).format(
            datasheet=4 * computed.floor(h200.size, 4800),
        ),
    )


_Code = Sequence[sass.Instruction | str]


class Image:
    """An image: what its kernels take, and how many instructions its loops have."""

    def __init__(self, architecture: int) -> None:
        self._path = FOLDER / binary(*divmod(architecture, 10))
        self.elf = Elf(self._path.read_bytes())

    @cached_property
    def _code(self) -> dict[str, _Code]:
        """The passes, disassembled."""
        tool, symbols = disassembler(), self.elf.symbols()
        if tool is None:
            raise FileNotFoundError("cannot count instructions: nvdisasm is not installed, see pyproject.toml")
        command = [tool, "-c", "-fun", ",".join(str(symbols.index(name)) for name in ACCESS), self._path]
        return dict(sass.listing(subprocess.run(command, capture_output=True, text=True, check=True).stdout))

    def per_vector(self, kernel: str) -> float:
        """The instructions for each vector of a keyed pattern."""
        [count] = {_shortest(loop) for loop in _loops(self._code[kernel]) if _is_keyed(loop, ACCESS[kernel])}
        return count / UNROLL


def _loops(code: _Code) -> Iterator[_Code]:
    """Each stretch of code from a label to a jump back to it."""
    labels = {line: number for number, line in enumerate(code) if isinstance(line, str)}
    for number, line in enumerate(code):
        target = labels.get(_target(line), number)
        if target < number:
            yield code[target : number + 1]


def _target(line: sass.Instruction | str) -> str:
    """The label that an instruction may jump to; empty if it is not a jump."""
    if isinstance(line, str) or not line.name.startswith("BRA"):
        return ""
    found = re.search(sass.JUMP, line.operands[-1])
    return found[1] if found else ""


def _is_keyed(loop: _Code, access: str) -> bool:
    lines = [line for line in loop if isinstance(line, sass.Instruction)]
    accesses = sum(line.name.startswith(access) for line in lines)
    return accesses == UNROLL and any(KEYED in line.operands for line in lines)


def _shortest(loop: _Code) -> int:
    """The fewest instructions from the beginning of a loop to its end."""
    labels = {line: number for number, line in enumerate(loop) if isinstance(line, str)}
    counts, waiting = {0: 0}, deque([0])
    while waiting:
        number = waiting.popleft()
        line = loop[number]
        count = counts[number] + isinstance(line, sass.Instruction)
        ways = {number + 1, labels.get(_target(line), number + 1)}
        for way in ways:
            if way < len(loop) and count < counts.get(way, len(loop) + 1):
                counts[way] = count
                waiting.append(way)
    return counts[len(loop) - 1] + 1


def _table(*rows: Sequence[str]) -> str:
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *rest])


def passes() -> str:
    """The table of the passes of a scrub."""
    rows = []
    for gpu in GPUS:
        least, (low, high) = computed.floor(gpu.size, gpu.peak), computed.expected(gpu.size, gpu.peak)
        cells = (f"{n * least:.0f} ms, {n * low:.0f} to {n * high:.0f} ms" for n in (1, 4))
        rows.append((gpu.name, f"{gpu.size / 1e9:.2f} GB", f"{gpu.peak:,.0f} GB/s", *cells))
    return _table(("GPU", "memory", "peak", "one pass: floor, expected", "four passes"), *rows)


def instructions(images: dict[int, Image]) -> str:
    """The table of instructions for each vector."""
    rows = []
    for name in ACCESS:
        counts = [image.per_vector(name) for image in images.values()]
        rows.append((f"`{name}`, keyed", f"{min(counts):.1f} to {max(counts):.1f}"))
    return _table(("kernel", "instructions for each vector, by image"), *rows)


def _clocks(image: Image) -> str:
    rows = []
    for gpu in GPUS:
        vectors = gpu.peak * 1e9 / VECTOR / gpu.units  # of each multiprocessor, in a second
        needed = {name: vectors * image.per_vector(name) / ISSUED / 1e6 for name in ACCESS}
        pass_ms = computed.floor(gpu.size, gpu.peak)
        slow = (f"{pass_ms * max(1, mhz / IDLE_MHZ):.0f} ms" for mhz in needed.values())
        rows.append((gpu.name, *(f"{mhz:.0f} MHz" for mhz in needed.values()), f"{pass_ms:.0f} ms", *slow))
    head = ("GPU", "`write` from", "`check` from", "a pass at the peak", f"`write` at {IDLE_MHZ} MHz", "`check`")
    return _table(head, *rows)


if __name__ == "__main__":
    main()
