"""The page of what was measured on GPUs is the one of the committed records, and a trial prints its own beside it."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from benchmarks import on_gpus, readme, show
from benchmarks.trial import computed
from benchmarks.trial.figures import Measured
from benchmarks.trial.records import Records, Writer
from benchmarks.trial.tree import FOLDERS, tree

ROOT = Path(__file__).parents[2]
KNOWN = on_gpus.KNOWN["H100 80 GB"]


def test_the_page_is_what_the_records_say():
    """Red? make docs."""
    assert (ROOT / "docs/measurements/gpus.md").read_text() == on_gpus.page()


def test_readme_has_the_values_of_the_records():
    """Red? make docs."""
    found = readme.PART.search((ROOT / "README.md").read_text())
    assert found
    assert found[0].partition("\n\n")[2].removesuffix(found[2]) == readme.figures()


def test_a_record_names_a_commit():
    """Red? Commit the program that the trial is to run first, and add its tree to COMMITS."""
    named = {tree for records in on_gpus.cards().values() for tree in records.trees().values()}
    assert named - {"", "1e297b3f5a39b88335ce915b435855e68b094772"} == on_gpus.COMMITS.keys()
    for known, commit in on_gpus.COMMITS.items():
        run = ["git", "ls-tree", "-z", commit, *FOLDERS]
        listed = subprocess.run(run, cwd=ROOT, capture_output=True, check=False)
        if listed.returncode != 0:
            pytest.skip("this is no checkout with that commit")
        entries = (line.split(maxsplit=3) for line in listed.stdout.split(b"\0") if line)
        body = b"".join(
            mode.lstrip(b"0") + b" " + name + b"\0" + bytes.fromhex(digest.decode())
            for mode, _, digest, name in entries
        )
        assert hashlib.sha1(b"tree %d\0" % len(body) + body, usedforsecurity=False).hexdigest() == known


@pytest.mark.parametrize("page", ["noticed-late.md", "measurements/gpus.md"])
def test_pages_count_the_short_uses_that_the_records_count(page):
    text = " ".join((ROOT / "docs" / page).read_text().split())
    assert f"the service {'has ' * (page != 'noticed-late.md')}noticed {on_gpus.short_uses()}" in text


@pytest.mark.parametrize(
    ("record", "title", "row"),
    [
        ("nvidia-h200.jsonl", "# Autoclave on NVIDIA H200", "| passes | check zero: time | 32.79 |"),
        (
            "remnant-nvidia-h200.json",
            "# What the next container sees: NVIDIA H200",
            "| registers | kill | no remnant | no remnant | 20 |",
        ),
    ],
)
def test_a_record_is_printed_as_a_page(record, title, row):
    page = show.page(on_gpus.RECORDS / record)
    assert page.startswith(f"{title}\n\n")
    assert row in page


def test_a_record_names_the_tree_of_its_program(tmp_path):
    for name in (*FOLDERS, "docs"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner/a.py").write_text(name)
    (tmp_path / "scrubber/inner-b.py").write_text("")  # git sorts it before the folder
    (tmp_path / "scrubber/run").symlink_to("inner")
    (tmp_path / "scrubber/inner/a.py").chmod(0o755)

    def git(*words: str) -> str:
        run = ["git", "-c", "core.excludesFile=", *words]
        return subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    git("add", *FOLDERS)
    written = git("write-tree")
    (tmp_path / "scrubber/inner/__pycache__").mkdir()
    (tmp_path / "scrubber/inner/made.cubin").touch()  # git ignores both here
    assert tree(tmp_path) == written
    records = Records(tmp_path / "gpu.jsonl", tree(tmp_path))
    records.begin({})
    records.begin_part("clear")
    assert records.trees() == {"clear": written}


def test_a_cell_says_what_was_measured_and_what_was_not(tmp_path):
    records = Records(tmp_path / "gpu.jsonl")
    records.begin({})
    records.begin_part("clear")
    with records.path.open("ab", buffering=0) as file:
        writer = Writer(file.fileno(), "clear")
        writer.add(Measured("reserved", (3 * 2**20, 2 * 2**20, 5 * 2**20), "bytes"))
        writer.add(Measured("context", (), "bytes"))
        writer.end(1.0, "", "")
    assert on_gpus.Row("", "clear", "reserved", 2**20, "MiB").cell(records) == "3 (2 to 5, n = 3) MiB"
    assert {on_gpus.Row("", "clear", it).cell(records) for it in ("context", "other")} == {on_gpus.NOT_MEASURED}


def test_the_trial_prints_measured_beside_computed_times():
    mib, clock, bits = KNOWN
    seconds = {name: [0.03, 0.04] for name in computed.FAST_SCRUB}
    *_, last = computed.computed(mib * 2**20, computed.peak(clock, bits), seconds)
    assert last.samples == pytest.approx((120, 160))
    assert last.predicted == pytest.approx((108.5, 113.6), abs=0.1)
    assert last.because.startswith("102.0 ms at the peak")
