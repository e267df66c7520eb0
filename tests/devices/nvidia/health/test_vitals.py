"""Health is what the driver says, and never what it does not say."""

from __future__ import annotations

import json
import subprocess
import sys

import pynvml
import pytest

from scrubber.core.model import AilmentKind, Sign, Vitals
from scrubber.devices.base import DeviceError, DeviceHandling
from scrubber.devices.nvidia.health.vitals import worsened
from scrubber.devices.nvidia.nvml import RecoveryAction
from tests.devices.nvidia.bench import touch
from tests.devices.nvidia.conftest import boot
from tests.fakes.nvml.machine import Slice
from tests.fakes.nvml.presets import DOWN

ACTION = "field.230"
PREFIX = "NVML_GPU_RECOVERY_ACTION_"
ACTIONS = {name.removeprefix(PREFIX): value for name, value in vars(pynvml).items() if name.startswith(PREFIX)}
NO_ROWS = {f"remap.{what}": None for what in ("corrected", "uncorrected", "pending", "failure")}


def vitals(rig, number: int = 0) -> Vitals:
    found: Vitals = rig.backend().vitals(rig.gpu(number).uuid)
    return found


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param({}, Vitals(), id="well"),
        pytest.param({"ecc.total.1.0": 3}, Vitals(ecc_uncorrectable=3), id="ecc"),
        pytest.param({"ecc.total.0.0": 9, "ecc.total.1.1": 9}, Vitals(), id="corrected errors, and old ones"),
        pytest.param({"remap.pending": 1}, Vitals(remap_pending=True), id="pending"),
        pytest.param({"remap.failure": 1}, Vitals(remap_failed=True), id="failed"),
        pytest.param(NO_ROWS | {"retired.pending": 1}, Vitals(remap_pending=True), id="pages instead of rows"),
        pytest.param(NO_ROWS | {"ecc.current": 0}, Vitals(), id="neither rows nor ECC"),
        pytest.param({"lost": 1}, Vitals(lost=True), id="lost"),
        pytest.param({"absent": 1}, Vitals(lost=True), id="absent"),
        pytest.param({"reset_required": 1}, Vitals(reset_required=True), id="reset required"),
        pytest.param({ACTION: 99}, Vitals(reset_required=True), id="unknown action"),
        pytest.param({"field_fail.230": pynvml.NVML_ERROR_NOT_SUPPORTED}, Vitals(), id="unsupported field"),
        pytest.param({"field_fail.230": pynvml.NVML_ERROR_INVALID_ARGUMENT}, Vitals(), id="unknown field"),
        pytest.param({"field_fail.230": pynvml.NVML_ERROR_GPU_IS_LOST}, Vitals(lost=True), id="field of a lost GPU"),
        pytest.param(
            {"field_fail.230": pynvml.NVML_ERROR_RESET_REQUIRED}, Vitals(reset_required=True), id="field before a reset"
        ),
    ],
)
def test_an_ailment_is_reported_of_its_gpu_only(rig, state, expected: Vitals) -> None:
    rig.gpu(0).set(state)
    assert vitals(rig, 0) == expected
    assert vitals(rig, 1) == Vitals()


SIGNS = {
    RecoveryAction.NODE_REBOOT: Sign(AilmentKind.REBOOT_REQUIRED, "the driver asks for a reboot of the node"),
    RecoveryAction.SYSTEM_REBOOT: Sign(AilmentKind.REBOOT_REQUIRED, "the driver asks for a reboot of the whole system"),
    RecoveryAction.RECOVER_IMEX_DOMAIN: Sign(AilmentKind.FABRIC, "the driver asks to recover its IMEX domain"),
}


def test_recovery_action_codes_equal_those_of_nvml() -> None:
    ours = {action.name: action.value for action in RecoveryAction}
    known = {name: value for name, value in ACTIONS.items() if name in ours}
    assert known == {name: ours[name] for name in known}
    assert {"NONE", "GPU_RESET", "NODE_REBOOT", "DRAIN_P2P", "DRAIN_AND_RESET"} <= known.keys()


OLDEST = (
    "import pynvml; [delattr(pynvml, it) for it in {missing!r} if hasattr(pynvml, it)]; import scrubber.assembly_nvidia"
)


def test_the_oldest_allowed_pynvml_is_enough_to_import_the_backend() -> None:
    """Release 13.580 does not have these names."""
    missing = [f"{PREFIX}{name}" for name in ("RECOVER_IMEX_DOMAIN", "BUS_RESET", "SYSTEM_REBOOT")]
    subprocess.run([sys.executable, "-c", OLDEST.format(missing=missing)], check=True)


