"""The directory with the files of a run is a new one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from containers import result_directory
from ground.errors import FatalError

BEGAN = datetime(2026, 11, 30, 7, 5, 9, tzinfo=UTC)


def test_each_run_of_a_second_gets_its_own_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = [result_directory.make(None, "access", BEGAN) for _ in range(3)]
    names = ["access-20261130-070509", "access-20261130-070509-2", "access-20261130-070509-3"]
    assert (list(map(str, places)), sorted(path.name for path in tmp_path.iterdir())) == (names, names)


@pytest.mark.parametrize("to", ["taken", "missing/inside"])
def test_a_directory_that_cannot_be_made_is_named(tmp_path, to):
    (tmp_path / "taken").mkdir()
    with pytest.raises(FatalError, match=f"cannot write to {Path(tmp_path, to)}: "):
        result_directory.make(tmp_path / to, "access", BEGAN)
