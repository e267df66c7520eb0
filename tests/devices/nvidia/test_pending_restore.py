"""What a reset took and could not give back, because it was killed, comes back all the same."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError
from scrubber.devices.nvidia import locks, pending_restore, reset, slices
from scrubber.devices.nvidia.gpu import NvidiaGpu
from scrubber.devices.nvidia.pending_restore import PendingRestore, PendingRestoreFiles
from tests.devices.nvidia import bench
from tests.devices.nvidia.bench import no_holders, slice_of, target, there, touch
from tests.fakes.nvml.machine import Slice

CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
gpu, cut, root = bench.gpu, bench.cut, bench.root  # fixtures
pytestmark = pytest.mark.usefixtures("root")


class Killed(BaseException):
    """As the kernel ends a worker: nothing of ours runs any more."""


def die(*_: object, **__: object) -> None:
    raise Killed


@pytest.fixture
def daemon(monkeypatch) -> None:
    """The persistence daemon answers, and lets go when it is told."""
    monkeypatch.setattr("scrubber.devices.nvidia.preconditions.persistence_daemon", lambda _host: 1)


def whole(rig):
    return touch(rig, 0)


def notes(rig) -> PendingRestoreFiles:
    return PendingRestoreFiles(rig.settings, rig.gpu(0).uuid)


def files(rig) -> list[str]:
    return sorted(path.name for path in rig.settings.glob("*resetting*"))


@pytest.fixture
def cut_off(rig, gpu, cut, root, daemon, monkeypatch) -> tuple[str, ...]:  # noqa: ARG001 - they come first
    """Its reset was done, and the worker was killed before it gave anything back."""
    gpu.set(persistence_mode=1)
    with monkeypatch.context() as patch:
        patch.setattr(reset, "wait_until_back", die)
        with pytest.raises(Killed):
            slice_of(rig, cut[0]).reset()
    assert (there(rig), gpu["persistence_mode"]) == (set(), "0")
    assert files(rig) == [f"{gpu.uuid}.resetting.json"]
    found: tuple[str, ...] = cut
    return found


def whole_again(rig, cut) -> None:
    assert (there(rig), rig.gpu(0)["persistence_mode"], files(rig)) == (set(cut), "1", [])


@pytest.mark.parametrize(
    "deed",
    [
        pytest.param(lambda rig, cut: slice_of(rig, cut[1]).reset(), id="the next reset"),
        pytest.param(lambda rig, _cut: whole(rig).restore_settings(), id="the settings of the GPU"),
        pytest.param(lambda rig, cut: slice_of(rig, cut[2]).restore_settings(), id="the settings of a slice"),
    ],
)
def test_the_next_step_restores_what_an_interrupted_reset_took(rig, cut_off, deed) -> None:
    file = notes(rig).file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (pending,) = notes(rig).read().values()
    assert pending.persistence
    assert slices.uuids(pending.layout) == frozenset(cut_off)
    deed(rig, cut_off)
    whole_again(rig, cut_off)


def test_a_restore_stays_pending_however_often_it_is_interrupted(rig, cut_off, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(slices, "_create_parts", die)  # in the middle of the first one
        for _ in range(2):
            with pytest.raises(Killed):
                slice_of(rig, cut_off[0]).reset()
    assert [bool(left) for left in notes(rig).read().values()] == [True]
    whole(rig).restore_settings()
    whole_again(rig, cut_off)


@pytest.mark.usefixtures("cut_off")
@pytest.mark.parametrize("deed", ["reset", "restore_settings"])
def test_a_new_layout_of_an_operator_is_not_overwritten(rig, deed: str) -> None:
    """Only what has room is restored."""
    new = rig.cut(0, Slice("3g.71gb", start=4))
    getattr(whole(rig), deed)()
    assert set(new) < there(rig)
    assert (len(there(rig)), files(rig)) == (2, [])
    assert rig.gpu(0)["gi.1.profile"] == "2"  # of the three: one had no place left, and one began where another is


def test_a_restore_is_pending_while_one_of_two_slices_lacks() -> None:
    first, second = slices.Part("MIG-1", 1, 0, 1), slices.Part("MIG-2", 1, 1, 1)
    other = slices.Part("MIG-3", 2, 0, 2)
    both = pending_restore.merged(
        PendingRestore(False, (slices.Instance(9, 0, 4, (part,)),)) for part in (first, second, other)
    )
    assert both.layout == (slices.Instance(9, 0, 4, (first, second)),)


def test_a_restore_does_not_count_as_a_reset(rig, cut_off, monkeypatch) -> None:
    """Else scrubs of other slices would fail: they could not prove that those have no holder."""
    backend, seen = rig.seen(), []
    finish = pending_restore.apply_all

    def looked_at(*about: Any) -> None:  # noqa: ANN401 - whatever it is, it is passed on
        seen.append(backend.in_reset(rig.gpu(0).uuid))
        with pytest.raises(NotNowError), locks.claimed(bench.lock(rig)):  # no reset begins meanwhile
            pass
        with pytest.raises(NotNowError), locks.claimed(locks.of_slices(bench.lock(rig)), shared=True):  # and no slice
            pass
        finish(*about)

    monkeypatch.setattr(pending_restore, "apply_all", looked_at)
    whole(rig).restore_settings()
    assert seen == [False]
    whole_again(rig, cut_off)


@pytest.mark.usefixtures("cut_off")
def test_a_restore_stays_pending_however_often_it_fails(rig) -> None:
    rig.gpu(0).fail(CREATE, 999)
    with pytest.raises(DeviceError, match=r"its slices did not come back.*repair it and remove .*resetting.json"):
        whole(rig).restore_settings()
    with pytest.raises(DeviceError, match="cannot reset: its slices did not come back"):
        whole(rig).reset()
    assert files(rig) == [f"{rig.gpu(0).uuid}.resetting.json"]


@pytest.mark.parametrize("of", [Path, locks.of_slices], ids=["a reset", "a worker that creates slices"])
def test_no_restore_runs_while_another_process_is_at_work(rig, cut_off, of) -> None:
    with locks.claimed(of(bench.lock(rig))), pytest.raises(NotNowError):
        slice_of(rig, cut_off[0]).restore_settings()
    assert there(rig) == set()


def test_an_earlier_releases_restore_of_one_slice_is_applied(rig, cut_off) -> None:
    notes(rig).file().rename(rig.settings / f"{rig.gpu(0).uuid}.{cut_off[0]}.resetting.json")
    whole(rig).restore_settings()
    whole_again(rig, cut_off)


@pytest.mark.usefixtures("daemon")
def test_a_finished_or_refused_reset_leaves_no_pending_restore(rig, gpu, cut) -> None:
    gpu.set(persistence_mode=1)
    reset.reset(target(rig))
    assert files(rig) == []
    rig.machine.set({"smi.reset": "in-use"})
    with pytest.raises(NotNowError):
        reset.reset(target(rig))
    assert (there(rig), gpu["persistence_mode"], files(rig)) == (set(cut), "1", [])


def test_a_lost_gpu_keeps_its_pending_restore(rig, gpu, cut) -> None:
    rig.machine.set({"smi.then.lost": 1})
    with pytest.raises(DeviceLostError):
        reset.reset(target(rig))
    assert files(rig)
    rig.machine.set({"smi.then.lost": None})
    gpu.set(lost=0)
    whole(rig).restore_settings()
    assert (there(rig), files(rig)) == (set(cut), [])


@pytest.mark.usefixtures("gpu")
def test_a_gpu_with_default_settings_has_no_pending_restore(rig, monkeypatch) -> None:
    monkeypatch.setattr(reset, "wait_until_back", die)
    with pytest.raises(Killed):
        whole(rig).reset()
    assert files(rig) == []


def test_a_reset_whose_restore_cannot_be_stored_is_not_begun(rig, cut, monkeypatch) -> None:
    def refuse(_file: int) -> None:
        raise OSError(28, "No space left on device")

    whole(rig).restore_settings()
    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(DeviceError, match=r"cannot store what a reset must restore: .*No space left"):
        slice_of(rig, cut[0]).reset()
    assert (bench.by_tool(rig), there(rig)) == ([], set(cut))


# --- a GPU that is in no inventory ---


def restore_all(rig, backend) -> None:
    """As the service has a worker do it."""
    [(gpu, address)] = backend.pending_restores().items()
    assert gpu == rig.gpu(0).uuid
    assert NvidiaGpu(address.place, no_holders, rig.library).restore_settings().drift == ()


def test_a_gpu_without_slices_is_found_by_its_pending_restore(rig, cut_off) -> None:
    backend = rig.backend()
    assert backend.pending_restores() == {}  # its address is unknown
    assert not {info.uuid for info in backend.inventory()} & {rig.gpu(0).uuid, *cut_off}
    with locks.claimed(bench.lock(rig)):
        assert backend.pending_restores() == {}
    backend.release_driver()
    assert list(backend.pending_restores()) == [rig.gpu(0).uuid]
    backend.reacquire_driver()
    rig.gpu(0).set(compute_mode=3)
    restore_all(rig, backend)
    whole_again(rig, cut_off)
    assert rig.gpu(0)["compute_mode"] == "3"  # a restore changes no setting
    assert backend.pending_restores() == {}


# --- the file ---


def pending() -> PendingRestore:
    part = slices.Part("MIG-1", 2, 0, 3)
    return PendingRestore(persistence=True, layout=(slices.Instance(9, 0, 4, (part,)),))


def test_a_stored_restore_is_read_back(tmp_path) -> None:
    kept = PendingRestoreFiles(tmp_path / "new", "GPU-1")
    kept.write(kept.file(), pending())
    assert kept.read() == {kept.file(): pending()}
    assert PendingRestoreFiles(tmp_path / "new", "GPU-2").read() == {}
    kept.drop(kept.read())
    assert list((tmp_path / "new").iterdir()) == []


def test_a_stored_restore_is_synced_to_disk(tmp_path, monkeypatch) -> None:
    synced = []

    def sync(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").readlink())

    monkeypatch.setattr("os.fsync", sync)
    kept = PendingRestoreFiles(tmp_path, "GPU-1")
    kept.write(kept.file(), pending())
    assert synced[0].name.startswith(f".{kept.file().name}.")
    assert synced[1:] == [tmp_path]


@pytest.mark.parametrize("change", [{"more": 1}, {"layout": [{"profile": 9}]}, None])
def test_a_changed_restore_file_is_reported_and_not_deleted(tmp_path, change: dict[str, object] | None) -> None:
    kept = PendingRestoreFiles(tmp_path, "GPU-1")
    kept.write(kept.file(), pending())
    text = kept.file().read_text()
    spoilt = text[:-5] if change is None else json.dumps(json.loads(text) | change)
    kept.file().write_text(spoilt)
    with pytest.raises(DeviceError, match=r"cannot read the pending restore in .*GPU-1.resetting.json"):
        kept.read()
    assert kept.file().read_text() == spoilt