@pytest.mark.parametrize("action", RecoveryAction)
def test_no_reset_is_asked_for_what_none_can_give(rig, action: RecoveryAction) -> None:
    rig.gpu(0).set({ACTION: int(action)})
    signs = (SIGNS[action],) if action in SIGNS else ()
    wanted = action not in {RecoveryAction.NONE, *SIGNS}
    assert vitals(rig) == Vitals(reset_required=wanted, signs=signs)


def test_a_reboot_requested_during_a_test_is_reported(rig) -> None:
    well = vitals(rig)
    rig.gpu(0).set({ACTION: int(RecoveryAction.NODE_REBOOT)})
    asked = vitals(rig)
    assert worsened(well, asked) == "the driver asked for a reboot"
    assert worsened(asked, asked) is None


def test_a_field_that_fails_is_no_health(rig) -> None:
    rig.gpu(0).set({"field_fail.230": pynvml.NVML_ERROR_UNKNOWN})
    with pytest.raises(DeviceError, match="field 230"):
        vitals(rig)


CEASES = {"rows": NO_ROWS, "errors": {"ecc.current": 0}, "action": {ACTION: None}}


@pytest.mark.parametrize("state", CEASES.values(), ids=CEASES)
def test_a_question_that_was_answered_stays_supported_until_a_reset(rig, state: dict[str, object]) -> None:
    backend, uuid = rig.seen(), rig.gpu(0).uuid
    assert backend.vitals(uuid) == Vitals()
    rig.gpu(0).set(state)
    rig.library.close()
    with pytest.raises(DeviceError, match="which it supported before"):
        backend.vitals(uuid)
    backend.release_driver()
    backend.reacquire_driver()
    assert backend.vitals(uuid) == Vitals()  # such as ECC that was switched off


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"ecc.total.1.0": 3}, Vitals(ecc_uncorrectable=3)),
        ({ACTION: 1}, Vitals(reset_required=True)),
        ({ACTION: int(RecoveryAction.RECOVER_IMEX_DOMAIN)}, Vitals()),  # of which slices are no part
        ({"lost": 1}, Vitals(lost=True)),
        ({"reset_required": 1}, Vitals(reset_required=True)),
    ],
    ids=["ecc", "action", "domain", "lost", "reset required"],
)
def test_an_ailment_of_a_gpu_is_its_slices_too(rig, state, expected: Vitals) -> None:
    backend, uuids = rig.backend(), rig.cut(0, Slice(), Slice())
    assert [backend.vitals(uuid) for uuid in uuids] == [Vitals(), Vitals()]
    rig.gpu(0).set(state)
    assert [backend.vitals(uuid) for uuid in uuids] == [expected, expected]


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


# --- what a worker reads at the last observation before a device counts as clean ---


def test_a_worker_learns_which_links_were_up_since_boot(rig) -> None:
    uuid = rig.gpu(0).uuid

    def links_up() -> list[int]:
        backend = rig.seen()
        backend.vitals(uuid)
        links: list[int] = json.loads(backend.address(uuid, DeviceHandling()).place)["links"]
        return links

    assert links_up() == [*range(18)]
    rig.gpu(0).set({"nvlink.3": DOWN, "nvlink.17": DOWN})
    assert links_up() == [*range(18)]  # it is another service, and remembers
    boot(rig.host, "boot-2")
    assert links_up() == sorted({*range(18)} - {3, 17})


@pytest.mark.parametrize("call", ["nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetNvLinkState"])
def test_an_unreadable_value_is_no_sign_for_a_worker(rig, call: str) -> None:
    rig.gpu(0).fail(call, pynvml.NVML_ERROR_NO_PERMISSION)
    hands = touch(rig, 0, links=[*range(18)])
    assert (hands.vitals(), rig.backend().vitals(rig.gpu(0).uuid)) == (Vitals(), Vitals())
    rig.gpu(0).fail(call, pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(DeviceError, match=call.removesuffix("Status")):
        hands.vitals()


def test_a_worker_reports_links_that_are_down_or_gone(rig) -> None:
    rig.gpu(0).set({"nvlink.3": DOWN, "nvlink.5": DOWN})
    (sign,) = touch(rig, 0, links=[0, 1, 3]).vitals().signs
    assert sign == Sign(AilmentKind.LINKS, "of 3 NVLinks that were up, 1 is down: 3")
    assert touch(rig, 0, links=[0, 1]).vitals() == touch(rig, 0).vitals() == Vitals()
    rig.gpu(0).fail("nvmlDeviceGetNvLinkState", pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert [sign.kind for sign in touch(rig, 0, links=[0]).vitals().signs] == [AilmentKind.LINKS]
    [uuid] = rig.cut(0, Slice())
    assert touch(rig, 0, uuid=uuid, parent=rig.gpu(0).uuid, links=[3]).vitals() == Vitals()  # a slice has no links
