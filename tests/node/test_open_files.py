"""What a process holds is looked for where it may be looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scrubber.node.open_files import Search, Timer
from tests.node.conftest import NodeProc


def test_a_process_that_is_closed_to_us_is_known_for_that_before_its_files_are_listed(
    tmp_path: Path, node_proc: NodeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, process = tmp_path / "memory", node_proc.add(4711, "0::/")
    memory.touch()
    listed, list_, open_ = [], os.listdir, os.open

    def listing(path: str) -> list[str]:
        listed.append(path)
        return list_(path)

    def refusing(path: str, *rest: int) -> int:
        if path == f"{process}/maps":
            raise PermissionError(path)
        return open_(path, *rest)

    monkeypatch.setattr(os, "listdir", listing)
    search = Search({"gpu": [str(memory)]})
    assert search.devices(str(process), Timer()) == frozenset()
    assert listed == [f"{process}/fd"]
    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(PermissionError):
        search.devices(str(process), Timer())
    assert listed == [f"{process}/fd"]
