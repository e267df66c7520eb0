"""Simulated GPUs whose memory is a device node: the same GPUs as those of files, and a number beside."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from scrubber.core.model import NodeKind
from scrubber.core.use_counter import NoUseCounter
from scrubber.devices.base import OpenFiles
from scrubber.devices.simulated import drills, layout, loops, open_check
from scrubber.node.processes import Processes
from tests import few_rights
from tests.devices.conftest import MEMORY_BYTES, Bank
from tests.node.open_programs import IN_TRANSIT, MAP, WRITE

SECRET = b"a secret of the tenant"
CLOSED = OpenFiles(0, frozenset())
BLKFLSBUF = 0x1261


@pytest.fixture
def bank(nodes: Bank) -> Bank:
    """Two small GPUs with device nodes."""
    return nodes


def test_each_gpu_keeps_a_number_of_its_own(bank: Bank) -> None:
    numbers = [bank.backend.numbers(uuid) for uuid in (bank.first, bank.second)]
    assert all(number.kind is NodeKind.BLOCK for mine in numbers for number in mine)
    assert len(numbers[0] | numbers[1]) == 2
    bank.place(bank.first).memory.write_bytes(SECRET)
    layout.make_nodes(bank.root)
    assert [bank.backend.numbers(uuid) for uuid in (bank.first, bank.second)] == numbers
    assert bank.place(bank.first).memory.read_bytes() == SECRET.ljust(MEMORY_BYTES, b"\0")


MAKES = """
import sys
from pathlib import Path
from scrubber.devices.simulated import layout
print(layout.make_nodes(Path(sys.argv[1])))
"""
UNIT = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$0" && exec "$@"']  # as ProtectSystem=strict does


def test_the_next_start_of_a_unit_finds_the_numbers(bank: Bank) -> None:
    """Each start of a unit has a mount namespace, and the kernel says the path of a file in the one that has ended."""
    for place in layout.places(bank.root):
        layout.remove_node(place)
    start = [*UNIT, str(bank.root), sys.executable, "-c", MAKES, str(bank.root)]
    numbers = []
    for _ in range(2):
        assert subprocess.run(start, capture_output=True, text=True, check=True).stdout == "\n"
        numbers.append([bank.backend.numbers(uuid) for uuid in (bank.first, bank.second)])
    assert numbers[0] == numbers[1] != [frozenset(), frozenset()]


def test_a_file_put_in_the_place_of_another_is_noticed(bank: Bank) -> None:
    """As after a copy of the directory was put back: the device leads to the file that was there."""
    place = bank.place(bank.first)
    place.cells.rename(place.cells.with_name("taken"))
    place.cells.write_bytes(bytes(MEMORY_BYTES))
    assert not loops.leads_to(place.memory, place.cells)
    loops.detach(place.memory)
    layout.make_nodes(bank.root)
    assert loops.leads_to(place.memory, place.cells)


def test_without_the_right_the_message_names_it(bank: Bank) -> None:
    layout.remove_node(bank.place(bank.first))
    said = few_rights.printed(MAKES, bank.root)
    assert "takes the capability CAP_MKNOD" in said
    assert bank.place(bank.first).memory.is_file()


def test_a_number_that_leads_elsewhere_is_replaced(bank: Bank) -> None:
    """As after a reboot: the first number is free, or leads to the memory of another GPU."""
    first, second = bank.place(bank.first), bank.place(bank.second)
    second.memory.write_bytes(SECRET)
    loops.detach(first.memory)
    first.memory.unlink()
    os.mknod(first.memory, stat.S_IFBLK | 0o600, second.memory.stat().st_rdev)
    layout.make_nodes(bank.root)
    assert bank.backend.numbers(bank.first) != bank.backend.numbers(bank.second)
    assert not any(first.memory.read_bytes())


def test_the_memory_becomes_a_file_again_with_its_bytes(bank: Bank) -> None:
    place = bank.place(bank.first)
    place.memory.write_bytes(SECRET)
    layout.remove_node(place)
    assert place.memory.is_file()
    assert place.memory.read_bytes() == SECRET.ljust(MEMORY_BYTES, b"\0")
    assert bank.backend.numbers(bank.first) == frozenset()


def found(bank: Bank, uuid: str) -> set[int]:
    """The processes that a search finds. As with a real GPU, the driver does not list them."""
    assert bank.backend.has_holders(uuid) is False
    assert bank.backend.listed_holders(uuid) == frozenset()
    search = Processes(Path("/proc"), lambda _pid: None, whole_node=False)
    return {holder.pid for holder in search.holders({uuid: bank.backend.files(uuid)})[uuid] or ()}


def test_who_opens_a_node_of_his_own_is_found(bank: Bank, tmp_path: Path) -> None:
    own = tmp_path / "own"
    os.mknod(own, stat.S_IFBLK | 0o600, bank.place(bank.first).memory.stat().st_rdev)
    with own.open("rb") as opened, subprocess.Popen(["sleep", "60"], stdin=opened) as process:
        opened.close()
        assert [found(bank, uuid) for uuid in (bank.first, bank.second)] == [{process.pid}, set()]
        process.kill()


HELD = {"read": WRITE.replace("O_RDWR", "O_RDONLY"), "write": WRITE, "mapping": MAP.format(flags=1)}


@pytest.mark.parametrize("code", [*HELD.values(), IN_TRANSIT], ids=[*HELD, "in transit on a socket"])
def test_an_open_node_is_explained_by_a_process_or_not(bank: Bank, tmp_path: Path, launch, code: str) -> None:
    own = tmp_path / "own"
    os.mknod(own, stat.S_IFBLK | 0o600, bank.place(bank.first).memory.stat().st_rdev)
    process = launch(code, own)
    shown = OpenFiles(1, frozenset()) if code == IN_TRANSIT else OpenFiles(None, frozenset({process.pid}))
    assert [bank.backend.open_files(uuid) for uuid in (bank.first, bank.second)] == [shown, CLOSED]
    process.kill()
    process.wait()
    assert bank.backend.open_files(bank.first) == CLOSED


def test_a_node_that_drops_its_pages_is_no_less_open(bank: Bank, launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a node does that is short of memory."""
    memory = bank.place(bank.first).memory
    launch(IN_TRANSIT, memory)
    is_cached = open_check._is_cached

    def dropping(device: int, page: int) -> bool:
        fcntl.ioctl(device, BLKFLSBUF)
        return is_cached(device, page)

    monkeypatch.setattr(open_check, "_is_cached", dropping)
    assert open_check.is_open([str(memory)])


