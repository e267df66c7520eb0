"""Choose the compiled kernels for a device: those for its architecture, or the portable form.

A wheel and the image have them. In a checkout, ``make kernels`` compiles them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "kernels"
OLDEST = (7, 5)  # Turing: older GPUs have no tensor instructions and no current driver


def image_for(capability: tuple[int, int]) -> Path:
    """The file to load on a device with this compute capability."""
    return FOLDER / chosen(capability, present())


@cache
def present() -> frozenset[str]:
    """The names of the compiled files of this installation."""
    return frozenset(path.name for path in FOLDER.glob("scrub.*") if path.suffix in {".cubin", ".ptx"})


def chosen(capability: tuple[int, int], names: Iterable[str]) -> str:
    """The best file: within a major version, code for a minor version also runs on higher minor versions."""
    major, minor = capability
    if capability < OLDEST:
        raise ValueError(f"no kernels for compute capability {major}.{minor}: Turing (7.5) or newer is needed")
    compiled = set(names)
    if not compiled:
        raise ValueError("the kernels are not compiled in this checkout; run make kernels")
    fitting = [name for lower in range(minor, -1, -1) if (name := binary(major, lower)) in compiled]
    if fitting:
        return fitting[0]
    if PORTABLE in compiled:
        return PORTABLE
    raise ValueError(f"no kernels for compute capability {major}.{minor}: this installation lacks {PORTABLE}")


def binary(major: int, minor: int) -> str:
    """The name of the machine code for an architecture."""
    return f"scrub.sm_{major}{minor}.cubin"


PORTABLE = "scrub.ptx"  # for architectures newer than this release: the driver compiles it
