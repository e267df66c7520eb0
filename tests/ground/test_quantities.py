"""A number with its noun, in the singular for 1 only."""

from ground.quantities import quantity


def test_only_one_thing_is_singular():
    assert [quantity(count, "byte") for count in (0, 1, 2)] == ["0 bytes", "1 byte", "2 bytes"]
    assert [quantity(count, "process is", "processes are") for count in (1, 2)] == ["1 process is", "2 processes are"]
