"""Tenants are real processes that use the memory."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import containers, drills
from scrubber.devices.simulated.simulated_backend import Simulated
from scrubber.node.proc import BlindError
from tests.node.conftest import DEAD_LEADER
from tests.pod_groups import roots

SECRET = b"the launch code is 0000"
POD = f"pod-{uuid.uuid4()}"  # containers are known to the whole machine, other test runs included


def ended(process: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def test_a_tenant_leaves_its_secret_in_all_memory(bank) -> None:
    pid = drills.occupy(bank.root, bank.first, SECRET, POD, offset=1000)
    for about in ("cmdline", "environ"):
        assert SECRET not in Path(f"/proc/{pid}/{about}").read_bytes()
    drills.release(bank.root, bank.first)
    data, chip = bank.place(bank.first).memory.read_bytes(), bank.place(bank.first).chip.read_bytes()
    assert [data[at:].startswith(SECRET) for at in (1000, len(data) // 2, len(data) - len(SECRET))] == [True] * 3
    assert (chip.startswith(SECRET), chip.endswith(SECRET)) == (True, True)
    assert [drills.scan(bank.root, uuid, SECRET) for uuid in (bank.first, bank.second)] == [3, 0]
    assert SECRET not in bank.place(bank.second).chip.read_bytes()
    bank.place(bank.second).memory.unlink()
    with pytest.raises(DeviceError, match="No such file"):
        drills.zombie(bank.root, bank.second)


def test_a_secret_larger_than_the_chip_is_cut(bank) -> None:
    drills.occupy(bank.root, bank.first, SECRET * 50_000, POD)
    assert bank.place(bank.first).chip.stat().st_size == 2**20


def test_a_container_lives_as_long_as_any_of_its_processes(bank) -> None:
    assert POD not in containers.living()
    drills.occupy(bank.root, bank.first, SECRET, POD)
    assert POD in containers.living()
    assert POD[:-1] not in containers.living()
    drills.release(bank.root, bank.first)
    assert POD not in containers.living()


def test_a_release_ends_only_the_containers_of_that_gpu(bank) -> None:
    first = drills.occupy(bank.root, bank.first, SECRET, POD)
    second = drills.occupy(bank.root, bank.second, SECRET, POD)
    leftover = drills.zombie(bank.root, bank.first)
    assert drills.release(bank.root, bank.first) == (first,)
    assert bank.holders() == {second, leftover}


def test_a_leftover_survives_sigterm_without_owner_or_parent(bank, monkeypatch) -> None:
    monkeypatch.setenv(containers.MARK, "pod-of-the-shell")
    pid = drills.zombie(bank.root, bank.first)
    process = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGTERM)
        assert not ended(process, 0.1)
        assert containers.of(pid) is None
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        os.kill(pid, signal.SIGKILL)
        assert ended(process, 5)
    finally:
        os.close(process)


def test_a_container_belongs_to_the_node_of_its_gpus(bank, tmp_path: Path) -> None:
    pid = drills.occupy(bank.root, bank.first, SECRET, POD)
    here, elsewhere = bank.backend, Simulated(tmp_path)
    assert (here.container_of(pid), here.living().get(POD)) == (POD, pid)
    assert (elsewhere.container_of(pid), elsewhere.living().get(POD)) == (None, None)


def test_a_process_without_a_mark_has_no_container() -> None:
    assert containers.of(os.getpid()) is None
    assert containers.of(2**22 + 1) is None


def test_an_empty_environment_means_an_unknown_container(launch, tmp_path: Path) -> None:
    process = launch("import os, time; os.environ.clear(); print(1, flush=True); time.sleep(60)", tmp_path)
    assert containers.of(process.pid) is None
    with subprocess.Popen(["/bin/sleep", "60"], env={}) as bare:
        with pytest.raises(BlindError, match="its environment is empty"):
            containers.of(bare.pid)
        bare.kill()
    assert containers.of(bare.pid) is None


def test_a_process_keeps_its_container_when_its_first_thread_ends(launch, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(containers.MARK, POD)
    (tmp_path / "file").touch()
    process = launch(DEAD_LEADER, tmp_path / "file")
    if os.geteuid() != 0:
        with pytest.raises(BlindError, match="Permission denied"):
            containers.of(process.pid)
        pytest.skip("takes root, to see a thread that has ended; without, the container is unknown")
    with pytest.raises(ProcessLookupError):
        Path(f"/proc/{process.pid}/environ").read_bytes()
    assert containers.of(process.pid) == POD


def test_a_pods_control_group_counts_more_than_the_mark(running_pod, monkeypatch) -> None:
    uid, sandbox = running_pod
    monkeypatch.setenv(containers.MARK, "pod-of-somebody-else")
    assert containers.of(sandbox) == uid
    assert containers.living()[uid] == sandbox


def test_a_mark_names_no_pod_that_had_a_control_group(bank, running_pod) -> None:
    """A process outside the pod could use its GPU and pass for the owner, and keep the GPU after the pod."""
    uid, sandbox = running_pod
    outside = drills.occupy(bank.root, bank.first, SECRET, uid)
    assert bank.backend.container_of(outside) is None
    assert bank.backend.living()[uid] == sandbox
    os.kill(sandbox, signal.SIGKILL)
    os.waitid(os.P_PID, sandbox, os.WEXITED | os.WNOWAIT)  # the fixture reaps it
    for root in roots().values():
        (root / f"kubepods/pod{uid}").rmdir()
    assert bank.backend.container_of(outside) is None
    assert uid not in bank.backend.living()
