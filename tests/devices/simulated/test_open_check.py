"""The kernel knows whether a process has a file open, however the process keeps it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ground.private_files import locked
from scrubber.devices import shortage
from scrubber.devices.simulated import open_check
from scrubber.devices.simulated.open_check import RefusedError, is_open
from tests.node.open_programs import IN_TRANSIT, MAP, RESTLESS, WRITE
from tests.patience import WITHIN


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    path = tmp_path / "memory"
    path.write_bytes(bytes(8192))
    return path


USES = {
    "read": WRITE.replace("O_RDWR", "O_RDONLY"),
    "write": WRITE,
    "shared mapping": MAP.format(flags=1),
    "private mapping": MAP.format(flags=2),
    "in transit on a socket": IN_TRANSIT,
}


@pytest.mark.parametrize("code", USES.values(), ids=USES)
def test_a_file_is_open_until_its_holder_ends(memory: Path, launch, code: str) -> None:
    alias, closed = memory.with_name("alias"), memory.with_name("closed")
    os.link(memory, alias)
    closed.touch()
    process = launch(code, alias)
    assert [is_open([str(it) for it in files]) for files in ([memory], [closed, memory], [closed])] == [
        True,
        True,
        False,
    ]
    process.kill()
    process.wait()
    assert [is_open([str(memory)]) for _ in range(3)] == [False] * 3


def test_a_process_that_moves_its_descriptor_is_always_found(memory: Path, launch) -> None:
    launch(RESTLESS, memory)
    assert {is_open([str(memory)]) for _ in range(100)} == {True}


def test_a_check_without_an_answer_is_unknown(memory: Path) -> None:
    with pytest.raises(RefusedError):
        is_open([str(memory.with_name("missing"))])


def test_a_question_waits_while_a_worker_opens_the_file(memory: Path, launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile the file is open, and the worker shows no descriptor of it."""
    monkeypatch.setattr(open_check, "LOCKED_WITHIN", WITHIN)
    with ThreadPoolExecutor() as threads:
        with locked(memory.parent):
            worker = launch(IN_TRANSIT, memory)
            answer = threads.submit(is_open, [str(memory)])
            worker.kill()
            worker.wait()
        assert answer.result() is False


def test_beside_a_stopped_holder_of_the_lock_nothing_is_known(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_check, "LOCKED_WITHIN", 0.0)
    with ThreadPoolExecutor() as threads, locked(memory.parent):
        answer = threads.submit(is_open, [str(memory)])
        with pytest.raises(RefusedError, match="another process holds the lock of its directory") as refused:
            answer.result(WITHIN)
    assert shortage.of(refused.value) is None, "a lock that is held is no lack of tasks, although both are EAGAIN"


def test_two_simultaneous_checks_are_no_holders(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_check, "LOCKED_WITHIN", WITHIN)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _number: is_open([str(memory)]), range(5_000)))
    assert set(answers) == {False}
