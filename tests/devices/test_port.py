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

from scrubber.core.model import AilmentKind, Sign, Vitals
from scrubber.devices import roster
from scrubber.devices.base import (
    Backend,
    DeviceError,
    DeviceHandling,
    DeviceLostError,
    DeviceNode,
    DriverClosedError,
    OpenFiles,
)
from scrubber.devices.blocking_calls import Caller, UnresponsiveError
from scrubber.devices.simulated import drills, layout
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
        root, self.backend = bank.root, bank.backend
        self.occupy = partial(drills.occupy, root, secret=b"secret", container="pod-a")
        self.lose = partial(drills.lose, root)
        self.damage = partial(drills.ecc, root, count=2)
        self.leak = partial(drills.leak, root, count=LEAK)
        self.sign = partial(drills.sign, root, kind=AilmentKind.SRAM, detail="so it is")
        self.heat = partial(drills.heat, root)
        self.hang = partial(drills.hang, root)
        self.heal = partial(drills.heal, root)
        self.load_driver = partial(layout.load_driver, root)
        self.report = partial(drills.xid, root)


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


def test_a_fresh_backend_lists_healthy_unused_and_separate_devices(subject: Subject) -> None:
    backend, infos = subject.backend, subject.backend.inventory()
    uuids, handling = [info.uuid for info in infos], DeviceHandling()
    assert ([info.index for info in infos], backend.inventory()) == ([*range(len(infos))], infos)
    for uuid in uuids:
        assert (backend.vitals(uuid), backend.has_holders(uuid)) == (Vitals(), False)
        assert set(backend.files(uuid)) <= set(backend.reach(uuid)), "a holder counts for its reset domain"
        total, reserved, used = backend.memory(uuid) or (0, 0, 0)
        assert 0 <= used <= total - reserved
        assert backend.open_files(uuid) == OpenFiles(0 if backend.name == "simulated" else None, frozenset())
    assert len({backend.address(uuid, handling) for uuid in uuids}) == len(uuids)
    files = [backend.files(uuid) for uuid in uuids]
    assert all(files)
    assert len({name for names in files for name in names}) == sum(map(len, files))


def test_a_lost_device_stays_listed_and_never_counts_as_free(subject: Subject) -> None:
    backend, names, readings = subject.backend, subject.backend.inventory(), dict(subject.backend.readings())
    subject.lose(names[0].uuid)
    assert backend.inventory() == names
    assert backend.vitals(names[0].uuid).lost
    try:
        used = backend.has_holders(names[0].uuid)
    except DeviceLostError:
        used = None
    assert used is None
    del readings[names[0].uuid]
    assert backend.readings() == readings


@pytest.mark.parametrize(
    ("name", "sick"),
    [
        ("damage", Vitals(ecc_uncorrectable=2)),
        ("leak", Vitals(leaked_bytes=LEAK)),
        ("sign", Vitals(signs=(Sign(AilmentKind.SRAM, ""),))),
    ],
)
def test_service_and_worker_see_a_fault_on_one_device_only(subject: Subject, name: str, sick: Vitals) -> None:
    one, other, backend = first(subject), second(subject), subject.backend
    getattr(subject, name)(one)
    node = DeviceNode(lambda: (), lambda _name: False)
    hands = {uuid: roster.open_gpu(backend.address(uuid, DeviceHandling()), node) for uuid in (one, other)}
    reads: list[Callable[[str], Vitals]] = [backend.vitals, lambda uuid: backend.quick_observation(uuid)[0]]
    if name != "leak":  # a worker does not know how much is in use while the device has no holder
        reads.append(lambda uuid: hands[uuid].vitals())
    for read in reads:
        found = read(one)
        assert replace(found, signs=tuple(replace(sign, detail="") for sign in found.signs)) == sick
        assert read(other) == Vitals()


def test_one_observation_equals_both_questions(subject: Subject) -> None:
    one, other = first(subject), second(subject)
    subject.occupy(one)
    subject.damage(other)
    assert subject.backend.quick_observation(one) == (Vitals(), True)
    assert subject.backend.has_holders(one) is True
    assert subject.backend.quick_observation(other) == (Vitals(ecc_uncorrectable=2), False)
    subject.leak(other)
    assert subject.backend.quick_observation(other)[1] == subject.backend.has_holders(other)
    subject.lose(one)
    assert subject.backend.quick_observation(one) == (Vitals(lost=True), None)


def test_only_a_hot_gpu_reports_heat(subject: Subject) -> None:
    before = subject.backend.readings()
    assert {uuid: each.index for uuid, each in before.items()} == {
        info.uuid: info.index for info in subject.backend.inventory()
    }
    for each in before.values():
        assert None not in (each.celsius, each.slowdown_celsius, each.watts)
    subject.heat(first(subject), 97)
    assert subject.backend.readings() == {**before, first(subject): replace(before[first(subject)], celsius=97)}


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
    assert backend.alarm() == backend.alarm()
    backend.close()
    backend.clear_alarm()


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


def test_an_unknown_name_is_an_error(subject: Subject) -> None:
    backend = subject.backend
    questions: tuple[Callable[[str], object], ...] = (
        backend.files,
        backend.has_holders,
        lambda uuid: backend.address(uuid, DeviceHandling()),
        backend.reach,
    )
    for question in questions:
        with pytest.raises(DeviceError):
            question("GPU-unknown")
    try:
        assert backend.vitals("GPU-unknown").lost
    except DeviceError as error:
        assert "GPU-unknown" in str(error)  # noqa: PT017 -- an error and a loss are both right
