"""Signs are what NVML tells, for as long as it tells it, and never what it does not tell."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pynvml
import pytest

from policies.hardware import DeviceSign, QuarantinePolicy
from policies.model import Policy
from scrubber.core import ailments
from scrubber.core.model import AilmentKind, Baseline, Sign, Vitals
from scrubber.devices.base import DeviceLostError
from scrubber.devices.nvidia.health import signs
from scrubber.devices.nvidia.health.watch import EVERY, LASTS
from scrubber.devices.nvidia.nvml import ResetRequiredError
from tests.devices.nvidia.health import watching
from tests.devices.nvidia.health.watching import DOWN, UP, SignReader, change
from tests.fakes.nvml.machine import Slice
from tests.patience import WITHIN

reader = watching.reader  # a fixture

ALL = Policy(quarantine=QuarantinePolicy(signs=tuple(DeviceSign)))
POWER_BRAKE, THERMAL, BY_DRIVER, IDLE = 0x80, 0x40, 0x20, 0x1
DEGRADED, WRONG_CONFIGURATION, ALL_WELL = 0b01, 5 << 8, 0b10_10_10_10 | 1 << 8


@dataclass(frozen=True)
class Case:
    """One signal: what NVML tells while it is there, and what is made of it."""

    kind: AilmentKind
    state: dict[str, object]
    detail: str
    by_default: bool = True  # whether the shipped policy takes the device out for it


WORKS = {"clock.reasons": 0, "pstate": 0}
CASES = {
    "a link": Case(AilmentKind.LINKS, {"nvlink.3": DOWN}, "1 of 18 NVLinks that were up are down: 3"),
    "links": Case(
        AilmentKind.LINKS, {"nvlink.3": DOWN, "nvlink.17": DOWN}, "2 of 18 NVLinks that were up are down: 3, 17"
    ),
    "lanes": Case(AilmentKind.PCIE, {"pcie.width": 8}, "its PCIe link has 8 lanes and had 16", by_default=False),
    "generation": Case(
        AilmentKind.PCIE,
        {"pcie.gen": 3, **WORKS},
        "its PCIe link is of generation 3, of 5, under load",
        by_default=False,
    ),
    "heat": Case(
        AilmentKind.HEAT,
        {"clock.reasons": THERMAL | BY_DRIVER},
        "it is too hot: the hardware reduces its clocks",
        by_default=False,
    ),
    "power brake": Case(
        AilmentKind.HEAT,
        {"clock.reasons": POWER_BRAKE},
        "its power supply makes the hardware reduce its clocks",
        by_default=False,
    ),
    "fabric left": Case(AilmentKind.FABRIC, {"fabric.state": 2}, "it has left its fabric"),
    "fabric error": Case(AilmentKind.FABRIC, {"fabric.status": 999}, "it could not join its fabric: error 999 of NVML"),
    "fabric bandwidth": Case(
        AilmentKind.FABRIC, {"fabric.health": DEGRADED}, "in its fabric its bandwidth is degraded"
    ),
    "fabric configuration": Case(
        AilmentKind.FABRIC, {"fabric.health": WRONG_CONFIGURATION}, "in its fabric its configuration is wrong (kind 5)"
    ),
    "sram": Case(
        AilmentKind.SRAM,
        {"sram.exceeded": 1},
        "it had more uncorrectable errors in its memory on the chip than the driver tolerates",
    ),
}
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
LASTING = {name: case for name, case in CASES.items() if LASTS[case.kind]}


def verdict(signs: tuple[Sign, ...], policy: Policy) -> AilmentKind | None:
    found = ailments.diagnose(Vitals(signs=signs), Baseline(), policy)
    return found.kind if found else None


@EACH
def test_a_lasting_sign_is_judged_by_policy_until_it_ends(rig, reader: SignReader, case: Case) -> None:
    before, signs = change(rig, case.state), (Sign(case.kind, case.detail),)
    found = reader.later()
    for _ in range(int(LASTS[case.kind] / EVERY)):
        assert found == ()
        found = reader.later()
    assert found == signs
    assert verdict(found, Policy()) == (case.kind if case.by_default else None)
    assert verdict(found, ALL) is case.kind
    rig.gpu(0).set(before)
    assert reader.later() == ()


@pytest.mark.parametrize("case", LASTING.values(), ids=LASTING)
def test_a_sign_that_one_observation_saw_is_not_reported(rig, reader: SignReader, case: Case) -> None:
    for _ in range(4):
        before = change(rig, case.state)
        assert reader.later() == ()
        rig.gpu(0).set(before)
        assert reader.later() == ()


@EACH
def test_a_sign_is_reported_of_its_gpu_only(rig, reader: SignReader, case: Case) -> None:
    reader.look(1)
    change(rig, case.state)
    for _ in range(5):
        reader.later()
    assert reader.look() != ()
    assert reader.look(1) == ()


HEALTHY: dict[str, dict[str, object]] = {
    "held down by the driver": {"clock.reasons": BY_DRIVER | 0x4},
    "a slow generation while it idles": {"pcie.gen": 1, "clock.reasons": IDLE, "pstate": 0},
    "a slow generation at rest": {"pcie.gen": 1, "clock.reasons": 0, "pstate": 8},
    "a slow generation, and it is unknown whether the GPU is idle": {"pcie.gen": 1, "clock.reasons": None},
    "a slow generation in no state": {"pcie.gen": 1, "clock.reasons": 0, "pstate": None},
    "a fabric that says that all is well": {"fabric.health": ALL_WELL},
    "counted replays": {"pcie.replays": signs.REPLAYS},
    "no ECC": {"ecc.current": 0},
    "nothing is supported": dict.fromkeys(
        ("clock.reasons", "pcie.width", "pcie.gen", "pcie.replays", "fabric.state", "sram.exceeded", "pstate")
    ),
}


@pytest.mark.parametrize("state", HEALTHY.values(), ids=HEALTHY)
def test_no_sign(rig, state: dict[str, object]) -> None:
    rig.gpu(0).set(state)
    reader = SignReader(rig)
    assert [reader.later() for _ in range(6)] == [()] * 6


def test_many_replays_within_a_minute_are_a_sign(rig, reader: SignReader) -> None:
    def count(number: int) -> bool:
        rig.gpu(0).set({"pcie.replays": number})
        return reader.later() != ()

    assert [count(number) for number in range(0, 64, 1)] == [False] * 64
    assert [count(number) for number in (74, 84, 94)] == [False, True, True]
    assert [count(94) for _ in range(6)][-1] is False
    assert [count(3) for _ in range(3)] == [False] * 3  # begun anew


def test_only_a_link_that_was_up_is_missed(rig) -> None:
    rig.gpu(0).set({"nvlink.3": DOWN})
    reader = SignReader(rig)
    assert [reader.later() for _ in range(3)] == [()] * 3
    rig.gpu(0).set({"nvlink.3": UP})
    assert reader.later() == ()
    rig.gpu(0).set({"nvlink.3": DOWN})
    assert [bool(reader.later()) for _ in range(2)] == [False, True]


def test_a_gpu_never_in_a_fabric_need_not_join(rig) -> None:
    rig.gpu(0).set({"fabric.state": 2})
    reader = SignReader(rig)
    assert [reader.later() for _ in range(6)] == [()] * 6


@pytest.mark.parametrize("name", ["a link", "lanes", "fabric left"])
def test_a_restarted_service_does_not_take_damage_for_normal(rig, reader: SignReader, name: str) -> None:
    change(rig, CASES[name].state)
    reader.restart()
    assert [reader.later() for _ in range(5)][-1] == (Sign(CASES[name].kind, CASES[name].detail),)


def test_after_a_reboot_it_counts_as_it_is_then(rig, reader: SignReader) -> None:
    change(rig, CASES["a link"].state)
    reader.boot = "boot-2"
    reader.restart()
    assert [reader.later() for _ in range(5)] == [()] * 5


CALLS = {
    "nvmlDeviceGetNvLinkState": "a link",
    "nvmlDeviceGetCurrPcieLinkWidth": "lanes",
    "nvmlDeviceGetPcieReplayCounter": "lanes",
    "nvmlDeviceGetPerformanceState": "generation",
    "nvmlDeviceGetCurrPcieLinkGeneration": "generation",
    "nvmlDeviceGetMaxPcieLinkGeneration": "generation",
    "nvmlDeviceGetCurrentClocksEventReasons": "heat",
    "nvmlDeviceGetGpuFabricInfoV": "fabric left",
    "nvmlDeviceGetSramEccErrorStatus": "sram",
}
OF_CALL = pytest.mark.parametrize(("call", "name"), CALLS.items(), ids=CALLS)


UNKNOWN, UNTOLD, FORBIDDEN = (
    pynvml.NVML_ERROR_UNKNOWN,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
)


@OF_CALL
@pytest.mark.parametrize("code", [UNTOLD, FORBIDDEN])
def test_a_missing_reading_is_no_sign(rig, reader: SignReader, call: str, name: str, code: int) -> None:
    if code == UNTOLD and call in THAT_IT_WAS_THERE_IS_KNOWN:
        reader.boot = "boot-2"
        reader.restart()
    rig.gpu(0).set(CASES[name].state)
    rig.gpu(0).fail(call, code)
    seen = {sign.kind for _ in range(6) for sign in reader.later()}
    assert seen <= ({AilmentKind.PCIE} if call == "nvmlDeviceGetPcieReplayCounter" else set())  # its lanes are known


THAT_IT_WAS_THERE_IS_KNOWN = {"nvmlDeviceGetNvLinkState", "nvmlDeviceGetGpuFabricInfoV"}  # and it is missed


LEFT = {
    "links that are not reported": (AilmentKind.LINKS, "nvmlDeviceGetNvLinkState", {}),
    "a fabric that is not reported": (AilmentKind.FABRIC, "nvmlDeviceGetGpuFabricInfoV", {}),
    "a fabric that is not supported": (AilmentKind.FABRIC, None, {"fabric.state": 0}),
}


@pytest.mark.parametrize(("kind", "call", "state"), LEFT.values(), ids=LEFT)
def test_a_link_that_is_no_longer_reported_counts_as_missing(
    rig, reader: SignReader, kind: AilmentKind, call: str | None, state: dict[str, object]
) -> None:
    rig.gpu(0).set(state)
    if call:
        rig.gpu(0).fail(call, UNTOLD)
    assert [[it.kind for it in reader.later()] for _ in range(5)][-1] == [kind]
    reader.boot = "boot-2"
    reader.restart()
    assert [reader.later() for _ in range(5)] == [()] * 5


@OF_CALL
@pytest.mark.parametrize("code", [UNKNOWN, FORBIDDEN])
def test_an_error_neither_makes_a_sign_nor_ends_one(rig, reader: SignReader, call: str, name: str, code: int) -> None:
    rig.gpu(0).fail(call, code)
    assert [reader.later() for _ in range(6)] == [()] * 6
    rig.gpu(0).fail(call, None)
    before = change(rig, CASES[name].state)
    signs = [reader.later() for _ in range(5)][-1]
    assert signs == (Sign(CASES[name].kind, CASES[name].detail),)
    rig.gpu(0).set(before)
    rig.gpu(0).fail(call, code)
    assert reader.later() == (signs if call not in READ_WHILE_IT_WORKS else ())
    rig.gpu(0).fail(call, None)
    assert reader.later() == ()


READ_WHILE_IT_WORKS = {call for call, name in CALLS.items() if name == "generation"}


def test_whether_a_link_works_is_read_each_time(rig, reader: SignReader) -> None:
    rig.gpu(0).set(WORKS)
    reader.later()
    rig.gpu(0).set({"pcie.gen": 1})
    rig.gpu(0).fail("nvmlDeviceGetCurrentClocksEventReasons", UNKNOWN)
    assert [reader.later() for _ in range(3)] == [()] * 3
    rig.gpu(0).fail("nvmlDeviceGetCurrentClocksEventReasons", None)
    assert [[it.kind for it in reader.later()] for _ in range(2)] == [[], [AilmentKind.PCIE]]
    rig.gpu(0).fail("nvmlDeviceGetCurrentClocksEventReasons", UNKNOWN)
    assert [it.kind for it in reader.later()] == [AilmentKind.PCIE]


@OF_CALL
def test_the_errors_that_say_more_keep_their_meaning(rig, call: str, name: str) -> None:
    rig.gpu(0).set(WORKS if name == "generation" else {})
    for code, error, vitals in (
        (pynvml.NVML_ERROR_GPU_IS_LOST, DeviceLostError, Vitals(lost=True)),
        (pynvml.NVML_ERROR_RESET_REQUIRED, ResetRequiredError, Vitals(reset_required=True)),
    ):
        rig.gpu(0).fail(call, code)
        with pytest.raises(error):
            SignReader(rig).look()
        assert rig.backend().vitals(rig.gpu(0).uuid) == vitals


def test_the_driver_is_not_asked_between_two_observations(rig, reader: SignReader) -> None:
    asked = len(rig.machine.calls())
    reader.later(EVERY - 1)
    assert len(rig.machine.calls()) - asked <= 1  # the handle
    reader.later(1)
    assert len(rig.machine.calls()) - asked > 20


def test_slices_of_a_gpu_share_one_observation(reader: SignReader, monkeypatch) -> None:
    """Two that count replays at the same time would take one replay for thousands: the counter seemed to begin anew."""
    counted = iter(range(5000, 5999))
    inside, go_on, asked = threading.Event(), threading.Event(), []

    def read(*_about: object) -> signs.PcieReading:
        asked.append(threading.current_thread().name)
        number = next(counted)
        if asked[-1] == "slow":
            inside.set()
            assert go_on.wait(WITHIN)
        return signs.PcieReading(lanes=16, replays=number)

    monkeypatch.setattr(signs, "read_pcie", read)
    reader.restart()
    reader.later()
    reader.now += EVERY
    slow, quick = [threading.Thread(name=name, target=reader.look) for name in ("slow", "quick")]
    slow.start()
    assert inside.wait(WITHIN)
    quick.start()
    quick.join(0.2)
    assert quick.is_alive()
    go_on.set()
    slow.join(WITHIN)
    quick.join(WITHIN)
    assert asked == [threading.current_thread().name, "slow"]
    assert [reader.later() for _ in range(3)] == [()] * 3


def test_after_a_reset_links_get_time_to_train(rig, reader: SignReader) -> None:
    before = change(rig, CASES["links"].state | CASES["lanes"].state)
    assert [len(reader.later()) for _ in range(2)] == [0, 2]
    for healed in (False, True):
        if healed:
            rig.gpu(0).set(before)
        rig.library.release_driver()
        rig.library.reacquire_driver()
        assert [sign.kind for sign in reader.look()] == ([] if healed else [AilmentKind.PCIE])
    assert [reader.later() for _ in range(3)] == [()] * 3


def test_a_sliced_gpu_uses_neither_links_nor_fabric(rig, reader: SignReader) -> None:
    change(rig, CASES["links"].state | CASES["fabric left"].state | CASES["lanes"].state)
    for _ in range(5):
        reader.now += EVERY
        signs = reader.look(whole=False)
    assert [sign.kind for sign in signs] == [AilmentKind.PCIE]
    for _ in range(5):
        reader.later()
    assert {sign.kind for sign in reader.look()} == {AilmentKind.PCIE, AilmentKind.LINKS, AilmentKind.FABRIC}
    assert [sign.kind for sign in reader.look(whole=False)] == [AilmentKind.PCIE]


def test_the_backend_reports_signs_of_a_gpu_and_its_slices(rig) -> None:
    rig.gpu(0).set(CASES["sram"].state)
    backend = rig.backend()
    backend.inventory()
    sram = (Sign(AilmentKind.SRAM, CASES["sram"].detail),)
    assert [backend.vitals(rig.gpu(number).uuid).signs for number in range(2)] == [sram, ()]
    uuids = rig.cut(0, Slice(), Slice())
    backend.inventory()
    assert [backend.vitals(uuid).signs for uuid in uuids] == [sram, sram]
