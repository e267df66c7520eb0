"""The memory of a multiprocessor that a scrub does not overwrite, by compute capability.

The kernels overwrite ``OVERWRITTEN`` (docs/kernels.md). The rest is named in each receipt. A capability that is not in
the table may have kinds of memory that this release does not know.
"""

from __future__ import annotations

from types import MappingProxyType

OVERWRITTEN = ("shared memory", "registers")
_LEFT = ("caches", "some registers")  # of every GPU
TENSOR = "tensor memory"  # 256 KiB of each multiprocessor: 128 lanes of 512 columns of 4 bytes
UNKNOWN = "not known what else"
SHARED = "what other virtual machines use"

# What a multiprocessor has besides OVERWRITTEN and _LEFT.
BESIDE = MappingProxyType(
    {
        (7, 5): (),
        (8, 0): (),
        (8, 6): (),
        (8, 9): (),
        (9, 0): (),
        (10, 0): (TENSOR,),
        (10, 3): (TENSOR,),
        (12, 0): (),
    }
)
_WITH_TENSOR_MEMORY = 10  # every capability of this major version


def not_overwritten(capability: tuple[int, int], *, virtual: bool | None = False) -> tuple[str, ...]:
    """The memory that a scrub leaves as it is.

    ``virtual``: a vGPU, whose multiprocessors others use as well; None: it is not known whether it is one.
    """
    unknown = (*((TENSOR,) if capability[0] == _WITH_TENSOR_MEMORY else ()), UNKNOWN)
    of_others = (UNKNOWN,) if virtual is None else (SHARED,) if virtual else ()
    return tuple(dict.fromkeys((*_LEFT, *BESIDE.get(capability, unknown), *of_others)))
