"""Print the page of computed figures: what follows from stated bandwidths, unmeasured.

python -m benchmarks.computed > docs/measurements/computed.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.trial import computed

MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """A GPU by its stated figures."""

    name: str
    mib: int
    memory_mhz: int
    bus_bits: int

    @property
    def size(self) -> int:
        """The bytes of its memory."""
        return self.mib * MIB

    @property
    def peak(self) -> float:
        """In GB/s."""
        return computed.peak(self.memory_mhz, self.bus_bits)


GPUS = (Gpu("H100 80 GB (SXM)", 81559, 2619, 5120), Gpu("H200 141 GB (SXM)", 143771, 3201, 6144))

TEXT = """# Computed figures

**Nothing on this page was measured.** It is computed from the [inputs](#inputs) below. [The
trial](../../benchmarks/trial/README.md) prints what it measures beside what is computed here.

## The passes of a scrub

A fast scrub passes over the memory four times: it writes a keyed pattern, compares it, writes zeros and compares
them. The floor is the whole memory at the peak. A scrub does not reach what the driver reserves and what its own
context takes, which is about a hundredth. The expected figures are for the shares of the peak that a kernel with three
reads and a write was reported to reach on two GPUs of this generation ({least:.1%} and {best:.1%}). Stores alone were
reported at 98%, so passes that write may be faster. The keyed pattern is computed, so its passes take longer while the
clock of the GPU is low.

{passes}

## Inputs

{inputs}"""


INPUTS = (
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


def page() -> str:
    """The page."""
    h200 = GPUS[-1]
    return TEXT.format(
        passes=passes(),
        least=computed.LEAST,
        best=computed.BEST,
        inputs=_table(("input", "value", "source"), *INPUTS).format(
            datasheet=4 * computed.floor(h200.size, 4800),
        ),
    )


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


if __name__ == "__main__":
    main()
