"""Settings are restored, and drift is reported."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pynvml
import pytest

from ground.documents import strict_json
from policies.hardware import Setting
from scrubber.core.measured import Restored
from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError
from scrubber.devices.nvidia import settings
from scrubber.devices.nvidia.settings import StoredSettings
from tests.devices.nvidia.bench import captured, kept, touch
from tests.fakes.nvml.machine import Slice


@dataclass(frozen=True)
class Change:
    """What a tenant does to a setting."""

    name: str
    key: str
    value: int
    drift: str
    getter: str
    setter: str

    def make(self, gpu) -> int:
        """Do it; what it was."""
        before = int(gpu[self.key])
        gpu.set({self.key: self.value})
        return before


CLOCKS = "memory 3201 MHz, graphics"
CHANGES = (
    Change("persistence", "persistence_mode", 0, "off -> on",
           "nvmlDeviceGetPersistenceMode", "nvmlDeviceSetPersistenceMode"),
    Change("ecc", "ecc.pending", 0, "off -> on", "nvmlDeviceGetEccMode", "nvmlDeviceSetEccMode"),
    Change("compute_mode", "compute_mode", 3, "exclusive-process -> default",
           "nvmlDeviceGetComputeMode", "nvmlDeviceSetComputeMode"),
    Change("power_limit", "power.limit", 450000, "450 W -> 700 W",
           "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceSetPowerManagementLimit"),
    Change("application_clocks", "clock.app.0", 1200, f"{CLOCKS} 1200 MHz -> {CLOCKS} 1980 MHz",
           "nvmlDeviceGetApplicationsClock", "nvmlDeviceResetApplicationsClocks"),
)  # fmt: skip
each_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)


@pytest.fixture
def gpu(rig, tmp_path):
    """The first GPU, whose settings were kept when it was first seen."""
    file = kept(tmp_path)
    with rig.library.session() as session:
        settings.first_seen(file, session, rig.gpu(0).uuid)
    return touch(rig, 0, first_seen=str(file))


def test_every_setting_has_a_change_here() -> None:
    assert {change.name for change in CHANGES} == {field.name for field in fields(StoredSettings)} - {
        "mig",
        "layout",
    }


@each_change
def test_drift_is_reported_with_both_values_and_restored(rig, gpu, change: Change) -> None:
    before = change.make(rig.gpu(0))
    assert gpu.restore_settings().drift == (f"{change.name}: {change.drift}",)
    assert int(rig.gpu(0)[change.key]) == before
    assert gpu.restore_settings().drift == ()


UNKNOWN, UNTOLD = pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_NOT_SUPPORTED
# What the driver does, with {get} and {set} for the calls of a setting, and the words of the error.
FAULTS: dict[str, tuple[dict[str, int], str]] = {
    "it does not take": (
        {"gpu.0.stubborn.{key}": 1, "gpu.0.stubborn.clock.app.1": 1, "gpu.0.stubborn.clock.app.2": 1},
        "it was set to {new} and reads {old}",
    ),
    "it fails": ({"gpu.0.fail.{set}": UNKNOWN}, "{set} failed"),
    "it cannot be read": ({"gpu.0.fail.{get}": UNKNOWN}, "{get} failed"),
    "it cannot be set": ({"gpu.0.fail.{set}": UNTOLD, "gpu.0.fail.nvmlDeviceSetApplicationsClocks": UNTOLD}, ""),
    "rights are missing": ({"privileged": 0}, "root is needed"),
}


@each_change
@pytest.mark.parametrize("fault", FAULTS)
def test_drift_that_is_not_restored_is_an_error(rig, gpu, change: Change, fault: str) -> None:
    old, new = change.drift.split(" -> ")
    about = {"key": change.key, "get": change.getter, "set": change.setter, "old": old, "new": new}
    change.make(rig.gpu(0))
    state, words = FAULTS[fault]
    rig.machine.set({key.format(**about): value for key, value in state.items()})
    with pytest.raises(DeviceError, match=f"cannot restore settings: {change.name}: {words.format(**about)}"):
        gpu.restore_settings()


@each_change
def test_a_setting_that_fails_does_not_stop_the_others(rig, gpu, change: Change) -> None:
    for other in CHANGES:
        other.make(rig.gpu(0))
    rig.gpu(0).fail(change.setter, UNKNOWN)
    with pytest.raises(DeviceError, match=f"cannot restore settings: {change.name}: {change.setter} failed") as caught:
        gpu.restore_settings()
    assert not [other.name for other in CHANGES if other is not change and other.name in str(caught.value)]
    rig.gpu(0).fail(change.setter, None)
    assert gpu.restore_settings().drift == (f"{change.name}: {change.drift}",)


@each_change
def test_an_unsupported_setting_cannot_drift(rig, gpu, change: Change) -> None:
    change.make(rig.gpu(0))
    rig.gpu(0).fail(change.getter, UNTOLD)
    assert getattr(captured(rig), change.name) is None
    assert gpu.restore_settings().drift == ()


def test_locked_clocks_are_unlocked_without_a_report(rig, gpu) -> None:
    rig.gpu(0).set({"clock.locked.gpu": "210 300", "clock.locked.memory": "405 405"})
    assert gpu.restore_settings().drift == ()
    assert (rig.gpu(0)["clock.locked.gpu"], rig.gpu(0)["clock.locked.memory"]) == ("none", "none")


def test_a_setting_that_the_policy_leaves_is_not_touched(rig) -> None:
    tuned = {
        "persistence_mode": "0", "ecc.pending": "0", "compute_mode": "3",
        "power.limit": "452500", "clock.app.0": "1500", "clock.locked.gpu": "210 1410",
    }  # fmt: skip
    touch(rig, 0).restore_settings()  # the first look
    rig.gpu(0).set(tuned)
    begun = len(rig.machine.calls())
    leave = [it.value for it in Setting]
    assert touch(rig, 0, left=leave).restore_settings() == Restored()
    assert {key: rig.gpu(0)[key] for key in tuned} == tuned
    assert [call for _, call, _ in rig.machine.calls()[begun:] if "Set" in call or "Reset" in call] == []
    rig.gpu(0).set({"ecc.current": 0})
    assert touch(rig, 0, left=leave).restore_settings() == Restored()  # another ECC mode is in force
    leave.remove("locked_clocks")
    touch(rig, 0, left=leave).restore_settings()
    assert rig.gpu(0)["clock.locked.gpu"] == "none"


def test_missing_rights_are_no_fault_of_the_device(rig, gpu) -> None:
    rig.gpu(0).fail("nvmlDeviceResetGpuLockedClocks", pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(NotNowError):
        gpu.restore_settings()
    rig.gpu(0).set({"power.limit": 450000})
    rig.gpu(0).fail("nvmlDeviceSetPowerManagementLimit", UNKNOWN)
    with pytest.raises(DeviceError) as caught:
        gpu.restore_settings()
    assert caught.type is DeviceError


@pytest.mark.parametrize("call", ["nvmlDeviceResetGpuLockedClocks", "nvmlDeviceResetMemoryLockedClocks"])
def test_a_failure_to_unlock_supported_clocks_is_an_error(rig, gpu, call: str) -> None:
    rig.gpu(0).fail(call, UNTOLD)
    assert gpu.restore_settings().drift == ()
    rig.gpu(0).fail(call, UNKNOWN)
    with pytest.raises(DeviceError, match=r"cannot restore settings: locked_clocks\..*: nvmlDeviceReset"):
        gpu.restore_settings()


def test_the_drivers_default_counts_more_than_what_was_seen_first(rig, tmp_path) -> None:
    """A tenant was there before us."""
    known_defaults = CHANGES[2:]
    for change in known_defaults:
        change.make(rig.gpu(0))
    drift = touch(rig, 0, first_seen=str(kept(tmp_path))).restore_settings().drift
    assert drift == tuple(f"{change.name}: {change.drift}" for change in known_defaults)


def test_without_a_default_what_was_seen_first_counts(rig, tmp_path) -> None:
    rig.gpu(0).set({"persistence_mode": 0, "ecc.pending": 0, "ecc.current": 0})
    gpu = touch(rig, 0, first_seen=str(kept(tmp_path)))
    assert gpu.restore_settings().drift == ()
    rig.gpu(0).set({"persistence_mode": 1, "ecc.pending": 1})
    assert gpu.restore_settings().drift == ("persistence: on -> off", "ecc: on -> off")


def test_empty_settings_first_seen_restore_only_defaults(rig, tmp_path) -> None:
    (tmp_path / "settings.json").write_bytes(strict_json.encode(StoredSettings()))
    for change in CHANGES:
        change.make(rig.gpu(0))
    drift = touch(rig, 0, first_seen=str(tmp_path / "settings.json")).restore_settings().drift
    assert drift == tuple(f"{change.name}: {change.drift}" for change in CHANGES[2:])


ONLY_A_RESET = "cannot restore settings: ecc.* is off in force and must be on: only a reset changes it"


def test_ecc_that_only_a_reset_brings_back_never_passes(rig, gpu) -> None:
    rig.gpu(0).set({"ecc.current": 0, "ecc.pending": 0})
    for _ in range(2):
        with pytest.raises(DeviceError, match=ONLY_A_RESET):
            gpu.restore_settings()
        assert rig.gpu(0)["ecc.pending"] == "1"  # for the reset that follows
    rig.gpu(0).set({"ecc.current": 1})
    assert gpu.restore_settings().drift == ()


def test_ecc_off_on_a_slices_gpu_never_passes(rig, tmp_path) -> None:
    (uuid,) = rig.cut(0, Slice("3g.71gb"))
    slice_ = touch(rig, 0, uuid=uuid, parent=rig.gpu(0).uuid, first_seen=str(kept(tmp_path)))
    assert slice_.restore_settings().drift == ()
    rig.gpu(0).set({"ecc.current": 0})
    with pytest.raises(DeviceError, match=ONLY_A_RESET):
        slice_.restore_settings()


def test_a_pending_change_of_mig_mode_is_undone(rig, gpu) -> None:
    rig.gpu(0).set({"mig_mode.pending": 1, "mig_mode.by_reset": 1})
    assert gpu.restore_settings().drift == ("mig: on -> off",)
    assert (rig.gpu(0)["mig_mode.current"], rig.gpu(0)["mig_mode.pending"]) == ("0", "0")


def test_an_active_change_of_mig_mode_is_only_reported(rig, tmp_path) -> None:
    rig.gpu(0).set({"mig_mode.current": 1, "mig_mode.pending": 1})
    gpu = touch(rig, 0, first_seen=str(kept(tmp_path)))
    assert gpu.restore_settings().drift == ()
    rig.gpu(0).set({"mig_mode.current": 0, "mig_mode.pending": 0})
    assert gpu.restore_settings().drift == ("mig: off, first seen on (left: operators divide GPUs)",)
    assert rig.gpu(0)["mig_mode.pending"] == "0"


def test_a_changed_layout_is_only_reported(rig, tmp_path) -> None:
    rig.cut(0, Slice("3g.71gb"), Slice("3g.71gb"))
    gpu = touch(rig, 0, first_seen=str(kept(tmp_path)))
    assert gpu.restore_settings().drift == ()
    rig.cut(0, Slice("3g.71gb"))
    old, new = "profile 9 at 0 of size 4, profile 9 at 4 of size 4", "profile 9 at 0 of size 4"
    assert gpu.restore_settings().drift == (f"slices: {new}, first seen {old} (left: operators divide GPUs)",)


def test_drift_of_a_slices_gpu_is_only_reported(rig, tmp_path) -> None:
    (uuid, _) = rig.cut(0, Slice("3g.71gb"), Slice("3g.71gb"))
    slice_ = touch(rig, 0, uuid=uuid, parent=rig.gpu(0).uuid, first_seen=str(kept(tmp_path)))
    assert slice_.restore_settings().drift == ()
    rig.gpu(0).set({"power.limit": 450000, "clock.locked.gpu": "210 300"})
    assert slice_.restore_settings().drift == ("power_limit: 450 W, expected 700 W (left: the whole GPU shares it)",)
    assert (rig.gpu(0)["power.limit"], rig.gpu(0)["clock.locked.gpu"]) == ("450000", "210 300")
    assert not [call for _, call, _ in rig.machine.calls() if "Set" in call or "Reset" in call]


def test_a_lost_gpu_is_lost_and_not_just_an_error(rig, gpu) -> None:
    rig.gpu(0).set(lost=1)
    with pytest.raises(DeviceLostError):
        gpu.restore_settings()
