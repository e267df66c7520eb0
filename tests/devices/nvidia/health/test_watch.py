"""A sign is what NVML reports, for as long as NVML reports it. What NVML does not report is no sign."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.nvidia import holders
from scrubber.devices.nvidia.health import vitals
from scrubber.devices.nvidia.health.watch import EVERY, LASTS, BestSeenFile, SignWatch
from tests.fakes.nvml.machine import Process, Slice
from tests.fakes.nvml.presets import DOWN, UP
from tests.patience import WITHIN

POWER_BRAKE, THERMAL, BY_DRIVER = 0x80, 0x40, 0x20
DEGRADED, WRONG_CONFIGURATION, ALL_WELL = 0b01, 5 << 8, 0b10_10_10_10 | 1 << 8
UNKNOWN, UNTOLD, FORBIDDEN = (
    pynvml.NVML_ERROR_UNKNOWN,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
)


@dataclass
class SignReader:
    """A watch over the GPUs of a rig, with a clock that a test moves."""

    rig: Any
    boot: str = "boot-1"
    now: float = 1000.0
    watch: SignWatch = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, boot: str = "boot-1") -> None:
        """A new service: it remembers what is on the disk."""
        self.boot = boot
        self.watch = SignWatch(BestSeenFile(self.rig.settings.parent / "seen", lambda: self.boot), lambda: self.now)

    def look(self, number: int = 0, *, whole: bool = True) -> tuple[Sign, ...]:
        gpu = self.rig.gpu(number)
        with self.rig.library.session() as nvml:
            return self.watch.signs(nvml, gpu.uuid, nvml.handle(gpu.uuid), whole=whole)

    def later(self, seconds: float = EVERY) -> tuple[Sign, ...]:
        self.now += seconds
        return self.look()

    def many(self, times: int = 5) -> list[tuple[Sign, ...]]:
        return [self.later() for _ in range(times)]


@pytest.fixture
def reader(rig) -> SignReader:
    """The GPU was well at the first observation."""
    reader = SignReader(rig)
    assert reader.look() == ()
    return reader


def change(rig, state: dict[str, object]) -> dict[str, object]:
    """Returns the state before."""
    gpu = rig.gpu(0)
    before = {key: gpu.get(key) for key in state}
    gpu.set(state)
    return before


# For each sign: what NVML reports while it is there, and the words for it.
CASES: dict[str, tuple[AilmentKind, dict[str, object], str]] = {
    "a link": (AilmentKind.LINKS, {"nvlink.3": DOWN}, "of 18 NVLinks that were up, 1 is down: 3"),
    "links": (
        AilmentKind.LINKS, {"nvlink.3": DOWN, "nvlink.17": DOWN}, "of 18 NVLinks that were up, 2 are down: 3, 17"),
    "lanes": (AilmentKind.PCIE, {"pcie.width": 8}, "its PCIe link has 8 lanes and had 16"),
    "heat": (
        AilmentKind.HEAT, {"clock.reasons": THERMAL | BY_DRIVER}, "it is too hot: the hardware reduces its clocks"),
    "power brake": (
        AilmentKind.HEAT, {"clock.reasons": POWER_BRAKE}, "its power supply makes the hardware reduce its clocks"),
    "ghost load": (
        AilmentKind.GHOST_LOAD, {"load": 100}, "the driver reports that it is 100 % busy, and lists no process on it"),
    "fabric left": (AilmentKind.FABRIC, {"fabric.state": 2}, "it has left its fabric"),
    "fabric error": (AilmentKind.FABRIC, {"fabric.status": 999}, "it could not join its fabric: error 999 of NVML"),
    "fabric bandwidth": (AilmentKind.FABRIC, {"fabric.health": DEGRADED}, "in its fabric its bandwidth is degraded"),
    "fabric configuration": (
        AilmentKind.FABRIC, {"fabric.health": WRONG_CONFIGURATION},
        "in its fabric its configuration is wrong (kind 5)"),
    "sram": (
        AilmentKind.SRAM, {"sram.exceeded": 1},
        "it had more uncorrectable errors in its memory on the chip than the driver tolerates"),
}  # fmt: skip


def test_each_watched_sign_has_its_case_and_its_call() -> None:
    elsewhere = {AilmentKind.SWITCH, AilmentKind.REBOOT_REQUIRED}
    assert {kind for kind, *_ in CASES.values()} | elsewhere == set(LASTS)
    assert {CASES[name][0] for name in CALLS.values()} | elsewhere == set(LASTS)


@pytest.mark.parametrize(("kind", "state", "words"), CASES.values(), ids=CASES)
def test_a_sign_that_lasts_is_reported_until_it_ends(rig, reader: SignReader, kind, state, words) -> None:
    reader.look(1)
    observations = int(LASTS[kind] / EVERY)
    for seen_once in (True, False) if observations else (False,):
        before = change(rig, state)
        found = reader.many(1 if seen_once else observations + 1)
        assert found == [()] * observations + [(Sign(kind, words),)] if not seen_once else [()]
        assert reader.look(1) == ()
        rig.gpu(0).set(before)
        assert reader.later() == ()


HEALTHY: dict[str, dict[str, object]] = {
    "held down by the driver": {"clock.reasons": BY_DRIVER | 0x4},
    "a fabric that says that all is well": {"fabric.health": ALL_WELL},
    "never in a fabric": {"fabric.state": 2},
    "counted replays": {"pcie.replays": vitals.REPLAYS},
    "no ECC": {"ecc.current": 0},
    "less than all": {"load": 99},
    "a load of memory that is in use": {"load": 100, "memory.used": holders.IDLE_AT_MOST + 1},
    "nothing is supported": dict.fromkeys(
        ["pcie.replays", *(key for _, state, _ in CASES.values() for key in state if not key.startswith("nvlink."))]
    ),
}


@pytest.mark.parametrize("state", HEALTHY.values(), ids=HEALTHY)
def test_no_sign(rig, state: dict[str, object]) -> None:
    rig.gpu(0).set(state)
    assert SignReader(rig).many() == [()] * 5


def test_the_load_of_a_listed_process_is_no_sign(rig) -> None:
    rig.gpu(0).run(Process(4711))
    rig.gpu(0).set({"load": 100})
    assert SignReader(rig).many() == [()] * 5


def test_many_replays_within_a_minute_are_a_sign(rig, reader: SignReader) -> None:
    def count(number: int) -> bool:
        rig.gpu(0).set({"pcie.replays": number})
        return reader.later() != ()

    assert [count(number) for number in range(12)] == [False] * 12
    assert [count(number) for number in (22, 32, 42)] == [False, True, True]
    assert [count(42) for _ in range(6)][-1] is False
    assert [count(3) for _ in range(3)] == [False] * 3  # begun anew


def test_only_a_link_that_was_up_is_missed(rig) -> None:
    rig.gpu(0).set({"nvlink.3": DOWN})
    reader = SignReader(rig)
    assert reader.many(3) == [()] * 3
    rig.gpu(0).set({"nvlink.3": UP})
    assert reader.later() == ()
    rig.gpu(0).set({"nvlink.3": DOWN})
    assert [bool(signs) for signs in reader.many(2)] == [False, True]


BEST: dict[str, tuple[AilmentKind, dict[str, object]]] = {
    "a link that is down": (AilmentKind.LINKS, {"nvlink.3": DOWN}),
    "links that are not reported": (AilmentKind.LINKS, {"fail.nvmlDeviceGetNvLinkState": UNTOLD}),
    "lanes": (AilmentKind.PCIE, {"pcie.width": 8}),
    "a fabric that was left": (AilmentKind.FABRIC, {"fabric.state": 2}),
    "a fabric that is not reported": (AilmentKind.FABRIC, {"fail.nvmlDeviceGetGpuFabricInfoV": UNTOLD}),
    "a fabric that is not supported": (AilmentKind.FABRIC, {"fabric.state": 0}),
}


@pytest.mark.parametrize(("kind", "state"), BEST.values(), ids=BEST)
def test_the_best_values_since_boot_survive_a_restart(rig, reader: SignReader, kind, state) -> None:
    change(rig, state)
    reader.restart()
    assert [sign.kind for sign in reader.many()[-1]] == [kind]
    reader.restart("boot-2")
    assert reader.many() == [()] * 5


SEEN = '{"boot": "boot-1", "seen": {"links": [%s], "lanes": 1, "joined": true%s}}'
DAMAGED = {
    "half": SEEN[:20],
    "another field": SEEN % ("", ', "more": 1'),
    "words for links": SEEN % ('"1"', ""),
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_an_unreadable_file_of_best_values_is_replaced(rig, text: str) -> None:
    file = rig.settings.parent / "seen" / f"{rig.gpu(0).uuid}.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert SignReader(rig).look() == ()
    assert '"lanes": 16' in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_best_values_that_cannot_be_written_stay_in_memory(rig) -> None:
    (rig.settings.parent).mkdir(parents=True, exist_ok=True)
    (rig.settings.parent / "seen").write_text("no folder")
    reader = SignReader(rig)
    assert reader.look() == ()
    change(rig, {"nvlink.3": DOWN})
    assert [bool(signs) for signs in reader.many(2)] == [False, True]


CALLS = {
    "nvmlDeviceGetNvLinkState": "a link",
    "nvmlDeviceGetCurrPcieLinkWidth": "lanes",
    "nvmlDeviceGetPcieReplayCounter": "lanes",
    "nvmlDeviceGetCurrentClocksEventReasons": "heat",
    "nvmlDeviceGetUtilizationRates": "ghost load",
    "nvmlDeviceGetGpuFabricInfoV": "fabric left",
    "nvmlDeviceGetSramEccErrorStatus": "sram",
}


# A link or a fabric that is not reported any more is a sign itself.
ERRORS = [
    (call, name, code)
    for call, name in CALLS.items()
    for code in (UNKNOWN, FORBIDDEN, UNTOLD)
    if code != UNTOLD or name not in {"a link", "fabric left"}
]


@pytest.mark.parametrize(("call", "name", "code"), ERRORS)
def test_an_error_neither_begins_nor_ends_a_sign(rig, reader: SignReader, call: str, name: str, code: int) -> None:
    kind, state, words = CASES[name]
    rig.gpu(0).fail(call, code)
    assert reader.many() == [()] * 5
    rig.gpu(0).fail(call, None)
    before = change(rig, state)
    signs = reader.many()[-1]
    assert signs == (Sign(kind, words),)
    rig.gpu(0).set(before)
    rig.gpu(0).fail(call, code)
    assert reader.later() == signs
    rig.gpu(0).fail(call, None)
    assert reader.later() == ()


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

    def read(*_about: object) -> tuple[int, int]:
        asked.append(threading.current_thread().name)
        number = next(counted)
        if asked[-1] == "slow":
            inside.set()
            assert go_on.wait(WITHIN)
        return 16, number

    monkeypatch.setattr(vitals, "read_pcie", read)
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
    assert reader.many(3) == [()] * 3


def test_after_a_reset_links_get_time_to_train(rig, reader: SignReader) -> None:
    before = change(rig, {"nvlink.3": DOWN, "pcie.width": 8})
    assert [len(signs) for signs in reader.many(2)] == [0, 2]
    for healed in (False, True):
        if healed:
            rig.gpu(0).set(before)
        rig.library.release_driver()
        rig.library.reacquire_driver()
        assert [sign.kind for sign in reader.look()] == ([] if healed else [AilmentKind.PCIE])
    assert reader.many(3) == [()] * 3


def test_a_sliced_gpu_uses_neither_links_nor_fabric(rig, reader: SignReader) -> None:
    change(rig, {"nvlink.3": DOWN, "fabric.state": 2, "pcie.width": 8})
    for _ in range(5):
        reader.now += EVERY
        signs = reader.look(whole=False)
    assert [sign.kind for sign in signs] == [AilmentKind.PCIE]
    assert {sign.kind for sign in reader.many()[-1]} == {AilmentKind.PCIE, AilmentKind.LINKS, AilmentKind.FABRIC}
    assert [sign.kind for sign in reader.look(whole=False)] == [AilmentKind.PCIE]


def test_the_backend_reports_signs_of_a_gpu_and_its_slices(rig) -> None:
    rig.gpu(0).set({"sram.exceeded": 1})
    backend = rig.seen()
    sram = (Sign(AilmentKind.SRAM, CASES["sram"][2]),)
    assert [backend.vitals(rig.gpu(number).uuid).signs for number in range(2)] == [sram, ()]
    uuids = rig.cut(0, Slice(), Slice())
    backend.inventory()
    assert [backend.vitals(uuid).signs for uuid in uuids] == [sram, sram]
