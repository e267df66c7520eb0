"""Health is what the driver says, and never what it does not say."""

from __future__ import annotations

import subprocess
import sys

import pynvml
import pytest

from scrubber.core.model import AilmentKind, Sign, Vitals
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.health.vitals import worsened
from scrubber.devices.nvidia.nvml import RecoveryAction
from tests.fakes.nvml.machine import Slice

ACTION = "field.230"
PREFIX = "NVML_GPU_RECOVERY_ACTION_"
ACTIONS = {name.removeprefix(PREFIX): value for name, value in vars(pynvml).items() if name.startswith(PREFIX)}


def vitals(rig, number: int = 0) -> Vitals:
    found: Vitals = rig.backend().vitals(rig.gpu(number).uuid)
    return found


def test_a_gpu_that_is_well(rig) -> None:
    assert vitals(rig) == Vitals()


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"ecc.total.1.0": 3}, Vitals(ecc_uncorrectable=3)),
        ({"remap.pending": 1}, Vitals(remap_pending=True)),
        ({"remap.failure": 1}, Vitals(remap_failed=True)),
        ({"lost": 1}, Vitals(lost=True)),
        ({"absent": 1}, Vitals(lost=True)),
        ({"reset_required": 1}, Vitals(reset_required=True)),
    ],
    ids=["ecc", "pending", "failed", "lost", "absent", "reset required"],
)
def test_an_ailment_is_reported_of_its_gpu_only(rig, state, expected: Vitals) -> None:
    rig.gpu(0).set(state)
    assert vitals(rig, 0) == expected
    assert vitals(rig, 1) == Vitals()


def test_corrected_errors_and_errors_before_the_baseline_do_not_count(rig) -> None:
    rig.gpu(0).set({"ecc.total.0.0": 9, "ecc.total.1.1": 9})
    assert vitals(rig) == Vitals()


REBOOTS = {
    RecoveryAction.NODE_REBOOT: "the driver asks for a reboot of the node",
    RecoveryAction.SYSTEM_REBOOT: "the driver asks for a reboot of the whole system",
}


def test_recovery_action_codes_equal_those_of_nvml() -> None:
    ours = {action.name: action.value for action in RecoveryAction}
    known = {name: value for name, value in ACTIONS.items() if name in ours}
    assert known == {name: ours[name] for name in known}
    assert {"NONE", "GPU_RESET", "NODE_REBOOT", "DRAIN_P2P", "DRAIN_AND_RESET"} <= known.keys()


OLDEST = "import pynvml; [delattr(pynvml, it) for it in {missing!r} if hasattr(pynvml, it)]; import scrubber.app_nvidia"


def test_the_oldest_allowed_pynvml_is_enough_to_import_the_backend() -> None:
    """Release 13.580 does not have these names."""
    missing = [f"{PREFIX}{name}" for name in ("RECOVER_IMEX_DOMAIN", "BUS_RESET", "SYSTEM_REBOOT")]
    subprocess.run([sys.executable, "-c", OLDEST.format(missing=missing)], check=True)


@pytest.mark.parametrize("action", RecoveryAction)
def test_the_drivers_recovery_action_becomes_reset_or_reboot(rig, action: int) -> None:
    rig.gpu(0).set({ACTION: int(action)})
    signs = tuple(Sign(AilmentKind.REBOOT_REQUIRED, REBOOTS[each]) for each in REBOOTS if each == action)
    wanted = action not in {RecoveryAction.NONE, *REBOOTS}
    assert vitals(rig) == Vitals(reset_required=wanted, signs=signs)


def test_a_reboot_requested_during_a_test_is_reported(rig) -> None:
    well = vitals(rig)
    rig.gpu(0).set({ACTION: int(RecoveryAction.NODE_REBOOT)})
    asked = vitals(rig)
    assert worsened(well, asked) == "the driver asked for a reboot"
    assert worsened(asked, asked) is None


