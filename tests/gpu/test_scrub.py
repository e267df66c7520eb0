"""The scrub on a real GPU: what it overwrites, what it finds, what it leaves. Memory is overwritten, nothing else.

Only an idle GPU is touched; on any other one these tests are skipped. GPU_MEMORY_LIMIT, in bytes, and GPU_TEST_SECONDS
make them smaller, all but the one that takes all memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.trial.card import Where
from remnant.idle import IdleObserver, InUse
from scrubber.cuda import cupy_loading
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import boards
from scrubber.devices.nvidia.boards import Board
from scrubber.devices.nvidia.holders import NOISE
from tests.gpu.inside import CANARY, DEEDS, KERNELS

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
BOX = 10.0  # seconds of the self-test
WITHIN = 100.0  # seconds for any deed
GIVEN_BACK_WITHIN = 10.0
RESERVED_SHARED = 1024  # bytes a block that newer architectures keep for the system


@pytest.fixture
def idle(host, library) -> IdleObserver:
    beside = filter(None, os.environ.get("GPU_BESIDE", "").split(os.pathsep))
    return IdleObserver(host, library, tuple(beside), int(os.environ.get("GPU_HOLDER", "0")))


@pytest.fixture
def board(idle, library) -> Iterator[Board]:
    """That GPU, without a holder before and after."""
    if (lacks := cupy_loading.missing()) is not None:
        pytest.skip(lacks)
    try:
        found = idle.board(os.environ.get("GPU_UUID", "0"))
        idle.expect_no_holder(found)
    except InUse as error:
        pytest.skip(f"somebody is at work on it: {error}")
    except DeviceError as error:
        pytest.skip(f"it is none to be worked on: {error}")
    library.close()
    yield found
    idle.wait_until_free(found, GIVEN_BACK_WITHIN)


@pytest.fixture
def where(board, host) -> Where:
    limit = os.environ.get("GPU_MEMORY_LIMIT")
    box = float(os.environ.get("GPU_TEST_SECONDS", BOX))
    return Where(
        board.uuid,
        board.pci_address,
        board.minor,
        rounds=1,
        limit=None if limit is None else int(limit),
        seconds=box,
        root=str(host.root),
        pid_namespace=host.pid_namespace,
    )


def command(deed: str) -> list[str]:
    assert deed in DEEDS
    return [sys.executable, "-m", "tests.gpu.inside", deed]


def does(deed: str, where: Where) -> Any:  # noqa: ANN401 - whatever was seen
    """A deed in a process of its own, and what came of it."""
    done = subprocess.run(
        command(deed),
        input=json.dumps(asdict(where)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def doing(deed: str, where: Where) -> Iterator[subprocess.Popen[str]]:
    """A deed that goes on for ever, from its first line on."""
    with subprocess.Popen(
        command(deed), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(asdict(where)))
            process.stdin.close()
            assert process.stdout.readline() == "null\n"
            yield process
        finally:
            process.kill()


def test_the_image_for_this_device_has_every_kernel(where) -> None:
    assert does("kernels", where) == list(KERNELS)


def test_the_kernels_compute_what_the_model_computes(where) -> None:
    assert does("model", where) == []


def test_a_bit_that_flips_anywhere_is_found_where_it_is(where) -> None:
    assert does("flips", where) == []


def test_all_but_a_hundredth_of_the_memory_can_be_taken(where, board, nvml, tell) -> None:
    usage = boards.memory(nvml, nvml.handle(board.uuid))
    allocatable = usage.total - usage.reserved
    taken = does("ladder", replace(where, limit=None))
    tell(f"taken: {taken} of {allocatable} bytes, {100 * taken / allocatable:.3f} %")
    assert 0.99 * allocatable <= taken <= allocatable


def test_a_clear_finds_what_was_left_and_leaves_zeros(where, tell) -> None:
    seen = does("cleared", where)
    tell(f"cleared and verified: {seen['size']} bytes")
    assert seen["done"]["residue_bytes"] == 2 * len(CANARY)
    assert seen["done"]["residue_at"][0] == seen["planted_at"][0]
    assert (seen["done"]["mismatch"], seen["verified"], seen["zeros"]) == (None, None, [True, True])
    assert seen["planted"] == {"offset": seen["size"] - 1, "expected": 0, "got": 1, "count": 1}


def test_the_memory_on_the_chip_is_overwritten_in_every_unit(where, tell) -> None:
    done = does("scratched", where)
    own, unreached = done.pop("own"), done.pop("unreached_bytes") or 0
    tell(f"scratched: {done}; shared memory that the driver calls the kernel's own: {own} bytes of {done.pop('block')}")
    tell(f"shared memory that no program can write: {unreached} bytes")
    assert own in (0, RESERVED_SHARED)
    assert unreached <= 2 * RESERVED_SHARED * done["units"]
    assert done == {"units": done["units"], "reached": done["units"], "faulty": 0}
    assert done["units"] > 0


def test_every_unit_computes_the_same_to_the_last_bit(where) -> None:
    first, again, other = does("computed", where)
    assert len(first) == does("units", where)
    assert first == again
    assert {wrong for _, wrong, _ in (*first, *other)} == {0}
    assert len({digest for _, _, digest in first}) == len({digest for _, _, digest in other}) == 1
    assert first[0][2] != other[0][2]


def test_a_healthy_gpu_passes_its_self_test_in_its_time(where, tell) -> None:
    done = does("tested", where)
    tell(f"self-test: {done}")
    assert (done["mismatch"], done["deviating"], done["zero"]) == (None, [], True)
    assert {"address", "inversions", "arithmetic"} <= set(done["tests"])
    assert done["seconds"] < 1.5 * where.seconds + 1


def test_a_killed_worker_leaves_no_memory_in_use(where, board, idle, tell) -> None:
    def used() -> int:
        with idle.library.session() as session:
            return int(boards.memory(session, session.handle(board.uuid)).used)

    before = used()
    with doing("endless", where) as worker:
        during = used()
        worker.kill()
        worker.wait()
        began = time.monotonic()
        idle.wait_until_free(board, GIVEN_BACK_WITHIN)
        tell(f"after a kill: {during - before} bytes given back within {time.monotonic() - began:.3f} s")
    assert during > before + NOISE
    assert used() <= before + NOISE
    assert does("zeros", where) > 0
