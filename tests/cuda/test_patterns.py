"""What the keyed pattern proves, and what it is not."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from scrubber.cuda.patterns import VECTOR, Pattern, PatternKind, keyed

PAGE = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
WORD = 2**64
words = st.integers(0, WORD - 1)


def unshifted(word: int, shift: int) -> int:
    """The word before ``word ^= word >> shift``."""
    found = word
    for _ in range(64 // shift):
        found = word ^ found >> shift
    return found


def divided(word: int, factor: int) -> int:
    return word * pow(factor, -1, WORD) % WORD


def words_of(vector: bytes, number: int) -> tuple[int, int]:
    """The words of the pattern that has these 16 bytes at this place."""
    first, second = (int.from_bytes(vector[at : at + 8], "little") for at in (0, 8))
    other = first ^ divided(unshifted(second, 32), 0xD6E8FEB86659FD93)
    mixed = divided(unshifted(first, 31), 0x94D049BB133111EB)
    mixed = divided(unshifted(mixed, 27), 0xBF58476D1CE4E5B9)
    return (unshifted(mixed, 30) - (number + 1) * 0x9E3779B97F4A7C15) % WORD, other


@given(words, words, st.integers(0, 2**40))
def test_sixteen_bytes_give_all_of_a_keyed_pattern(first: int, second: int, number: int) -> None:
    pattern = Pattern(PatternKind.KEYED, first, second)
    vector = bytes(pattern.byte(number * VECTOR + place) for place in range(VECTOR))
    assert words_of(vector, number) == (first, second)


def test_the_page_says_that_the_pattern_is_no_cipher() -> None:
    assert "16 bytes of it" in PAGE
    assert "predicted" not in PAGE


@given(st.binary(min_size=1))
def test_each_step_has_words_of_its_own(key: bytes) -> None:
    """What a tenant learns of one stream tells nothing of the others."""
    streams = [keyed(key, label) for label in ("clear", "census", "scratch")]
    assert len({(each.first, each.second) for each in streams}) == len(streams)
