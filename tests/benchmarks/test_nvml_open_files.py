"""The question how much one open file adds to the count of NVIDIA's kernel module, asked of another device node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import nvml_open_files
from scrubber.devices.nvidia.host import Host

ZERO = Path("/dev/zero")


def open_here() -> int:
    """How many descriptors of the node this process has."""
    return [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()].count(str(ZERO))


def test_each_count_is_read_with_so_many_open_files():
    counts, read = iter([10, 12, 14, 16, 16, 16, 10, 12, 10]), []

    def count() -> int:
        read.append((open_here(), str(ZERO) in Path("/proc/self/maps").read_text()))
        return next(counts)

    rows = list(nvml_open_files.of_node(ZERO, count))
    assert read == [*((number, False) for number in (0, 1, 2, 3, 4, 4, 0)), (0, True), (0, False)]
    assert [(row["with"], row["open files"], row["more"], row["per open file"]) for row in rows] == [
        ("nothing", 0, 0, None),
        ("open 1 times", 1, 2, 2.0),
        ("open 2 times", 2, 4, 2.0),
        ("open 3 times", 3, 6, 2.0),
        ("a dup of one", 3, 6, 2.0),
        ("a fork that has one", 3, 6, 2.0),
        ("all closed", 0, 0, None),
        ("a mapping, its descriptor closed", 1, 2, 2.0),
        ("the mapping gone", 0, 0, None),
    ]


@pytest.mark.parametrize(
    ("node", "why"), [("missing", "No such file or directory"), ("file", "no device node"), ("null", None)]
)
def test_a_failed_measurement_says_why(tmp_path, node, why):
    (tmp_path / "file").touch()
    (tmp_path / "null").symlink_to(os.devnull)  # has no mapping
    rows = [row["with"] for row in nvml_open_files.of_node(tmp_path / node, lambda: 0)]
    assert f"not measured: {why}" in rows if why else "no mapping: No such device" in rows


def test_without_the_module_no_measurement_is_made(tmp_path):
    assert nvml_open_files.measure(Host(tmp_path)) == "not measured: no module"


def test_programs_that_have_a_device_file_open_are_named(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").symlink_to(ZERO)
    with ZERO.open("rb"), ZERO.open("rb"):
        found = nvml_open_files.programs(Host(tmp_path))
    name = Path("/proc/self/comm").read_text().strip()
    assert {"program": name, "node": "nvidia0", "descriptors": 2} in found
