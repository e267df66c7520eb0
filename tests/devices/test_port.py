"""What the port ``Backend`` promises is held by every backend: on GPUs made of files, and on a stand-in for NVML."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol

import pynvml
import pytest

from scrubber.core.model import AilmentKind, Vitals
from scrubber.devices import roster
from scrubber.devices.base import Backend, DeviceError, DeviceHandling, DeviceLostError, DeviceNode, DriverClosedError
from scrubber.devices.calls import Caller, UnresponsiveError
from scrubber.devices.simulated import creation, drills, tenants
from tests.devices.nvidia.conftest import nvml, nvml_build, rig, stage
from tests.devices.nvidia.health.events_seen import await_call
from tests.fakes.nvml.machine import Gpu, Machine, Process

__all__ = ["nvml", "nvml_build", "rig", "stage"]  # fixtures

SOON, LONG = 0.05, 10.0
LEAK = 300 * 2**20


class Subject(Protocol):
    """Two GPUs or more, what can happen to the first of them, and who sees it."""

    backend: Backend

    def occupy(self, uuid: str) -> None: ...
    def lose(self, uuid: str) -> None: ...
    def damage(self, uuid: str) -> None: ...
    def leak(self, uuid: str) -> None: ...
    def sign(self, uuid: str) -> None: ...
    def heat(self, uuid: str, celsius: int) -> None: ...
    def hang(self, uuid: str) -> None: ...
    def heal(self, uuid: str) -> None: ...
    def load_driver(self) -> None: ...
    def report(self, uuid: str, code: int) -> None: ...


class OnFiles:
    def __init__(self, bank) -> None:
        self.root, self.backend = bank.root, bank.backend

    def occupy(self, uuid: str) -> None:
        tenants.occupy(self.root, uuid, b"secret", "pod-a")

    def lose(self, uuid: str) -> None:
        drills.lose(self.root, uuid)

    def damage(self, uuid: str) -> None:
        drills.ecc(self.root, uuid, 2)

    def leak(self, uuid: str) -> None:
        drills.leak(self.root, uuid, LEAK)

    def sign(self, uuid: str) -> None:
        drills.sign(self.root, uuid, AilmentKind.SRAM, "so it is")

    def heat(self, uuid: str, celsius: int) -> None:
        drills.heat(self.root, uuid, celsius)

    def hang(self, uuid: str) -> None:
        drills.hang(self.root, uuid)

    def heal(self, uuid: str) -> None:
        drills.heal(self.root, uuid)

    def load_driver(self) -> None:
        creation.load_driver(self.root)

    def report(self, uuid: str, code: int) -> None:
        drills.xid(self.root, uuid, code)


class OnNvml:
    def __init__(self, rig) -> None:
        self.rig, self.backend = rig, rig.backend()
        self.machine: Machine = rig.machine

    def gpu(self, uuid: str) -> Gpu:
        return {gpu.uuid: gpu for gpu in self.machine.gpus}[uuid]

    def occupy(self, uuid: str) -> None:
        self.gpu(uuid).run(Process(4711))

    def lose(self, uuid: str) -> None:
        self.gpu(uuid).set(lost=True)

    def damage(self, uuid: str) -> None:
        self.gpu(uuid).set({"ecc.total.1.0": 2})

    def leak(self, uuid: str) -> None:
        self.backend.has_holders(uuid)
        self.gpu(uuid).set({"memory.used": LEAK + int(self.gpu(uuid)["memory.used"])})

    def sign(self, uuid: str) -> None:
        self.gpu(uuid).set({"sram.exceeded": 1})

    def heat(self, uuid: str, celsius: int) -> None:
        self.gpu(uuid).set({"temperature.0": celsius})

    def hang(self, uuid: str) -> None:
        self.file = self.rig.root.path / "hangs"
        self.file.touch()
        self.gpu(uuid).set({"hang.*": self.file})

    def heal(self, uuid: str) -> None:
        self.file.unlink()
        self.gpu(uuid).set({"hang.*": None})

    def load_driver(self) -> None:
        self.rig.reload_driver()

    def report(self, uuid: str, code: int) -> None:
        await_call(self.rig, "nvmlEventSetWait_v2")  # only who listens is told
        self.gpu(uuid).event(pynvml.nvmlEventTypeXidCriticalError, code)


@pytest.fixture(params=[OnFiles, OnNvml], ids=["simulated", "nvidia"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    subject: Subject = request.param(request.getfixturevalue("bank" if request.param is OnFiles else "rig"))
    subject.backend.inventory()
    yield subject
    subject.backend.close()


def first(subject: Subject) -> str:
    return subject.backend.inventory()[0].uuid


def second(subject: Subject) -> str:
    return subject.backend.inventory()[1].uuid


def test_a_device_that_is_well_and_free(subject: Subject) -> None:
    assert subject.backend.vitals(first(subject)) == Vitals()
    assert subject.backend.has_holders(first(subject)) is False


def test_devices_are_listed_by_index_and_always_alike(subject: Subject) -> None:
    infos = subject.backend.inventory()
    assert [info.index for info in infos] == [*range(len(infos))]
    assert subject.backend.inventory() == infos


def test_a_user_is_seen_on_the_device_it_uses_only(subject: Subject) -> None:
    subject.occupy(first(subject))
    assert subject.backend.has_holders(first(subject)) is True
    assert subject.backend.has_holders(second(subject)) is False


def test_a_lost_device_is_named_and_lost_and_never_unused(subject: Subject) -> None:
    names = subject.backend.inventory()
    subject.lose(names[0].uuid)
    assert subject.backend.inventory() == names
    assert subject.backend.vitals(names[0].uuid).lost
    try:
        used = subject.backend.has_holders(names[0].uuid)
    except DeviceLostError:
        used = None
    assert used is None


def test_one_observation_equals_both_questions(subject: Subject) -> None:
    one, other = first(subject), second(subject)
    subject.occupy(one)
    subject.damage(other)
    assert subject.backend.quick_observation(one) == (Vitals(), True)
    assert subject.backend.quick_observation(other) == (Vitals(ecc_uncorrectable=2), False)
    subject.lose(one)
    assert subject.backend.quick_observation(one) == (Vitals(lost=True), None)


def test_memory_without_a_holder_makes_an_observation_unsure(subject: Subject) -> None:
    subject.leak(first(subject))
    assert subject.backend.quick_observation(first(subject)) == (
        Vitals(leaked_bytes=LEAK),
        subject.backend.has_holders(first(subject)),
    )


def test_memory_counts_fit_the_device(subject: Subject) -> None:
    counts = subject.backend.memory(first(subject))
    if counts is not None:
        total, reserved, used = counts
        assert 0 <= used <= total - reserved


def test_damage_is_reported_of_its_device_only(subject: Subject) -> None:
    subject.damage(first(subject))
    assert subject.backend.vitals(first(subject)) == Vitals(ecc_uncorrectable=2)
    assert subject.backend.vitals(second(subject)) == Vitals()


def test_a_leak_is_reported_in_bytes(subject: Subject) -> None:
    subject.leak(first(subject))
    assert subject.backend.vitals(first(subject)) == Vitals(leaked_bytes=LEAK)


def test_service_and_worker_see_a_sign_of_its_device_only(subject: Subject) -> None:
    one, other = first(subject), second(subject)
    subject.sign(one)
    node = DeviceNode(lambda: (), lambda _name: False)
    hands = {uuid: roster.open_gpu(subject.backend.address(uuid, DeviceHandling()), node) for uuid in (one, other)}
    for read in (subject.backend.vitals, lambda uuid: hands[uuid].vitals()):
        assert [sign.kind for sign in read(one).signs] == [AilmentKind.SRAM]
        assert read(other) == Vitals()


def test_only_a_hot_gpu_reports_heat(subject: Subject) -> None:
    before = subject.backend.readings()
    assert {uuid: each.index for uuid, each in before.items()} == {
        info.uuid: info.index for info in subject.backend.inventory()
    }
    for each in before.values():
        assert None not in (each.celsius, each.slowdown_celsius, each.watts)
    subject.heat(first(subject), 97)
    assert subject.backend.readings() == {**before, first(subject): replace(before[first(subject)], celsius=97)}


def test_a_lost_gpu_has_no_readings_and_disturbs_no_other(subject: Subject) -> None:
    before, one = dict(subject.backend.readings()), first(subject)
    subject.lose(one)
    del before[one]
    assert subject.backend.readings() == before


async def test_a_device_that_hangs_makes_only_itself_unresponsive(subject: Subject) -> None:
    caller, one, other = Caller(), first(subject), second(subject)
    subject.hang(one)
    for question in (subject.backend.vitals, subject.backend.has_holders):
        with pytest.raises(UnresponsiveError):
            await caller.ask(one, partial(question, one), SOON)
    assert await caller.ask(other, lambda: subject.backend.vitals(other), LONG) == Vitals()
    assert caller.stuck() == {one}
    subject.heal(one)
    while caller.stuck():  # noqa: ASYNC110 -- a thread does not report it
        await asyncio.sleep(0.001)
    assert await caller.ask(one, lambda: subject.backend.vitals(one), LONG) == Vitals()


def test_a_reloaded_driver_has_another_instance_name(subject: Subject) -> None:
    before = subject.backend.driver()
    assert subject.backend.driver() == before
    subject.load_driver()
    assert subject.backend.driver() != before


def test_a_released_driver_keeps_names_and_invents_no_data(subject: Subject) -> None:
    backend, one = subject.backend, first(subject)
    known = backend.inventory(), backend.driver(), backend.files(one), backend.address(one, DeviceHandling())
    backend.release_driver()
    backend.release_driver()
    assert (backend.inventory(), backend.driver(), backend.files(one), backend.address(one, DeviceHandling())) == known
    for question in (backend.vitals, backend.has_holders):
        try:
            assert question(one) in (Vitals(), False)
        except DriverClosedError:
            continue
    backend.reacquire_driver()
    backend.reacquire_driver()
    assert backend.vitals(one) == Vitals()


def rings(backend: Backend, within: float) -> bool:
    alarm = backend.alarm()
    assert alarm is not None
    return bool(select.select([alarm], [], [], within)[0])


def test_a_driver_error_raises_an_alarm_for_its_device_only(subject: Subject) -> None:
    backend, one, other = subject.backend, first(subject), second(subject)
    assert not rings(backend, 0)
    for number in (1, 2):
        subject.report(one, 79)
        while len(backend.vitals(one).xids) < number:
            assert rings(backend, LONG)
            backend.clear_alarm()
    assert [xid.code for xid in backend.vitals(one).xids] == [79, 79]
    before, after = backend.vitals(one).xids
    assert before.number < after.number
    assert before.at < after.at
    assert backend.vitals(other) == Vitals()
    backend.clear_alarm()
    assert not rings(backend, 0)


def test_errors_stay_with_their_device_while_the_driver_is_away(subject: Subject) -> None:
    backend, one, other = subject.backend, first(subject), second(subject)
    nothing = Vitals(partial=True)
    assert backend.reported(one) == nothing
    assert not rings(backend, 0)
    subject.report(one, 79)
    assert rings(backend, LONG)
    xids = backend.vitals(one).xids
    assert [xid.code for xid in xids] == [79]
    backend.release_driver()
    assert (backend.reported(one), backend.reported(other)) == (Vitals(xids=xids, partial=True), nothing)
    backend.reacquire_driver()
    subject.hang(one)
    assert (backend.reported(one), backend.reported(other)) == (Vitals(xids=xids, partial=True), nothing)
    subject.heal(one)


def test_an_alarm_is_set_and_removed_once(subject: Subject) -> None:
    backend = subject.backend
    backend.clear_alarm()
    backend.close()
    assert backend.alarm() == backend.alarm()
    backend.close()
    backend.close()


def test_every_device_has_files_and_an_address_of_its_own(subject: Subject) -> None:
    uuids = [info.uuid for info in subject.backend.inventory()]
    assert len({subject.backend.address(uuid, DeviceHandling()) for uuid in uuids}) == len(uuids)
    files = [subject.backend.files(uuid) for uuid in uuids]
    assert all(files)
    assert len({name for names in files for name in names}) == sum(map(len, files))


def test_a_holder_of_a_device_counts_for_its_reset_domain(subject: Subject) -> None:
    for info in subject.backend.inventory():
        assert {*subject.backend.files(info.uuid)} <= {*subject.backend.reach(info.uuid, DeviceHandling())}


def test_an_address_opens_its_own_device(subject: Subject) -> None:
    one, other = first(subject), second(subject)
    subject.damage(one)
    node = DeviceNode(lambda: (), lambda _name: False)
    hands = {uuid: roster.open_gpu(subject.backend.address(uuid, DeviceHandling()), node) for uuid in (one, other)}
    assert hands[one].vitals() == Vitals(ecc_uncorrectable=2)
    assert hands[other].vitals() == Vitals()


def test_an_unknown_name_is_an_error(subject: Subject) -> None:
    backend = subject.backend
    questions: tuple[Callable[[str], object], ...] = (
        backend.files,
        backend.has_holders,
        lambda uuid: backend.address(uuid, DeviceHandling()),
        lambda uuid: backend.reach(uuid, DeviceHandling()),
    )
    for question in questions:
        with pytest.raises(DeviceError):
            question("GPU-unknown")
    try:
        assert backend.vitals("GPU-unknown").lost
    except DeviceError as error:
        assert "GPU-unknown" in str(error)  # noqa: PT017 -- an error and a loss are both right
