"""Keeps in the kernel since how many uses a device is proven clean: a later run of the service can go on from there."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace

from scrubber.core.model import DeviceNumber
from scrubber.fence.kernel.fence import Fence


def keep(fence: Fence, numbers: Collection[DeviceNumber], proof: str, uses: int) -> None:
    """Keep this proof of the device with these numbers. Can raise OSError, like all these functions."""
    _keep(fence, numbers, named(proof, numbers), uses)


def forget(fence: Fence, numbers: Collection[DeviceNumber]) -> None:
    """The device is used from now on."""
    if numbers and fence.kept(first(numbers)).proof:
        _keep(fence, numbers, 0, 0)


def uses(fence: Fence, numbers: Collection[DeviceNumber], proof: str) -> int | None:
    """The uses at this proof. None: another proof is kept, or none."""
    kept = fence.kept(first(numbers))
    return kept.uses if kept.proof == named(proof, numbers) else None


def _keep(fence: Fence, numbers: Collection[DeviceNumber], proof: int, uses: int) -> None:
    place = first(numbers)
    fence.keep(place, replace(fence.kept(place), proof=proof, uses=uses))


def named(proof: str, numbers: Collection[DeviceNumber]) -> int:
    """A name of the proof that fits into what the kernel keeps. It holds for these numbers, counted since then.

    And for this way of counting: earlier services have also said counts of attempts that were not judged yet.
    """
    counted = sorted((number.kind.value, number.major, number.minor) for number in numbers)
    return int.from_bytes(hashlib.blake2b(f"{proof} judged {counted}".encode(), digest_size=8).digest(), "little")


def first(numbers: Iterable[DeviceNumber]) -> DeviceNumber:
    """The number under which the kernel keeps what belongs to the whole device."""
    return min(numbers, key=lambda number: (number.major, number.minor))
