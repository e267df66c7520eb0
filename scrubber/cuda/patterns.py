"""The patterns that overwrite a GPU's memory, as values. The kernels and their stand-ins compute the same bytes.

Memory is a sequence of vectors of two 64-bit words. ``CONSTANT`` repeats its words, ``ADDRESS`` mixes them with the
number of the vector, and ``KEYED`` is a stream of two words, which are new for each scrub. So data of an older pass or
of another address does not match. The stream is no cipher: 16 bytes of it give its words.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from enum import IntEnum

VECTOR = 16  # bytes
_WORD = 2**64 - 1


class PatternKind(IntEnum):
    """How the words of a vector follow from its number. The kernels use these numbers."""

    CONSTANT = 0
    ADDRESS = 1
    KEYED = 2


@dataclass(frozen=True, slots=True)
class Pattern:
    """The content that a memory should have."""

    kind: PatternKind
    first: int = 0
    second: int = 0
    name: str = field(default="", compare=False)  # by which a policy orders it; empty: none does

    def flipped(self) -> Pattern:
        """The pattern with each bit inverted."""
        if self.kind is PatternKind.KEYED:
            raise ValueError("cannot flip a keyed pattern: its bits do not follow from those of its words")
        return Pattern(self.kind, self.first ^ _WORD, self.second ^ _WORD)

    def byte(self, offset: int) -> int:
        """The byte at this offset."""
        number, place = divmod(offset, VECTOR)
        vector = b"".join(word.to_bytes(8, "little") for word in self._words(number))
        return vector[place]

    def _words(self, number: int) -> tuple[int, int]:
        match self.kind:
            case PatternKind.CONSTANT:
                return self.first, self.second
            case PatternKind.ADDRESS:
                return number ^ self.first, number ^ _WORD ^ self.second
            case PatternKind.KEYED:
                mixed = self.first + (number + 1) * 0x9E3779B97F4A7C15 & _WORD
                mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
                mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _WORD
                mixed ^= mixed >> 31
                other = (mixed ^ self.second) * 0xD6E8FEB86659FD93 & _WORD
                return mixed, other ^ other >> 32


ZERO = Pattern(PatternKind.CONSTANT, name="zero")


def repeated(byte: int) -> Pattern:
    """One byte, repeated."""
    word = int.from_bytes(bytes([byte]) * 8)
    return Pattern(PatternKind.CONSTANT, word, word)


def keyed(key: bytes, label: str) -> Pattern:
    """The stream of a job's key for one purpose; each label gives another stream."""
    if not key:
        raise ValueError(f"cannot make the pattern {label!r}: its key is missing")
    words = hashlib.sha256(label.encode() + b"\0" + key).digest()
    return Pattern(PatternKind.KEYED, int.from_bytes(words[:8]), int.from_bytes(words[8:16]))


def by_name(name: str, key: bytes) -> Pattern:
    """The pattern with this name."""
    match name:
        case "zero":
            return ZERO
        case "ones":
            return replace(repeated(0xFF), name=name)
        case "random":
            return replace(keyed(key, "clear"), name=name)
    raise ValueError(f"cannot write pattern {name!r}: the pattern is unknown")