def test_a_tenant_finds_its_secret_and_a_scrub_takes_it(bank: Bank) -> None:
    pid = drills.occupy(bank.root, bank.first, SECRET, "job")
    assert drills.scan(bank.root, bank.first, SECRET) == 3
    assert drills.release(bank.root, bank.first) == (pid,)
    cleared = bank.gpu(bank.first)
    found = cleared.clear(b"key", ("random", "zero"), lambda _done, _all: None)
    assert (found.covered_bytes, found.residue_bytes, found.mismatch) == (MEMORY_BYTES, 3 * len(SECRET), None)
    assert cleared.verify(lambda _done, _all: None).mismatch is None
    assert not any(bank.place(bank.first).memory.read_bytes())


def test_pages_that_a_tenant_kept_hold_nothing_of_the_next(bank: Bank) -> None:
    """A pipe has the pages of the memory itself, not a copy of them."""
    memory, (kept, into) = bank.place(bank.first).memory, os.pipe()
    memory.write_bytes(SECRET.ljust(4096, b"\0"))
    with memory.open("r+b", buffering=0) as held:  # or the kernel would drop the pages with the last close
        os.splice(held.fileno(), into, 4096, offset_src=0)
        bank.gpu(bank.first).clear(b"key", ("zero",), lambda _done, _all: None)
        held.seek(0)
        held.write(b"a secret of the next one")
    assert os.read(kept, 4096).startswith(SECRET)
    os.close(kept)
    os.close(into)


def test_a_pod_gets_a_device_and_no_mount(bank: Bank, tmp_path: Path) -> None:
    layout.write_cdi(tmp_path, layout.places(bank.root))
    devices = json.loads((tmp_path / layout.CDI_NAME).read_text())["devices"]
    numbers = {device["name"]: device["containerEdits"] for device in devices}
    for index, uuid in enumerate((bank.first, bank.second)):
        [number] = bank.backend.numbers(uuid)
        node = {"type": "b", "major": number.major, "minor": number.minor, "permissions": "rw"}
        assert numbers[uuid] == {"deviceNodes": [{"path": layout.CDI_SEEN_AS.format(index=index), **node}]}


def test_a_node_without_the_fence_has_no_use_counter(bank: Bank) -> None:
    assert isinstance(bank.backend.read_uses(bank.first), NoUseCounter)