def test_an_unknown_recovery_action_still_counts(rig) -> None:
    rig.gpu(0).set({ACTION: 99})
    assert vitals(rig).reset_required


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT], ids=["unsupported", "unknown"]
)
def test_a_driver_without_recovery_actions_requests_none(rig, code: int) -> None:
    rig.gpu(0).set({"field_fail.230": code})
    assert vitals(rig) == Vitals()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, Vitals(lost=True)),
        (pynvml.NVML_ERROR_RESET_REQUIRED, Vitals(reset_required=True)),
    ],
    ids=["lost", "reset required"],
)
def test_a_field_may_tell_what_a_call_does(rig, code: int, expected: Vitals) -> None:
    rig.gpu(0).set({"field_fail.230": code})
    assert vitals(rig) == expected


def test_a_field_that_fails_is_no_health(rig) -> None:
    rig.gpu(0).set({"field_fail.230": pynvml.NVML_ERROR_UNKNOWN})
    with pytest.raises(DeviceError, match="field 230"):
        vitals(rig)


def test_older_gpus_retire_pages_instead_of_rows(rig) -> None:
    rig.gpu(0).set({f"remap.{what}": None for what in ("corrected", "uncorrected", "pending", "failure")})
    rig.gpu(0).set({"retired.pending": 1})
    assert vitals(rig) == Vitals(remap_pending=True)


def test_a_gpu_with_neither_and_without_ecc_is_well(rig) -> None:
    rig.gpu(0).set({f"remap.{what}": None for what in ("corrected", "uncorrected", "pending", "failure")})
    rig.gpu(0).set({"ecc.current": 0})
    assert vitals(rig) == Vitals()


def test_a_device_whose_memory_cannot_be_read_is_not_healthy(rig) -> None:
    rig.gpu(0).fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(DeviceError, match="nvmlDeviceGetMemoryInfo"):
        vitals(rig)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"ecc.total.1.0": 3}, Vitals(ecc_uncorrectable=3)),
        ({ACTION: 1}, Vitals(reset_required=True)),
        ({"lost": 1}, Vitals(lost=True)),
        ({"reset_required": 1}, Vitals(reset_required=True)),
    ],
    ids=["ecc", "action", "lost", "reset required"],
)
def test_an_ailment_of_a_gpu_is_its_slices_too(rig, state, expected: Vitals) -> None:
    backend, uuids = rig.backend(), rig.cut(0, Slice(), Slice())
    assert [backend.vitals(uuid) for uuid in uuids] == [Vitals(), Vitals()]
    rig.gpu(0).set(state)
    assert [backend.vitals(uuid) for uuid in uuids] == [expected, expected]


def test_a_removed_slice_is_lost_and_its_neighbour_is_not(rig) -> None:
    backend = rig.backend()
    first, second = rig.cut(0, Slice(), Slice())
    rig.cut(0, Slice())
    assert backend.vitals(first) == Vitals()
    assert backend.vitals(second) == Vitals(lost=True)


def test_a_whole_gpu_is_lost_while_it_is_sliced(rig) -> None:
    backend = rig.backend()
    assert backend.vitals(rig.gpu(0).uuid) == Vitals()
    rig.cut(0, Slice())
    assert backend.vitals(rig.gpu(0).uuid) == Vitals(lost=True, relaid=True)
    rig.cut(0)
    assert backend.vitals(rig.gpu(0).uuid) == Vitals(lost=True, relaid=True), "in MIG mode without a slice as well"
    rig.gpu(0).uncut()
    assert backend.vitals(rig.gpu(0).uuid) == Vitals()


def test_a_sliced_gpu_that_fell_off_the_bus_is_lost(rig) -> None:
    backend, uuid = rig.backend(), rig.gpu(0).uuid
    rig.cut(0, Slice())
    rig.gpu(0).set(lost=True)
    assert backend.vitals(uuid) == Vitals(lost=True)


def test_without_a_driver_there_is_no_health(rig) -> None:
    backend, uuid = rig.backend(), rig.gpu(0).uuid
    assert backend.vitals(uuid) == Vitals()
    rig.machine.unload()
    with pytest.raises(DeviceError, match="the driver is not loaded"):
        backend.vitals(uuid)
